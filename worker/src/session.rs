//! The session of a reader: apart from the control sessions, used by one task at a time, and clean
//! between tasks.

use std::future::poll_fn;
use std::time::Duration;

use futures_util::future;
use queue::claim::SessionIdentity;
use queue::connect::{ConnectError, Connection, Target};
use queue::{Claim, QueueError};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, CancelToken, Client, Error};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::notices::Notices;

const IDENTITY: &str = "/* worker.identity */
SELECT a.pid, a.backend_start FROM pg_stat_get_activity(pg_backend_pid()) AS a";

/// Readable by the task's SQL: `current_setting('mill.task_id')`. `true`: until the transaction's
/// end; `false`: until the reset after the task.
const ANNOUNCE: &str = "/* worker.announce */
SELECT set_config('mill.task_id', $1, $5), set_config('mill.attempt', $2, $5),
    set_config('mill.queue', $3, $5), set_config('mill.name', $4, $5),
    CASE WHEN $5 THEN pg_current_xact_id()::text END";

/// A live connection under the login of the tasks.
pub(crate) struct Session {
    client: Client,
    identity: SessionIdentity,
    target: Target,
    notices: Notices,
    closed: CancellationToken,
    /// The next task gets a new session: something may be left behind that a reset does not reach.
    spent: bool,
}

impl Session {
    /// Connects. The connection is driven by a task of `tracker`, which keeps the notices.
    ///
    /// # Errors
    /// Why the server could not be reached, or what it refused.
    pub(crate) async fn open(target: &Target, tracker: &TaskTracker) -> Result<Self, SessionError> {
        let (client, connection) = queue::connect::open(target).await?;
        let notices = Notices::default();
        let closed = CancellationToken::new();
        tracker.spawn(drive(connection, notices.clone(), closed.clone()));
        let rows = client.query_typed(IDENTITY, &[]).await?;
        let identity = SessionIdentity { pid: rows[0].get(0), started_at: rows[0].get(1) };
        let target = target.clone();
        Ok(Self { client, identity, target, notices, closed, spent: false })
    }

    /// Backend pid and start.
    pub(crate) fn identity(&self) -> SessionIdentity {
        self.identity
    }

    /// The client, for the task's own statements.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// What the running task has raised.
    pub(crate) fn notices(&self) -> &Notices {
        &self.notices
    }

    /// Whether the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.closed.is_cancelled()
    }

    /// Resolves when the connection has ended.
    pub(crate) async fn ended(&self) {
        self.closed.cancelled().await;
    }

    /// No task comes after this one.
    pub(crate) fn spend(&mut self) {
        self.spent = true;
    }

    /// Opens the task's transaction and tells it who it is, in one flight with whatever is sent
    /// next. Returns the transaction's id. The completion writes in it, whatever the database's
    /// default for new transactions is.
    pub(crate) async fn begin(&self, claim: &Claim) -> Result<String, Error> {
        let (begun, announced) =
            future::join(self.client.batch_execute("BEGIN READ WRITE"), self.announce(claim, true))
                .await;
        begun?;
        announced.map(Option::unwrap_or_default)
    }

    /// Tells the task who it is; `local`: in the open transaction, whose id is returned.
    pub(crate) async fn announce(
        &self,
        claim: &Claim,
        local: bool,
    ) -> Result<Option<String>, Error> {
        let rows = self
            .client
            .query_typed(
                ANNOUNCE,
                &[
                    (&claim.id().to_string(), Type::TEXT),
                    (&claim.attempt().to_string(), Type::TEXT),
                    (&claim.queue(), Type::TEXT),
                    (&claim.name().unwrap_or_default(), Type::TEXT),
                    (&local, Type::BOOL),
                ],
            )
            .await?;
        rows[0].try_get(4)
    }

    /// Ends whatever is open and forgets all that the task left: role, settings, temporary tables,
    /// locks, LISTEN, prepared statements, cursors. Two messages: in one string DISCARD ALL is
    /// refused, as VACUUM is.
    pub(crate) async fn reset(&mut self) {
        let (ended, discarded) = future::join(
            self.client.batch_execute("ROLLBACK"),
            self.client.batch_execute("DISCARD ALL"),
        )
        .await;
        self.spent |= ended.and(discarded).is_err();
    }

    /// The reset of a session whose transaction is known to have ended.
    pub(crate) async fn discard(&self) -> Result<(), Error> {
        self.client.batch_execute("DISCARD ALL").await
    }

    /// The session, if another task may use it.
    pub(crate) fn reusable(self) -> Option<Self> {
        self.notices.take();
        (!self.spent && !self.is_closed()).then_some(self)
    }

    /// By what the running statement can be cancelled.
    pub(crate) fn canceller(&self) -> Canceller {
        Canceller { token: self.client.cancel_token(), target: self.target.clone() }
    }
}

/// Sends cancel requests for one session.
pub(crate) struct Canceller {
    token: CancelToken,
    target: Target,
}

impl Canceller {
    /// Asks the server to cancel what the session runs. It may come too late, and then hits the
    /// session's next statement: a session that was cancelled is never used again.
    pub(crate) async fn cancel(&self, patience: Duration) {
        let sent =
            tokio::time::timeout(patience, queue::connect::cancel(&self.token, &self.target));
        match sent.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "could not send a cancel request"),
            Err(_) => tracing::warn!("a cancel request took longer than {patience:?}"),
        }
    }
}

/// Why there is no session.
#[derive(Debug)]
pub(crate) enum SessionError {
    Connect(ConnectError),
    Query(Error),
}

impl std::fmt::Display for SessionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(error) => f.write_str(&queue::chain(error)),
            Self::Query(error) => f.write_str(&queue::database_message(error)),
        }
    }
}

impl From<ConnectError> for SessionError {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

impl From<Error> for SessionError {
    fn from(error: Error) -> Self {
        Self::Query(error)
    }
}

impl From<SessionError> for QueueError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Connect(error) => Self::Unreachable(error),
            SessionError::Query(error) => Self::Database(error),
        }
    }
}

/// Moves the bytes and keeps the notices.
async fn drive(mut connection: Connection, notices: Notices, closed: CancellationToken) {
    let _ended = closed.drop_guard();
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => notices.push(&notice),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return,
        }
    }
}
