//! Output of untrusted text.

use std::fmt;
use std::io::{self, Write};

/// Writes a line to standard error. Ignores an error of the write, because it could not be reported
/// either.
pub fn print_stderr(line: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Writes an error to standard error in the form that all programs use, with one line each for
/// `error:`, `detail:` and `hint:`.
pub fn report_error(message: &str, detail: Option<&str>, hint: Option<&str>) {
    print_stderr(format_args!("error: {}", visible(message)));
    for (label, text) in [("detail", detail), ("hint", hint)] {
        if let Some(text) = text {
            print_stderr(format_args!("{label}: {}", visible(text)));
        }
    }
}

/// Returns whether a character is invisible or changes the display of other characters. Such
/// characters are terminal controls, direction controls and zero-width characters, except for the
/// two joiners, which words and emoji need.
#[must_use]
pub fn is_invisible(c: char) -> bool {
    let hidden = matches!(c,
        // Direction marks, embeddings, overrides and isolates.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
        // Line and paragraph separators.
        | '\u{2028}' | '\u{2029}'
        // Zero-width characters.
        | '\u{ad}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2065}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    hidden || (c.is_control() && c != '\n' && c != '\t')
}

/// Escapes each character that [`is_invisible`], for example as `\u{1b}`, because text from the
/// database is untrusted.
#[must_use]
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_invisible(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(visible("a\u{1b}[2Jb\r\n\tä"), "a\\u{1b}[2Jb\\r\n\tä");
    }

    #[test]
    fn direction_controls_are_escaped() {
        assert_eq!(visible("a\u{202e}b\u{2066}\u{200b}"), "a\\u{202e}b\\u{2066}\\u{200b}");
        let joined = "می\u{200c}خواهم 👩\u{200d}💻";
        assert_eq!(visible(joined), joined);
    }
}
