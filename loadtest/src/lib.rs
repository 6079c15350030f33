//! How fast a fleet of real worker processes runs tasks, beside the same SQL without a queue.
//!
//! The way through the files: `args` says what is wanted, `measure` goes through it, `context` has a
//! server and the programs, `scenarios` has a file for each thing that is measured. They use
//! `database` (tables, fills), `fleet` (worker processes), `drain` (a timed round of the fleet),
//! `ceiling` (the same round without a queue), `rounds` (cases take turns), `sample` (what is looked
//! at once a second), `effects` (exactly once?). What comes of it is a value of `result`, with the
//! place it came from (`machine`). It is shown by `table` and `report`, and held against an earlier
//! one by `compare`. METHODOLOGY.md says what each number means.

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

/// The program: reads the command line, measures, says what it saw.
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
