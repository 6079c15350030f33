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
