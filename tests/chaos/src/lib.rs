//! Injects faults into a fleet and verifies the outcome of its tasks.
//!
//! `random` runs a seeded plan of load, faults and operator actions. `matrix` injects each fault at
//! each moment of a task's life and generates the table of docs/fault-matrix.md. Both start private
//! clusters and real workers, and run `checker` at the end.

mod matrix;
mod random;

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
}

/// Runs the program: parses the command line, injects the faults, reports the outcome.
#[must_use]
pub fn main() -> ExitCode {
    cli::main(|| match Args::try_parse()?.command {
        Command::Random(args) => random::run(&args),
        Command::Matrix(args) => matrix::run(&args),
    })
}
