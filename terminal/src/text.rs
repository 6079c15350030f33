//! Text that came from anywhere.

use std::fmt;
use std::io::{self, Write};

/// Writes a line to standard error. If nobody can read it, nobody can be told.
pub fn tell(line: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// The text without what a terminal would obey: it comes from the database, where anybody may have
/// put it.
#[must_use]
pub fn visible(text: &str) -> String {
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
