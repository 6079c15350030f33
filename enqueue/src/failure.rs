//! Errors of the command, with their hints and exit codes.

use std::io;

use cli::exit;
use conninfo::ConnectError;
use queue::RunId;
use queue::{QueueError, TaskId};

/// Hint for an error of the server that has none of its own: those that the schema raises have.
const ROLES: &str = "Submitting requires the role mill_producer. --wait reads tasks and history, and also requires \
    mill_viewer.";

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line or a file is wrong, or the request was refused before a connection to the database was opened.
    #[error(transparent)]
    Command(#[from] cli::Failure),
    /// The connection failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The database refused the task, or the connection was lost. In both cases nothing was
    /// submitted.
    #[error(transparent)]
    Database(#[from] QueueError),
    /// The database refused the task because of a setting of the session.
    #[error("{error}: {cause}")]
    InSession { error: Box<QueueError>, cause: String },
    /// The connection was lost before the submission was confirmed.
    #[error("connection lost, and it is not known whether the task was submitted: {0}")]
    InDoubt(QueueError),
    /// The connection was lost before the start of a run was confirmed.
    #[error("connection lost, and it is not known whether the run was started: {0}")]
    RunInDoubt(QueueError),
    /// The connection was lost during the wait for a task, and reconnecting failed.
    #[error("could not wait for task {id}, which continues: {reason}")]
    LostTask { id: TaskId, reason: String },
    /// The connection was lost during the wait for a run, and reconnecting failed.
    #[error("could not wait for run {id}, which continues: {reason}")]
    LostRun { id: RunId, reason: String },
    /// The task is neither live nor in the history.
    #[error("task {0} was deleted: it is neither live nor in the history")]
    TaskGone(TaskId),
    /// Writing to standard output failed. The submission was made before, because nothing is
    /// written earlier.
    #[error("submitted, but writing to standard output failed: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        cli::Failure::usage(message).into()
    }

    pub(crate) fn refused(message: impl Into<String>, hint: impl Into<String>) -> Self {
        cli::Failure::new(exit::REFUSED, message).hint(hint).into()
    }
}

impl From<Failure> for cli::Failure {
    fn from(failure: Failure) -> Self {
        let ended = Self::new(exit::FAILURE, failure.to_string());
        match failure {
            Failure::Command(failure) => failure,
            Failure::Connect(error) => error.into(),
            Failure::Database(error) if error.hint().is_none() => {
                Self::from(error).hint_if_unprivileged(ROLES)
            }
            Failure::Database(error) => error.into(),
            Failure::InSession { error, cause } => Self::from(*error).because(&cause),
            Failure::InDoubt(_) => {
                ended.hint("With --key the command can be repeated safely while the task is live.")
            }
            Failure::RunInDoubt(_) => ended.hint("pgmill run list shows the last runs."),
            Failure::LostTask { id, .. } => ended.hint(format!("pgmill task show {id}")),
            Failure::LostRun { id, .. } => ended.hint(format!("pgmill run show {id}")),
            Failure::TaskGone(_) | Failure::Output(_) => ended,
        }
    }
}
