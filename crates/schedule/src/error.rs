//! Errors in a text, each with its position and a hint.

use serde::Serialize;
use strsim::osa_distance;

/// An error in a text, at a part that cannot be parsed or is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub struct ValidationError {
    /// Position in the text, in characters from 0.
    pub at: usize,
    /// The problem, as a lower-case fragment.
    pub message: String,
    /// The expected input.
    pub hint: Option<String>,
}

impl ValidationError {
    pub(crate) fn new(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), hint: None }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Returns the error for a `word` that is not in `known`. The hint names the most similar known
    /// word, or all known words if none is similar.
    pub(crate) fn unknown(at: usize, what: &str, word: &str, known: &[&str]) -> Self {
        let found = Self::new(at, format!("unknown {what} \"{}\"", truncated(word)));
        match nearest(word, known) {
            Some(near) => found.hint(format!("did you mean {near}?")),
            None => found.hint(format!("expected one of {}", known.join(", "))),
        }
    }
}

/// Truncates a word that a message quotes, because it may be thousands of characters long.
pub(crate) fn truncated(word: &str) -> String {
    match word.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &word[..end]),
        None => word.to_owned(),
    }
}

/// Returns the most similar known word, if at most a third of its letters differ. Two neighbours that
/// are swapped count as one.
pub(crate) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    if word.chars().count() > 40 {
        return None;
    }
    let word = word.to_lowercase();
    let near = known.iter().map(|known| (osa_distance(&word, known), *known));
    near.filter(|(far, known)| *far <= (known.len() / 3).max(1)).min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_recognized() {
        let known = ["daily", "weekly", "monthly"];
        assert_eq!(nearest("dialy", &known), Some("daily"));
        assert_eq!(nearest("WEEKLI", &known), Some("weekly"));
        assert_eq!(nearest("montly", &known), Some("monthly"));
        assert_eq!(nearest("hourly", &known), None);
        assert_eq!(nearest("", &known), None);
    }

    #[test]
    fn a_long_word_is_truncated_in_the_message() {
        let found = ValidationError::unknown(0, "word", &"ä".repeat(3000), &["daily"]);
        assert!(found.message.chars().count() < 90, "{}", found.message);
    }
}
