//! Checks everything under `deploy/` with the programs that will read it: each file of `checks/`
//! covers one subject with its files and tools. `make deploy-check` installs the tools and prints
//! the report.

mod checks;
pub mod dashboard;
mod documents;
pub mod man_pages;
mod report;
pub mod rules;
mod scratch;
mod selectors;
pub mod third_party;
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

pub use report::{Check, Outcome};
pub use tools::{CommandOutput, Tools};

/// One subject of `deploy/` and its check.
pub struct Subject {
    /// Name for `--only`.
    pub name: &'static str,
    /// Runs the checks; an error means that the checks could not run.
    pub run: fn(&Tools) -> Result<Vec<Check>>,
}

/// Check the files under deploy/ with the tools that will read them
#[derive(Parser)]
#[command(
    name = "deploy-check",
    version,
    after_help = "\
Examples:
  make deploy-check                        # installs the tools, then checks everything
  deploy-check --only systemd,prometheus
  deploy-check --strict --json

Exit codes: 0 all checks passed; 1 a check failed, or with --strict an installable tool is missing;
2 usage."
)]
struct Arguments {
    /// Subjects to check, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = names())]
    only: Vec<String>,
    /// Folder with additional tools in bin/, searched before PATH
    #[arg(long, value_name = "DIR", default_value = "target/tools/deploy")]
    tools: PathBuf,
    /// Folder of the PostgreSQL server to test with [default: the server found]
    #[arg(long, value_name = "DIR", env = "PGMILL_PG_BIN")]
    pg: Option<PathBuf>,
    /// Treat a missing tool as a failure
    #[arg(long)]
    strict: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

fn names() -> clap::builder::PossibleValuesParser {
    checks::SUBJECTS.iter().map(|subject| subject.name).collect::<Vec<_>>().into()
}

/// Returns the repository that this program was built from.
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
