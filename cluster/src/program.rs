//! What the programs that start clusters and fleets have in common.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;

/// Wrong usage, of every program.
const USAGE: u8 = 2;

/// The command line; `Err` is the exit code where it was wrong, or asked for help, which has been told.
///
/// # Errors
///
/// See above.
pub fn arguments<A: Parser>() -> Result<A, ExitCode> {
    A::try_parse().map_err(|error| {
        // Nothing is left to do if not even the message can be written.
        let _ = error.print();
        ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
    })
}

/// The path of a program that was built together with this one.
///
/// # Errors
///
/// If there is none.
pub fn sibling_program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("this program does not know its own path")?;
    let path = own.with_file_name(name);
    ensure!(
        path.is_file(),
        "no program `{name}` beside {}: build all of them, with `cargo build`",
        own.display()
    );
    Ok(path)
}
