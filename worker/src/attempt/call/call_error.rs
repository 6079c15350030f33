//! Errors of handlers, with a SQLSTATE that decides about the retry.

use std::fmt;

use queue::fail::DatabaseError;
use queue::retry::{FATAL, SNOOZE};

use crate::attempt::error::ExecutionError;

/// An error of a handler, or of a statement of a handler.
///
/// The attempt records the error as it records an error of SQL, and its SQLSTATE decides about the
/// retry.
#[derive(Clone, Debug)]
pub struct CallError(ExecutionError);

impl CallError {
    /// Returns an error with this SQLSTATE.
    pub fn new(sqlstate: &str, message: impl Into<String>) -> Self {
        Self(ExecutionError::Database(Box::new(DatabaseError {
            sqlstate: Some(sqlstate.to_owned()),
            message: message.into(),
            ..DatabaseError::default()
        })))
    }

    /// Returns a permanent failure: the task is not retried.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self::new(FATAL, message)
    }

    /// Returns a snooze: the task runs again after its retry interval, and the attempt is not used
    /// up.
    #[must_use]
    pub fn snooze() -> Self {
        Self::new(SNOOZE, "snoozed")
    }

    /// Returns the SQLSTATE; `None` if the error did not come from the server.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.0.database_error().sqlstate.as_deref()
    }

    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.database_error().message
    }

    pub(crate) fn execution_error(&self) -> &ExecutionError {
        &self.0
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for CallError {}

impl From<ExecutionError> for CallError {
    fn from(error: ExecutionError) -> Self {
        Self(error)
    }
}

impl From<tokio_postgres::Error> for CallError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self(error.into())
    }
}
