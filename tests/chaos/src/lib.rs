//! Injects faults into a fleet and verifies the outcome of its tasks.
//!
//! `random` runs a seeded plan of load, faults and operator actions. `matrix` injects each fault at
//! each moment of a task's life and generates the table of tests/chaos/results/fault-matrix.txt. `citus` crashes a
//! coordinator of Citus, its nodes and the workers. All of them start private clusters and real
//! workers, and run `checker` at the end. `fleet` runs the workers of `random` and `citus`.
//! `session`s survive the faults.

mod citus;
mod fleet;
mod matrix;
mod random;
mod session;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Injects faults into a fleet and verifies the outcome of its tasks
#[derive(Parser)]
#[command(name = "chaos", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a seeded plan of load, faults and operator actions
    Random(random::Args),
    /// Inject each fault at each moment of a task's life, one pair at a time
    Matrix(matrix::Args),
    /// Crash a coordinator of Citus, its nodes and the workers under load
    Citus(citus::Args),
}

/// Runs the program: parses the command line, injects the faults, reports the outcome.
#[must_use]
pub fn main() -> ExitCode {
    cli::main(|| match Args::try_parse()?.command {
        Command::Random(args) => random::run(&args),
        Command::Matrix(args) => matrix::run(&args),
        Command::Citus(args) => citus::run(&args),
    })
}
