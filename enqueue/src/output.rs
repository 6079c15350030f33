//! Writes to standard output; no other module does.

use std::io::{self, Write};

use crate::failure::Failure;

/// Writes to standard output. A closed pipe (`enqueue … | head -1`) is not an error, because the
/// tasks are submitted already.
///
/// # Errors
/// Returns any other error of the write, for example a full disk.
pub(crate) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    cli::print(write).map_err(Failure::Output)
}
