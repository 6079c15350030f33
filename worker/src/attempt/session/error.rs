//! Reasons why a session for tasks could not be opened.

use conninfo::ConnectError;
use queue::QueueError;
use tokio_postgres::Error;

/// Reason why a session could not be opened.
#[derive(Debug)]
pub(crate) enum SessionError {
    /// The database is unreachable, does not answer, or reported an error.
    Queue(QueueError),
    /// The login of this name is a superuser.
    Superuser(String),
    /// This target is not the queue's database.
    OtherDatabase(String),
}

impl SessionError {
    /// Returns whether the error remains until the configuration changes.
    pub(crate) fn lasting(&self) -> bool {
        matches!(self, Self::Superuser(_) | Self::OtherDatabase(_))
    }
}

impl std::fmt::Display for SessionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Queue(error) => error.fmt(f),
            Self::Superuser(login) => {
                write!(f, "tasks would run as \"{login}\", which is a superuser")
            }
            Self::OtherDatabase(target) => {
                write!(f, "tasks would run in another database than the queue: {target}")
            }
        }
    }
}

impl From<ConnectError> for SessionError {
    fn from(error: ConnectError) -> Self {
        Self::Queue(error.into())
    }
}

impl From<Error> for SessionError {
    fn from(error: Error) -> Self {
        Self::Queue(error.into())
    }
}

impl From<QueueError> for SessionError {
    fn from(error: QueueError) -> Self {
        Self::Queue(error)
    }
}

impl From<SessionError> for QueueError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Queue(error) => error,
            SessionError::OtherDatabase(_) => Self::Refused {
                message: error.to_string(),
                hint: Some(
                    "A task and its completion commit in one transaction. Use the same server and \
                     database in --task-url and [run_as.NAME] as in --database-url."
                        .to_owned(),
                ),
            },
            SessionError::Superuser(_) => Self::Refused {
                message: error.to_string(),
                hint: Some(
                    "Use a separate login for tasks: CREATE ROLE mill_tasks LOGIN PASSWORD '…'; \
                     GRANT … ON your own tables TO mill_tasks; worker --task-url \
                     'postgres://mill_tasks@…'. If only trusted users enqueue tasks, \
                     --allow-superuser permits it."
                        .to_owned(),
                ),
            },
        }
    }
}
