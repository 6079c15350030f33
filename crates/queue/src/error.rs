//! Errors of the queue, with the database's message, code and hint.

use pgmill_client::out_of_transaction_ids;
use tokio_postgres::error::{DbError, SqlState};

/// Failure of a queue statement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The server returned an error, or the connection was lost. The caller should wait and try
    /// again.
    #[error("{}", pgmill_client::database_message(.0))]
    Database(#[from] tokio_postgres::Error),
    /// No connection is available. The caller should wait and try again.
    #[error("{0}")]
    Unreachable(#[from] conninfo::ConnectError),
    /// The request is invalid. Another try would give the same result.
    #[error("{message}")]
    Refused {
        /// The problem.
        message: String,
        /// Suggested fix.
        hint: Option<String>,
    },
    /// The server did not answer in time. It is unknown whether it executed the statement.
    #[error("no answer from the server within {within:?}")]
    NoAnswer {
        /// Time that the client waited.
        within: std::time::Duration,
    },
    /// A column of the result is missing, or contains a value that this version of pgmill does not
    /// know.
    #[error("unexpected value in column {column}: {value}")]
    Unexpected {
        /// Name in the statement's result.
        column: String,
        /// The value found, or what is wrong with it.
        value: String,
    },
}

impl From<pgmill_client::Error> for QueueError {
    fn from(error: pgmill_client::Error) -> Self {
        use pgmill_client::Error;
        match error {
            Error::Refused(error)
            | Error::PrivilegeMissing(error)
            | Error::WaitTimeout(error)
            | Error::TransactionOpen(error)
            | Error::Database(error) => Self::Database(error),
            other => Self::Unexpected { column: "result".to_owned(), value: other.to_string() },
        }
    }
}

impl QueueError {
    /// Returns the suggested fix, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Database(error) => {
                let hint = error.as_db_error().and_then(DbError::hint).map(str::to_owned);
                let own = match error.code() {
                    Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => Some(READ_ONLY_HINT),
                    Some(&SqlState::QUERY_CANCELED) => Some(SLOW_HINT),
                    _ => None,
                };
                hint.or_else(|| own.map(str::to_owned))
            }
            Self::Unreachable(error) => error.hint(),
            Self::Refused { hint, .. } => hint.clone(),
            Self::NoAnswer { .. } | Self::Unexpected { .. } => None,
        }
    }

    /// Returns the server's DETAIL, if the error came from the server and has one.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Database(error) => error.as_db_error().and_then(DbError::detail),
            _ => None,
        }
    }

    /// Returns the error's SQLSTATE, if the server reported one.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Database(error) => error.code(),
            _ => None,
        }
    }

    /// Returns whether the connection is lost, or the server's error may disappear on another try.
    #[must_use]
    pub fn temporary(&self) -> bool {
        match self {
            Self::Database(error) => error.as_db_error().map_or_else(
                || error.is_closed() || error.to_string().contains("communicating"),
                |db| {
                    let code = db.code();
                    *code == SqlState::READ_ONLY_SQL_TRANSACTION
                        || out_of_transaction_ids(db)
                        || *code != SqlState::QUERY_CANCELED
                            && TEMPORARY.iter().any(|class| code.code().starts_with(class))
                },
            ),
            Self::Unreachable(_) | Self::NoAnswer { .. } => true,
            Self::Refused { .. } | Self::Unexpected { .. } => false,
        }
    }

    /// Returns whether the server may have committed, if this is the error of a COMMIT or of a statement
    /// in a transaction of its own: no answer arrived, or a message of the server or of a proxy took its
    /// place.
    #[must_use]
    pub fn commit_in_doubt(&self) -> bool {
        match self {
            Self::Database(error) => error.code().is_none_or(ends_connection),
            Self::NoAnswer { .. } => true,
            Self::Unreachable(_) | Self::Refused { .. } | Self::Unexpected { .. } => false,
        }
    }

    /// Returns whether the session should be replaced: an answer did not arrive or made no sense, or a
    /// statement has an outdated plan. What the session has prepared may then be wrong for good.
    #[must_use]
    pub fn session_in_doubt(&self) -> bool {
        match self {
            Self::Database(error) => error
                .as_db_error()
                .is_none_or(|error| Condition::of(error) == Some(Condition::OutdatedPlan)),
            Self::NoAnswer { .. } | Self::Unexpected { .. } => true,
            Self::Unreachable(_) | Self::Refused { .. } => false,
        }
    }

    /// Returns whether the request is invalid, as opposed to a database that is unavailable.
    #[must_use]
    pub fn refused(&self) -> bool {
        match self {
            Self::Refused { .. } => true,
            Self::Database(error) => pgmill_client::is_refused(error),
            Self::Unreachable(_) | Self::NoAnswer { .. } | Self::Unexpected { .. } => false,
        }
    }
}

const READ_ONLY_HINT: &str = "This server is a standby or read-only: connect to the primary, for \
                              example with target_session_attrs=read-write.";

/// `statement_timeout` of a command that only reads. A user who waits for longer sets another one in PGOPTIONS.
pub const READ_TIMEOUT: &str = "30s";

/// What to do after a statement has reached [`READ_TIMEOUT`], or another time limit.
const SLOW_HINT: &str = "Narrow the search to a queue, a state or a shorter time. If many rows have just \
                         arrived: ANALYZE mill.tasks, mill.attempts";

/// SQLSTATEs, or their classes, after which the same request may succeed later: connection errors, aborted
/// transactions, insufficient resources, a lock that was not available in time, operator intervention.
const TEMPORARY: [&str; 5] = ["08", "40", "53", "55P03", "57"];

/// SQLSTATEs, or their classes, that a client gets in place of the answer to a statement: connection
/// errors, an unknown result of the statement, the end of the session or of the server. pgbouncer reports
/// the loss of its connection to the server as 08P01.
const ENDS_CONNECTION: [&str; 5] = ["08", "40003", "57P01", "57P02", "57P03"];

fn ends_connection(state: &SqlState) -> bool {
    ENDS_CONNECTION.iter().any(|start| state.code().starts_with(start))
}

/// A condition of the server or of the session, which raises errors whatever the task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The server assigns no transaction ids, to avoid wraparound.
    OutOfTransactionIds,
    /// The session has a plan of a function from before a table got other types. A new session has none.
    OutdatedPlan,
    /// History has no partition for today, because the clock of the server has passed the last one.
    HistoryMissing,
    /// The completion waited for a lock for longer than the settings of the session allow, after the
    /// statement of the task had succeeded.
    CompletionDelayed,
    /// Another session has changed the same object of the catalogs at the same time. Another attempt
    /// sees its change.
    CatalogRace,
    /// An administrator has ended the session, and the server goes on: this was meant for the task.
    Terminated,
    /// The session ended before the statement of the task had begun.
    NotBegun,
}

/// Functions of the server that find an outdated plan. The SQLSTATEs of these errors are also those of
/// wrong statements, and the messages may be translated.
const PLAN_CHECKS: [&str; 4] = [
    "RevalidateCachedQuery",
    "plpgsql_param_eval_generic",
    "plpgsql_param_eval_generic_ro",
    "plpgsql_param_eval_recfield",
];

/// Messages of internal errors, which the server does not translate.
const CATALOG_RACES: [&str; 2] = ["tuple concurrently updated", "tuple concurrently deleted"];

impl Condition {
    /// Returns the condition that caused the error; `None` if it is an error of the statement.
    #[must_use]
    pub fn of(error: &DbError) -> Option<Self> {
        let outdated = [SqlState::DATATYPE_MISMATCH, SqlState::FEATURE_NOT_SUPPORTED];
        if out_of_transaction_ids(error) {
            Some(Self::OutOfTransactionIds)
        } else if outdated.contains(error.code())
            && error.routine().is_some_and(|routine| PLAN_CHECKS.contains(&routine))
        {
            Some(Self::OutdatedPlan)
        } else if *error.code() == SqlState::CHECK_VIOLATION
            && (error.schema(), error.table(), error.constraint())
                == (Some("mill"), Some("attempts"), None)
        {
            Some(Self::HistoryMissing)
        } else if *error.code() == SqlState::UNIQUE_VIOLATION
            && error.schema() == Some("pg_catalog")
            || *error.code() == SqlState::INTERNAL_ERROR && CATALOG_RACES.contains(&error.message())
        {
            Some(Self::CatalogRace)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_in_place_of_an_answer_says_nothing_about_the_commit() {
        let in_doubt = |code: &str| ends_connection(&SqlState::from_code(code));
        for code in ["08006", "08007", "08P01", "40003", "57P01", "57P02", "57P03"] {
            assert!(in_doubt(code), "{code}");
        }
        for code in ["23505", "25006", "40001", "53300", "55P03", "57014", "P0001"] {
            assert!(!in_doubt(code), "{code}");
        }
        assert!(QueueError::NoAnswer { within: std::time::Duration::ZERO }.commit_in_doubt());
        assert!(!QueueError::Refused { message: String::new(), hint: None }.commit_in_doubt());
    }
}
