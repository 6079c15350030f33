//! The one place that writes to standard output and standard error.

use std::fmt;
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

/// Writes a line to standard error. If nobody can read it, nobody can be told.
pub(crate) fn tell(line: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// The text without what a terminal would obey: it comes from the database, where anybody may have
/// put it.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_does_not_drive_the_terminal() {
        assert_eq!(visible("a\u{1b}[2Jb\r\n\tä"), "a\\u{1b}[2Jb\\r\n\tä");
    }
}
