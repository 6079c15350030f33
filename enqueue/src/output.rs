//! The one place that writes to standard output.

use std::io::{self, BufWriter, Write};

use crate::failure::Failure;

/// Writes to standard output. A reader that has gone away (`enqueue … | head -1`) is no error: the
/// tasks are submitted all the same.
///
/// # Errors
/// Any other trouble, for example a full disk.
pub(crate) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Output(error)),
        // What is still buffered would be written, and fail, once more.
        _ => {
            drop(out.into_parts());
            Ok(())
        }
    }
}
