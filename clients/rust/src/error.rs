//! Errors, with the database's message, code and hint.

use std::error::Error as StdError;
use std::fmt::Write as _;

use tokio_postgres::error::{DbError, SqlState};

/// Failure of a function of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database refused the request; another try would give the same result.
    #[error("{}", database_message(.0))]
    Refused(tokio_postgres::Error),
    /// The login lacks a privilege.
    #[error("{}", database_message(.0))]
    PrivilegeMissing(tokio_postgres::Error),
    /// The task or run has not ended within the timeout, and continues. The detail says why.
    #[error("{}", database_message(.0))]
    WaitTimeout(tokio_postgres::Error),
    /// The connection is in a transaction, in which a wait could never see the end of the task.
    #[error("{}", database_message(.0))]
    TransactionOpen(tokio_postgres::Error),
    /// Any other error of the server or of the connection.
    #[error("{}", database_message(.0))]
    Database(tokio_postgres::Error),
    /// The server returned a value that this version of the crate does not know.
    #[error("unexpected result: {0}")]
    Unexpected(String),
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.code() {
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                Self::PrivilegeMissing(error)
            }
            Some(_) if is_refused(&error) => Self::Refused(error),
            _ => Self::Database(error),
        }
    }
}

impl Error {
    /// Returns the error of a wait.
    pub(crate) fn of_wait(error: tokio_postgres::Error) -> Self {
        let server = error.as_db_error();
        // statement_timeout and pg_cancel_backend have the same SQLSTATE, but no detail.
        let with_reason = server.is_some_and(|db| db.detail().is_some());
        match error.code() {
            Some(code) if *code == SqlState::QUERY_CANCELED && with_reason => {
                Self::WaitTimeout(error)
            }
            Some(code) if *code == SqlState::INVALID_TRANSACTION_TERMINATION => {
                Self::TransactionOpen(error)
            }
            _ => error.into(),
        }
    }

    /// Returns the error of tokio-postgres.
    #[must_use]
    pub fn database(&self) -> Option<&tokio_postgres::Error> {
        match self {
            Self::Refused(error)
            | Self::PrivilegeMissing(error)
            | Self::WaitTimeout(error)
            | Self::TransactionOpen(error)
            | Self::Database(error) => Some(error),
            Self::Unexpected(_) => None,
        }
    }

    /// Returns the SQLSTATE, if the server reported one.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&SqlState> {
        self.database().and_then(tokio_postgres::Error::code)
    }

    /// Returns the server's message, without the SQLSTATE.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.server().map(DbError::message)
    }

    /// Returns the server's DETAIL.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.server().and_then(DbError::detail)
    }

    /// Returns the suggested fix.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        let given = self.server().and_then(DbError::hint);
        given.or_else(|| matches!(self, Self::TransactionOpen(_)).then_some(TRANSACTION_OPEN_HINT))
    }

    fn server(&self) -> Option<&DbError> {
        self.database().and_then(tokio_postgres::Error::as_db_error)
    }
}

const TRANSACTION_OPEN_HINT: &str = "Commit the transaction first, or wait on another connection: the workers see a task only \
     after the transaction that enqueued it has committed.";

/// SQLSTATE classes 22 (data), 23 (constraint) and 54 (limit), and 55000 (not in prerequisite
/// state), with which the schema refuses a request.
const REFUSED: [&str; 4] = ["22", "23", "54", "55000"];

/// Functions of the server that assign transaction ids.
const ASSIGN_IDS: [&str; 2] = ["GetNewTransactionId", "GetNewMultiXactId"];

/// Returns whether an error means that the request is invalid, as opposed to a database that is
/// unavailable.
#[must_use]
pub fn is_refused(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|db| {
        !out_of_transaction_ids(db)
            && REFUSED.iter().any(|class| db.code().code().starts_with(class))
    })
}

/// Returns whether the server refuses every transaction that writes, until old rows are frozen: it
/// assigns no more transaction ids, to avoid wraparound. The SQLSTATE is that of a statement that
/// exceeds a limit, and the message may be translated, so the function that raised the error decides.
#[must_use]
pub fn out_of_transaction_ids(error: &DbError) -> bool {
    *error.code() == SqlState::PROGRAM_LIMIT_EXCEEDED
        && error.routine().is_some_and(|routine| ASSIGN_IDS.contains(&routine))
}

/// Returns the server's message with its SQLSTATE, or the client library's message with its causes.
/// The client library's own text for an error of the server is only "db error".
#[must_use]
pub fn database_message(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => chain(error),
    }
}

/// Returns an error and its causes on one line.
#[must_use]
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let message = next
            .downcast_ref::<DbError>()
            .map_or_else(|| next.to_string(), |db| db.message().to_owned());
        if !text.contains(&message) {
            let _ = write!(text, ": {message}");
        }
        cause = next.source();
    }
    text
}
