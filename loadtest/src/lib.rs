//! Measures how fast a fleet of real worker processes runs tasks, compared with the same SQL
//! without a queue.
//!
//! Modules: `args` parses the command line, `measure` runs the requested scenarios, `context`
//! provides a server and the programs, and `scenarios` has one file per scenario. Scenarios use
//! `database` (tables, inserts), `fleet` (worker processes), `drain` (a timed round of the fleet),
//! `ceiling` (the same round without a queue), `rounds` (alternates the cases), `sample` (samples
//! counters once a second) and `effects` (verifies exactly-once execution). A run produces a value
//! of `result` with the environment that `machine` describes. `table` and `report` print the
//! result; `compare` compares the result with an earlier one. METHODOLOGY.md defines every number.

mod args;
mod ceiling;
mod compare;
mod context;
mod database;
mod drain;
pub mod effects;
mod fleet;
mod format;
mod goal_check;
mod latency;
mod machine;
mod measure;
mod number_format;
mod peers;
mod plot;
mod process;
mod progress;
mod report;
pub mod result;
mod rounds;
mod sample;
#[cfg(test)]
mod sample_report;
mod scenarios;
mod session;
mod table;

use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use queue::exit;
use terminal::print_stderr;

use crate::args::{Args, Command};
use crate::scenarios::Kind;

/// Runs the program: parses the command line, measures, prints the results.
#[must_use]
pub fn main() -> ExitCode {
    let args: Args = match cluster::arguments() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let done = match args.command {
        Command::Run(run) => measure::measure(run, None),
        Command::Peers(peers) => measure::measure(peers.run(), Some(&peers)),
        Command::Report(report) => report.run().map(|()| exit::OK),
        Command::List => list(),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            print_stderr(format_args!("error: {error:#}"));
            ExitCode::from(exit::FAILURE)
        }
    }
}

fn list() -> Result<u8> {
    let lines: Vec<String> = Kind::value_variants()
        .iter()
        .map(|kind| format!("{:<10} {}", kind.name(), kind.title()))
        .collect();
    table::write(&lines.join("\n"))?;
    Ok(exit::OK)
}
