//! Positions in files, for errors.

use std::path::Path;

/// Returns `path:line:column` of a byte offset in the text of a file. Line and column are counted
/// from 1, columns in characters.
#[must_use]
pub fn location(path: &Path, text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    format!("{}:{line}:{}", path.display(), before[start..].chars().count() + 1)
}

/// Returns an error in a file as `path:line:column: message`. Cuts the value out of a message such as
/// `invalid type: string "…", expected a map`: a value may be a password. `at`: byte offset in the text.
#[must_use]
pub fn problem_in_file(path: &Path, text: &str, at: Option<usize>, message: &str) -> String {
    let place = at.map_or_else(|| path.display().to_string(), |at| location(path, text, at));
    let with_value = ["invalid type", "invalid value", "invalid length"];
    let kind = with_value.into_iter().find(|kind| message.starts_with(kind));
    match (kind, message.rfind(", expected ")) {
        (Some(kind), Some(expected)) => format!("{place}: {kind}{}", &message[expected..]),
        (Some(kind), None) => format!("{place}: {kind}"),
        (None, _) => format!("{place}: {message}"),
    }
}
