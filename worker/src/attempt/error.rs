//! Errors of a task's statement, classified by the required reaction.

use std::error::Error as _;
use std::io;

use queue::Condition;
use queue::fail::DatabaseError;
use tokio_postgres::Error;
use tokio_postgres::error::{ErrorPosition, Severity};

/// Error of a task's statement.
#[derive(Clone, Debug)]
pub(crate) enum ExecutionError {
    /// The server, or the worker in its place, refused or failed the statement. The session is
    /// usable.
    Database(Box<DatabaseError>),
    /// The connection was lost before the answer arrived.
    ConnectionLost(Box<DatabaseError>),
    /// The client library could not follow the protocol. The session is unusable.
    Protocol(Box<DatabaseError>),
}

impl ExecutionError {
    /// Returns an error raised by the worker itself.
    pub(crate) fn refused(sqlstate: &str, message: &str, hint: &str) -> Self {
        Self::Database(Box::new(DatabaseError {
            sqlstate: Some(sqlstate.to_owned()),
            message: message.to_owned(),
            hint: Some(hint.to_owned()),
            ..DatabaseError::default()
        }))
    }

    /// Returns the error for a backend that is gone, so that no answer will arrive.
    pub(crate) fn backend_gone() -> Self {
        let message = "the session's backend is gone".to_owned();
        Self::ConnectionLost(Box::new(DatabaseError { message, ..DatabaseError::default() }))
    }

    /// Returns the error to record.
    pub(crate) fn database_error(&self) -> &DatabaseError {
        match self {
            Self::Database(database_error)
            | Self::ConnectionLost(database_error)
            | Self::Protocol(database_error) => database_error,
        }
    }

    fn database_error_mut(&mut self) -> &mut DatabaseError {
        match self {
            Self::Database(database_error)
            | Self::ConnectionLost(database_error)
            | Self::Protocol(database_error) => database_error,
        }
    }

    /// Returns whether the session has plans that no longer fit the tables. They survive the reset of the
    /// session, and a new session has none.
    pub(crate) fn outdated_plan(&self) -> bool {
        self.database_error().condition == Some(Condition::OutdatedPlan)
    }

    /// Returns whether the result of the statement is unknown.
    pub(crate) fn connection_lost(&self) -> bool {
        matches!(self, Self::ConnectionLost(_))
    }

    /// Sets what caused the error.
    pub(crate) fn set_condition(&mut self, condition: Condition) {
        self.database_error_mut().condition = Some(condition);
    }

    /// Adds a hint, unless the server has given one.
    pub(crate) fn hint(mut self, hint: impl FnOnce() -> String) -> Self {
        self.database_error_mut().hint.get_or_insert_with(hint);
        self
    }

    /// Limits the error position to the end of the statement. An error at the end of what the worker
    /// sent is behind the comment that follows the statement.
    pub(crate) fn limit_position(mut self, statement: &str) -> Self {
        let database_error = self.database_error_mut();
        let end = u32::try_from(statement.chars().count() + 1).unwrap_or(u32::MAX);
        database_error.position = database_error.position.map(|position| position.min(end));
        self
    }

    /// Moves the error position towards the end of the text by this number of characters.
    pub(crate) fn shift_position(mut self, characters: usize) -> Self {
        let database_error = self.database_error_mut();
        let characters = u32::try_from(characters).unwrap_or(u32::MAX);
        database_error.position =
            database_error.position.map(|position| position.saturating_add(characters));
        self
    }
}

impl ExecutionError {
    /// Moves the error position towards the start of the text by this number of characters.
    pub(crate) fn shift_position_back(mut self, characters: usize) -> Self {
        let database_error = self.database_error_mut();
        let characters = u32::try_from(characters).unwrap_or(u32::MAX);
        let back =
            |position: u32| position.checked_sub(characters).filter(|position| *position > 0);
        database_error.position = database_error.position.and_then(back);
        self
    }
}

impl ExecutionError {
    /// Classifies an error that arrived before the statement of the task had begun. If the session has ended, this
    /// says nothing about the task.
    pub(crate) fn before_statement(error: Error) -> Self {
        let mut error = Self::from(error);
        if error.connection_lost() {
            error.set_condition(Condition::NotBegun);
        }
        error
    }
}

impl From<Error> for ExecutionError {
    fn from(error: Error) -> Self {
        Self::from_ref(&error)
    }
}

impl ExecutionError {
    /// Classifies an error of the client library.
    pub(crate) fn from_ref(error: &Error) -> Self {
        if let Some(db) = error.as_db_error() {
            let database_error = Box::new(DatabaseError {
                sqlstate: Some(db.code().code().to_owned()),
                message: db.message().to_owned(),
                detail: db.detail().map(str::to_owned),
                hint: db.hint().map(str::to_owned),
                context: db.where_().map(str::to_owned),
                position: match db.position() {
                    Some(ErrorPosition::Original(position)) => Some(*position),
                    _ => None,
                },
                condition: Condition::of(db),
            });
            // These end the connection after this message. The text of the severity may be translated.
            return match db.parsed_severity() {
                Some(Severity::Fatal | Severity::Panic) => Self::ConnectionLost(database_error),
                _ => Self::Database(database_error),
            };
        }
        let database_error =
            Box::new(DatabaseError { message: queue::chain(error), ..DatabaseError::default() });
        let io = error.source().is_some_and(<dyn std::error::Error>::is::<io::Error>);
        if error.is_closed() || io {
            Self::ConnectionLost(database_error)
        } else {
            Self::Protocol(database_error)
        }
    }
}
