//! A text file, and places in it.

use queue::scan;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::location::location;

/// The path and the text of a file.
#[derive(Default)]
pub struct Source {
    /// Path of the file.
    pub path: PathBuf,
    /// Text of the file, without a byte order mark at its start.
    pub text: String,
    /// For a generated text: the offset at which each declaration begins, in ascending order, and
    /// the place of its original, such as `cron.csv: jobid 7`. Empty for the text of a file.
    pub origins: Vec<(usize, String)>,
}

/// An error in a file.
#[derive(Debug)]
pub struct ValidationError {
    /// Byte offset in the text.
    pub at: usize,
    /// The error, without its location.
    pub message: String,
    /// What to do instead.
    pub hint: Option<String>,
}

impl ValidationError {
    /// Returns an error without a hint.
    pub fn new(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), hint: None }
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// Fails if the file does not exist, cannot be read, or is not UTF-8.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        let text = scan::without_byte_order_mark(&text).to_owned();
        Ok(Self { path: path.to_owned(), text, origins: Vec::new() })
    }

    /// Returns `path:line:column`, both counted from 1, columns in characters; for a generated text
    /// the place of the original.
    #[must_use]
    pub fn location(&self, at: usize) -> String {
        let after = self.origins.partition_point(|(begins, _)| *begins <= at);
        if let Some((_, origin)) = self.origins[..after].last() {
            return origin.clone();
        }
        location(&self.path, &self.text, at)
    }

    /// As [`Self::location`], for a character position of the server, counted from 1.
    #[must_use]
    pub fn location_of_character(&self, position: u32) -> String {
        let skipped = usize::try_from(position.saturating_sub(1)).unwrap_or(usize::MAX);
        let at = self.text.char_indices().nth(skipped).map_or(self.text.len(), |(at, _)| at);
        self.location(at)
    }

    /// Converts an error in this file to a usage error with its location.
    #[must_use]
    pub fn to_failure(&self, error: ValidationError) -> Failure {
        Failure::usage(error.message).at(&self.location(error.at)).maybe_hint(error.hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_count_lines_and_characters_from_one() {
        let source =
            Source { path: "a.sql".into(), text: "ä\nöü x\n".to_owned(), ..Source::default() };
        assert_eq!(source.location(0), "a.sql:1:1");
        assert_eq!(source.location("ä\nöü ".len()), "a.sql:2:4");
        assert_eq!(source.location_of_character(6), "a.sql:2:4");
        assert_eq!(source.location_of_character(100), "a.sql:3:1");
    }
}
