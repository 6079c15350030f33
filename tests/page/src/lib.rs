//! The generated part of a documentation page. It stands between two lines, such as
//! `<!-- the matrix -->` and `<!-- the end of the matrix -->`; the text around it is written by hand.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// A generated part, by the name in its two lines.
#[derive(Clone, Copy, Debug)]
pub struct Section(pub &'static str);

impl Section {
    /// Replaces the section in the file `page`. `new` gets the old content.
    ///
    /// # Errors
    /// Returns an error if the page cannot be read or written, or lacks one of the lines.
    pub fn write(self, page: &Path, new: impl FnOnce(&str) -> String) -> Result<()> {
        let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
        let replaced = self.replace(&text, new).with_context(|| {
            let [begin, end] = self.lines();
            format!("{} has no lines {begin} and {end}", page.display())
        })?;
        fs::write(page, replaced).with_context(|| page.display().to_string())
    }

    /// Returns the text of a page with a new section; `None` if one of the lines is missing.
    pub fn replace(self, text: &str, new: impl FnOnce(&str) -> String) -> Option<String> {
        let [begin, end] = self.lines();
        let (before, rest) = text.split_once(&begin)?;
        let (old, after) = rest.split_once(&end)?;
        Some(format!("{before}{begin}\n\n{}\n\n{end}{after}", new(old)))
    }

    fn lines(self) -> [String; 2] {
        ["the", "the end of the"].map(|words| format!("<!-- {words} {} -->", self.0))
    }
}

/// Returns the cells of a row of a table; `None` if the line is no row with this number of cells.
pub fn row<const N: usize>(line: &str) -> Option<[String; N]> {
    let inner = line.strip_prefix('|')?.strip_suffix('|')?;
    let cells: Vec<String> = inner.split('|').map(|cell| cell.trim().to_owned()).collect();
    cells.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_between_the_lines_is_replaced() {
        let text = "head\n<!-- the rates -->\nold\n<!-- the end of the rates -->\nfoot\n";
        let replaced = Section("rates").replace(text, |old| format!("new, was {}", old.trim()));
        let expected =
            "head\n<!-- the rates -->\n\nnew, was old\n\n<!-- the end of the rates -->\nfoot\n";
        assert_eq!(replaced.as_deref(), Some(expected));
        assert_eq!(Section("other").replace(text, str::to_owned), None);
        assert_eq!(Section("rates").replace("<!-- the rates -->", str::to_owned), None);
    }

    #[test]
    fn a_row_has_a_fixed_number_of_cells() {
        assert_eq!(row("| a |  b|"), Some(["a".to_owned(), "b".to_owned()]));
        assert_eq!(row::<3>("| a | b |"), None);
        assert_eq!(row::<1>("no row"), None);
    }
}
