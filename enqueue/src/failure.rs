//! Errors of the command, with their hints and exit codes.

use std::io;

use cli::exit;
use conninfo::ConnectError;
use queue::RunId;
use queue::{QueueError, TaskId};
use tokio_postgres::error::SqlState;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line or a file is wrong.
    #[error("{message}")]
    Usage { message: String, hint: Option<String> },
    /// The request was refused before a connection to the database was opened.
    #[error("{message}")]
    Refused { message: String, hint: Option<String> },
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
            Self::InSession { error, .. } => exit::of(error),
            Self::InDoubt(_)
            | Self::RunInDoubt(_)
            | Self::LostTask { .. }
            | Self::LostRun { .. }
            | Self::TaskGone(_)
            | Self::Output(_) => exit::FAILURE,
        }
    }

    /// Returns the DETAIL of a server error.
    pub(crate) fn detail(&self) -> Option<&str> {
        match self {
            Self::Database(error) => error.detail(),
            Self::InSession { error, .. } => error.detail(),
            _ => None,
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } | Self::Refused { hint, .. } => hint.clone(),
            Self::Connect(error) => error.hint(),
            // Errors that the schema raises have hints of their own.
            Self::Database(error) if lacks_privilege(error) && error.hint().is_none() => Some(
                "Submitting requires the role mill_producer. --wait reads tasks and history, and \
                 also requires mill_viewer."
                    .to_owned(),
            ),
            Self::Database(error) => error.hint(),
            Self::InDoubt(_) => Some(
                "With --key the command can be repeated safely while the task is live.".to_owned(),
            ),
            Self::RunInDoubt(_) => Some("pgmill run list shows the last runs.".to_owned()),
            Self::LostTask { id, .. } => Some(format!("pgmill task show {id}")),
            Self::LostRun { id, .. } => Some(format!("pgmill run show {id}")),
            Self::InSession { .. } | Self::TaskGone(_) | Self::Output(_) => None,
        }
    }
}

impl From<Failure> for cli::Failure {
    fn from(failure: Failure) -> Self {
        let ended = Self::new(failure.exit_code(), failure.to_string()).detail(failure.detail());
        match failure.hint() {
            Some(hint) => ended.hint(hint),
            None => ended,
        }
    }
}

fn lacks_privilege(error: &QueueError) -> bool {
    error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
}
