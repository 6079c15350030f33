//! The command line of the programs that start clusters and fleets, and the paths of programs that
//! were built together.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;

/// Exit code for wrong usage, the same for every program.
const USAGE: u8 = 2;

/// Parses the command line.
///
/// # Errors
///
/// Returns the exit code if the command line is invalid or requests help; the message has been
/// printed.
pub fn arguments<A: Parser>() -> Result<A, ExitCode> {
    A::try_parse().map_err(|error| {
        // Nothing remains to be done if the message cannot be written.
        let _ = error.print();
        ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
    })
}

/// Returns the path of a program built together with this one.
///
/// # Errors
///
/// Returns an error if the program does not exist.
pub fn sibling_program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot determine the path of this program")?;
    let path = own.with_file_name(name);
    ensure!(
        path.is_file(),
        "program `{name}` not found next to {}; run `cargo build --workspace`",
        own.display()
    );
    Ok(path)
}
