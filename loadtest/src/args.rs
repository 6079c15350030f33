//! Command-line arguments.

mod peers;
mod run;

use clap::{Parser, Subcommand};

pub(crate) use peers::Peers;
pub(crate) use run::Run;

use crate::report::page::ReportArgs;

const AFTER_HELP: &str = "\
Examples:
  loadtest run all --quick                        check that everything works; minutes
  loadtest run drain latency                      the sizes that the goals assume
  loadtest run all --json > results.json          all scenarios; one to two hours
  loadtest report results.json -o report.html     the results as a page with plots
  loadtest run drain --compare results.json       compare with earlier results
  loadtest run drain --tasks 1000000 --readers 32 --pg /usr/lib/postgresql/17

The load test starts its own PostgreSQL with durable commits and removes it afterwards. Measure with
a release build: cargo build --release --workspace, then target/release/loadtest. loadtest/METHODOLOGY.md
defines every number.

Exit codes:
    0        every check passed
    1        a check failed, --compare found a regression, or nothing could be measured
    2        invalid command line
    128 + n  ended by signal n, after printing the results so far";

/// Measure a fleet of real worker processes, compared with the same SQL without a queue
#[derive(Debug, Parser)]
#[command(name = "loadtest", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run scenarios and print the results
    #[command(after_help = AFTER_HELP)]
    Run(Run),
    /// Print results as a page with plots or as a Markdown table
    Report(ReportArgs),
    /// List the scenarios
    List,
    /// Measure the same SQL work with other queues, installed into a scratch folder
    Peers(Peers),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::scenarios::SCENARIOS;

    fn names(arguments: &[&str]) -> Vec<&'static str> {
        let parsed = Args::try_parse_from([&["loadtest", "run"], arguments].concat()).unwrap();
        let Command::Run(run) = parsed.command else { panic!("expected `run`") };
        run.scenarios().iter().map(|spec| spec.name).collect()
    }

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn all_means_each_scenario_once() {
        let all: Vec<&str> = SCENARIOS.iter().map(|spec| spec.name).collect();
        assert_eq!(names(&["all"]), all);
        assert_eq!(names(&["idle", "drain", "idle"]), ["idle", "drain"]);
        assert_eq!(names(&["idle", "all"]).len(), all.len());
        for wrong in [
            &["run", "speed"][..],
            &["run"],
            &["run", "all", "--duration", "10"],
            &["run", "all", "--shared-commit", "1s"],
        ] {
            Args::try_parse_from([&["loadtest"], wrong].concat()).expect_err("wrong");
        }
    }
}
