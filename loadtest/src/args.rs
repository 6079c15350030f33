//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;

use crate::peers::Peers;
use crate::report::ReportArgs;
use crate::scenarios::Kind;

const AFTER_HELP: &str = "\
Examples:
  loadtest run all --quick                        does everything work? minutes
  loadtest run drain noop                         as the goals have it
  loadtest run all --json > results.json          everything, for later: an hour or two
  loadtest report results.json -o report.html     the same as a page with plots
  loadtest run drain --compare results.json       better or worse than then?
  loadtest run drain --tasks 1000000 --readers 32 --pg /usr/lib/postgresql/17

It starts a PostgreSQL of its own, with durable commits, and removes it afterwards. Measure with a
release build: cargo build --release --bins, then target/release/loadtest. METHODOLOGY.md beside the
source says what each number means.

Exit codes: 0 measured, every check passed; 1 a check failed, --compare found something worse, or
nothing could be measured; 2 usage; 128 + n ended by signal n, after the results until then";

/// Measures a fleet of real worker processes, beside the same SQL without a queue
#[derive(Debug, Parser)]
#[command(name = "loadtest", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure
    #[command(after_help = AFTER_HELP)]
    Run(Run),
    /// Show results as a page with plots, or as a table in Markdown
    Report(ReportArgs),
    /// Print the scenarios with what each measures
    List,
    /// Measure the same SQL work through other queues, which it installs into a scratch folder
    Peers(Peers),
}

/// What to measure, where, and how much of it.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Run {
    /// What to measure; `all` is everything `loadtest list` names
    #[arg(value_name = "SCENARIO", required = true, value_parser = scenario)]
    pub(crate) scenarios: Vec<ScenarioArg>,
    /// Tasks that each worker runs at once [default: 16; `idle`, `schedules`: 8; `fleet`: 64 over all
    /// workers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) readers: Option<u32>,
    /// Worker processes [default: 1; `schedules`: 2; `chaos`: 4; `idle`: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers: Option<u32>,
    /// Tasks in a round [default: depends on the scenario; `drain`: 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tasks: Option<u32>,
    /// Length of a round of the scenarios that go by time [default: 20s; `schedules`: 30s; `soak`:
    /// 10m]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    pub(crate) duration: Option<Duration>,
    /// Rounds of each case; the cases take turns [default: 3; with --quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: Option<u16>,
    /// Let short tasks share commits for up to this long, in every scenario that compares nothing with
    /// that [default: each task commits alone, as it is by default in the queue]
    #[arg(long, value_name = "DURATION", value_parser = budget)]
    pub(crate) share_commits: Option<Duration>,
    /// Print the results as one JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Tell what changed since an earlier run, which printed this file with --json
    #[arg(long, value_name = "FILE")]
    pub(crate) compare: Option<PathBuf>,
    /// Small sizes: whether everything works, and roughly how fast
    #[arg(long)]
    pub(crate) quick: bool,
    /// Measure on this server instead of one of its own: a superuser's URL or key=value pairs. Makes
    /// databases named loadtest_* there and drops them again
    #[arg(long, value_name = "URL", env = "PGMILL_LOADTEST_URL", hide_env_values = true)]
    pub(crate) database_url: Option<String>,
    /// Folder with initdb, pg_ctl and postgres, or with bin/ or native/bin/ that holds them
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    pub(crate) directory: Option<PathBuf>,
    /// Folder with the programs `worker` and `enqueue` [default: where this program is]
    #[arg(long, value_name = "DIR", env = "PGMILL_PROGRAMS")]
    pub(crate) programs: Option<PathBuf>,
}

/// One word of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScenarioArg {
    All,
    One(Kind),
}

impl Run {
    /// The scenarios in the order they were named, each once.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for argument in &self.scenarios {
            let named = match argument {
                ScenarioArg::All => Kind::value_variants().to_vec(),
                ScenarioArg::One(kind) => vec![*kind],
            };
            for kind in named {
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
        }
        kinds
    }
}

fn scenario(text: &str) -> Result<ScenarioArg, String> {
    if text == "all" {
        return Ok(ScenarioArg::All);
    }
    Kind::from_str(text, false)
        .map(ScenarioArg::One)
        .map_err(|_| "no such scenario; see `loadtest list`".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is no duration; write 20ms, 90s, 15m or 1h 30m");
    let span: SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(span).map_err(|_| wrong())
}

fn budget(text: &str) -> Result<Duration, String> {
    let budget = duration(text)?;
    if !(Duration::from_millis(1)..=Duration::from_millis(100)).contains(&budget) {
        return Err("commits are shared for 1ms to 100ms".to_owned());
    }
    Ok(budget)
}

fn span(text: &str) -> Result<Duration, String> {
    let span = duration(text)?;
    if span < Duration::from_secs(1) {
        return Err("a round shorter than a second measures nothing".to_owned());
    }
    Ok(span)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn kinds(arguments: &[&str]) -> Vec<Kind> {
        let parsed = Args::try_parse_from([&["loadtest", "run"], arguments].concat()).unwrap();
        let Command::Run(run) = parsed.command else { panic!("run was given") };
        run.kinds()
    }

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn all_means_each_scenario_once() {
        assert_eq!(kinds(&["all"]), Kind::value_variants());
        assert_eq!(kinds(&["noop", "drain", "noop"]), [Kind::Noop, Kind::Drain]);
        assert_eq!(kinds(&["noop", "all"]).len(), Kind::value_variants().len());
        for wrong in [
            &["run", "speed"][..],
            &["run"],
            &["run", "all", "--duration", "10"],
            &["run", "all", "--share-commits", "1s"],
        ] {
            Args::try_parse_from([&["loadtest"], wrong].concat()).expect_err("wrong");
        }
    }
}
