//! Measures how fast a fleet of real worker processes runs tasks, compared with the same SQL
//! without a queue.
//!
//! | module | contents |
//! |---|---|
//! | `args` | command line |
//! | `context` | server, databases, programs, sessions and progress of a run |
//! | `fleet` | worker processes |
//! | `measure` | timed rounds, ceiling, samples, latencies, exactly-once check |
//! | `scenarios` | one file per scenario |
//! | `peers` | the same work through other job queues |
//! | `run` | the requested scenarios in sequence |
//! | `result` | the numbers, and everything needed to interpret them later |
//! | `report` | tables, pages, plots, goals, comparison with an earlier run |
//!
//! METHODOLOGY.md defines every number.

mod args;
mod context;
mod fleet;
mod measure;
mod peers;
mod report;
pub mod result;
mod run;
mod scenarios;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use cli::exit;

pub use measure::effects;

use crate::args::{Args, Command};
use crate::scenarios::SCENARIOS;

/// Runs the program: parses the command line, measures, prints the results.
#[must_use]
pub fn main() -> ExitCode {
    cli::main(|| match Args::try_parse()?.command {
        Command::Run(run) => run::measure(run, None),
        Command::Peers(peers) => run::measure(peers.run(), Some(&peers)),
        Command::Report(report) => report.run().map(|()| exit::OK),
        Command::List => list(),
    })
}

fn list() -> Result<u8> {
    cli::print(|out| {
        SCENARIOS.iter().try_for_each(|spec| writeln!(out, "{:<10} {}", spec.name, spec.title))
    })?;
    Ok(exit::OK)
}
