//! Everything under `deploy/`, looked at by the programs that will read it: each file of `checks/` knows
//! one subject, its files and their tools. `make deploy-check` installs the tools and prints what came out.

mod checks;
pub mod dashboard;
pub mod dashboard_svg;
mod documents;
pub mod man_pages;
mod report;
pub mod rules;
mod scratch;
mod selectors;
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

pub use report::{Check, Outcome};
pub use tools::{CommandOutput, Tools};

/// One subject of `deploy/`, and how it is checked.
pub struct Subject {
    /// As `--only` takes it.
    pub name: &'static str,
    /// Finds out; an error is a check that could not be made at all.
    pub run: fn(&Tools) -> Result<Vec<Check>>,
}

/// Checks what is under deploy/ with the tools that will read it.
#[derive(Parser)]
#[command(
    name = "deploy-check",
    version,
    after_help = "\
Examples:
  make deploy-check                        # installs the tools, then checks everything
  deploy-check --only systemd,prometheus
  deploy-check --strict --json

Exit codes: 0 all is well; 1 something is not, or with --strict a tool is missing that could be installed;
2 wrong usage."
)]
struct Arguments {
    /// Subjects to check, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = names())]
    only: Vec<String>,
    /// Folder with further tools in bin/, before those in PATH
    #[arg(long, value_name = "DIR", default_value = "target/tools/deploy")]
    tools: PathBuf,
    /// Folder with the PostgreSQL server to try things on [default: the one that is found]
    #[arg(long, value_name = "DIR", env = "PGMILL_PG_BIN")]
    pg: Option<PathBuf>,
    /// A check whose tool is missing is a failure
    #[arg(long)]
    strict: bool,
    /// Write the files that are made from others, and check nothing
    #[arg(long, conflicts_with_all = ["only", "strict", "json"])]
    write: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

fn names() -> clap::builder::PossibleValuesParser {
    checks::SUBJECTS.iter().map(|subject| subject.name).collect::<Vec<_>>().into()
}

/// The repository that this program was built from.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Arguments = match cluster::arguments() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if arguments.write {
        return match checks::write() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let tools = Tools::new(&arguments.tools, arguments.pg);
    let mut checks = Vec::new();
    for subject in checks::SUBJECTS {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|name| name == subject.name) {
            continue;
        }
        eprintln!("checking {} …", subject.name);
        let found = (subject.run)(&tools);
        checks.extend(found.unwrap_or_else(|error| vec![Check::broken(subject.name, &error)]));
    }
    report::print(&checks, arguments.json);
    if report::all_passed(&checks, arguments.strict) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
