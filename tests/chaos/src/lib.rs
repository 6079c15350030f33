//! Breaks what a fleet stands on, and checks what became of its tasks.
//!
//! `random` is a seeded plan of load, faults and what an operator does; `matrix` is one fault at one
//! moment at a time, and prints the table of docs/fault-matrix.md. Both start private clusters and real
//! workers, and ask `checker` at the end.

mod matrix;
mod random;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use queue::exit;

/// Breaks what a fleet stands on, and checks what became of its tasks
#[derive(Parser)]
#[command(name = "chaos", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A seeded plan of load, faults and operators' actions
    Random(random::Args),
    /// One fault at one moment at a time
    Matrix(matrix::Args),
}

/// The program: reads the command line, breaks things, says what became of the tasks.
#[must_use]
pub fn main() -> ExitCode {
    let args: Args = match cluster::arguments() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let ended = match args.command {
        Command::Random(args) => random::run(&args),
        Command::Matrix(args) => matrix::run(&args),
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(exit::FAILURE)
        }
    }
}
