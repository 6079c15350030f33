//! Writes to standard output; no other module does.

use std::io::{self, BufWriter, Write};

use crate::failure::Failure;

/// Writes to standard output. A closed pipe (`enqueue … | head -1`) is not an error: the tasks are
/// submitted anyway.
///
/// # Errors
/// Returns any other error of writing, for example a full disk.
pub(crate) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Output(error)),
        // Dropping the writer would write the buffered bytes again, and fail again.
        _ => {
            drop(out.into_parts());
            Ok(())
        }
    }
}
