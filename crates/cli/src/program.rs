//! Start and end of a program.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use tokio::runtime::{Builder, Runtime};

use crate::failure::Failure;

/// Runs a program from the command line to the exit code, and prints its error. [`clap::Error`] is
/// treated like other errors, including the one that prints `--help`.
pub fn main<E: Into<Failure>>(program: impl FnOnce() -> Result<u8, E>) -> ExitCode {
    match program() {
        Ok(code) => ExitCode::from(code),
        Err(error) => ExitCode::from(error.into().report()),
    }
}

/// Returns a runtime with one thread, for a program that moves bytes between one user and the
/// server.
///
/// # Errors
/// The operating system refuses what the runtime needs.
pub fn one_thread() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Returns a runtime with many threads, for a program that drives a fleet of processes.
///
/// # Errors
/// The operating system refuses what the runtime needs.
pub fn many_threads() -> io::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build()
}

/// Writes to standard output. A closed pipe is not an error: the reader, such as `head -1`, has
/// seen enough, and what the program did remains done. Rust ignores SIGPIPE, so a write to a closed
/// pipe returns an error instead of ending the process in the middle of a transaction.
///
/// # Errors
/// Returns any other error of the write, for example a full disk.
pub fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        // Dropping the writer would write the buffered bytes again, which would fail again.
        _ => {
            drop(out.into_parts());
            Ok(())
        }
    }
}
