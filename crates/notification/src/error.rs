//! Errors of settings and of messages.

use std::fmt;
use std::path::Path;
use std::time::Duration;

/// An error in the settings of a destination.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub(crate) String);

/// A message that was not delivered.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SendError {
    /// Whether the receiver refuses this message, so that other messages need not wait.
    pub rejected: bool,
    /// Time that the receiver asks to wait.
    pub retry_after: Option<Duration>,
    message: String,
}

impl SendError {
    /// The receiver cannot be reached, or cannot take messages now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { rejected: false, retry_after: None, message: message.into() }
    }

    /// Adds the time that the receiver asks to wait.
    pub(crate) fn after(self, retry_after: Option<Duration>) -> Self {
        Self { retry_after, ..self }
    }

    /// The receiver does not take this message.
    pub(crate) fn rejected(message: impl Into<String>) -> Self {
        Self { rejected: true, ..Self::unavailable(message) }
    }
}

/// Returns the message for a file that cannot be read. A URL in place of its path may contain a secret,
/// and is not shown.
pub(crate) fn unreadable(path: &Path, error: &dyn fmt::Display) -> String {
    let path = path.to_string_lossy();
    if path.contains("://") {
        return "could not read a file, because its path is a URL".to_owned();
    }
    format!("could not read {path}: {error}")
}
