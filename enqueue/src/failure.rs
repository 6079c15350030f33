//! Why the command ends without having done its work, and with which exit code.

use std::io;

use queue::connect::ConnectError;
use queue::run::RunId;
use queue::{QueueError, TaskId, exit};
use tokio_postgres::error::SqlState;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line or a file is wrong.
    #[error("{message}")]
    Usage { message: String, hint: Option<String> },
    /// Understood, and refused before the database was asked.
    #[error("{message}")]
    Refused { message: String, hint: Option<String> },
    /// No connection came about.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The database said no, or went away; nothing was submitted.
    #[error(transparent)]
    Database(#[from] QueueError),
    /// The connection broke before the answer to the submission.
    #[error("the connection broke, and it is not known whether the task was submitted: {0}")]
    InDoubt(QueueError),
    /// The connection broke while waiting and did not come back.
    #[error("task {id} goes on, but its end cannot be awaited: {reason}")]
    LostTask { id: TaskId, reason: String },
    /// The connection broke while waiting and did not come back.
    #[error("run {id} goes on, but its end cannot be awaited: {reason}")]
    LostRun { id: RunId, reason: String },
    /// The task is neither live nor in the history.
    #[error("task {0} has left no trace: it was deleted, not finished")]
    TaskGone(TaskId),
    /// Standard output takes no more; nothing is written there before the submission.
    #[error("submitted, but standard output takes no more: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: None }
    }

    pub(crate) fn refused(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Refused { message: message.into(), hint: Some(hint.into()) }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage { .. } => exit::USAGE,
            Self::Refused { .. } => exit::REFUSED,
            Self::Connect(error) => exit::of_connection(error),
            Self::Database(error) => exit::of(error),
            Self::InDoubt(_)
            | Self::LostTask { .. }
            | Self::LostRun { .. }
            | Self::TaskGone(_)
            | Self::Output(_) => exit::FAILURE,
        }
    }

    /// More about what the server refused.
    pub(crate) fn detail(&self) -> Option<&str> {
        match self {
            Self::Database(error) => error.detail(),
            _ => None,
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } | Self::Refused { hint, .. } => hint.clone(),
            Self::Connect(error) => error.hint(),
            // What the schema itself refuses says what would help.
            Self::Database(error) if lacks_privilege(error) && error.hint().is_none() => Some(
                "submitting takes the role mill_producer; --wait reads tasks and history and \
                 takes mill_viewer, too"
                    .to_owned(),
            ),
            Self::Database(error) => error.hint(),
            Self::InDoubt(_) => Some(
                "with --key the command can be repeated safely as long as the task is live"
                    .to_owned(),
            ),
            Self::LostTask { id, .. } => Some(format!("pgmill task show {id}")),
            Self::LostRun { id, .. } => Some(format!("pgmill run show {id}")),
            Self::TaskGone(_) | Self::Output(_) => None,
        }
    }
}

fn lacks_privilege(error: &QueueError) -> bool {
    error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
}

/// Whether the server may have done the work without saying so.
pub(crate) fn commit_in_doubt(error: &QueueError) -> bool {
    matches!(error, QueueError::Database(database) if database.as_db_error().is_none())
}
