//! The session of a reader: apart from the control sessions, used by one task at a time, and clean
//! between tasks.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use futures_util::{TryStreamExt, future};
use postgres_protocol::escape::escape_literal;
use queue::claim::SessionIdentity;
use queue::complete::{Success, complete};
use queue::connect::{ConnectError, Connection, Target};
use queue::server::{Server, server};
use queue::{Claim, QueueError};
use tokio::time::timeout;
use tokio_postgres::{
    AsyncMessage, CancelToken, Client, Error, SimpleQueryMessage, SimpleQueryStream,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::login::Login;
use crate::notices::Notices;
use crate::registration::Registration;

const BEGIN: &str = "/* worker.begin */ BEGIN READ WRITE";
const XACT: &str = "pg_catalog.pg_current_xact_id()";

const IDENTITY: &str = "/* worker.identity */
SELECT a.pid, a.backend_start, current_setting('application_name'),
    current_setting('standard_conforming_strings') = 'on',
    (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user), session_user::text,
    (SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'dblink')
FROM pg_stat_get_activity(pg_backend_pid()) AS a";

/// Forgets all that a task leaves in its session: cursors, role, settings, prepared statements, LISTEN,
/// temporary tables, sequence values, locks. DISCARD ALL does the same and drops cached plans too,
/// which hold nothing of the task's: planning the completion anew each time took ten times as long
/// (0.49 ms) as running it.
const RESET_SESSION: &str = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; DEALLOCATE ALL; \
    UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES";
const UNLOCK: &str = "pg_catalog.pg_advisory_unlock_all()";

/// First column of the one result set at the border between two tasks: what comes before is the
/// task's.
pub(crate) const TASK_BOUNDARY: &str = "mill_task_boundary";

/// Where a task of a shared transaction begins.
const SAVEPOINT: &str = "SAVEPOINT mill_task";

/// How a transaction ended.
pub(crate) struct CommitResult {
    /// Whether what the tasks did is committed.
    pub(crate) committed: Result<(), Error>,
    /// Nothing of the tasks is left in the session.
    pub(crate) clean: bool,
}

/// For what a session does outside of a task.
const PATIENCE: Duration = Duration::from_secs(60);

/// A live connection under the login of the tasks.
pub(crate) struct Session {
    client: Client,
    identity: SessionIdentity,
    /// Its application_name.
    name: String,
    standard_strings: bool,
    /// The schema of dblink, if the database has it: its connections survive every reset.
    dblink: Option<String>,
    target: Target,
    notices: Notices,
    server: Server,
    closed: CancellationToken,
    /// The next task gets a new session: something may be left behind that a reset does not reach.
    retired: bool,
}

impl Session {
    /// Connects. The connection is driven by a task of `tracker`, which keeps the notices, until the
    /// worker comes to be registered at another server.
    ///
    /// # Errors
    /// Why the server could not be reached, or what it refused; another database than the queue's; a
    /// superuser's login, unless that is allowed.
    pub(crate) async fn open(
        login: &Login,
        registration: &Registration,
        tracker: &TaskTracker,
    ) -> Result<Self, SessionError> {
        let opened = Self::open_in_time(login, registration, tracker);
        timeout(PATIENCE, opened).await.map_err(|_| SessionError::NoAnswer)?
    }

    async fn open_in_time(
        login: &Login,
        registration: &Registration,
        tracker: &TaskTracker,
    ) -> Result<Self, SessionError> {
        let end = registration.end_of_session();
        let with_setting = |target: Target, (name, value)| target.with_option(name, value);
        let target = DEFAULT_TASK_SETTINGS.into_iter().fold(login.target.clone(), with_setting);
        let (client, connection) = queue::connect::open(&target).await?;
        let notices = Notices::default();
        let closed = CancellationToken::new();
        let driven = drive(connection, notices.clone(), closed.clone());
        tracker.spawn(end.run_until_cancelled_owned(driven));
        let server = server(&client).await?;
        if !registration.same_database(&server) {
            return Err(SessionError::OtherDatabase(login.target.to_string()));
        }
        let rows = client.query_typed(IDENTITY, &[]).await?;
        let identity = SessionIdentity { pid: rows[0].get(0), started_at: rows[0].get(1) };
        let (name, standard_strings) = (rows[0].get(2), rows[0].get(3));
        if rows[0].get(4) && !login.superuser_allowed {
            return Err(SessionError::Superuser(rows[0].get(5)));
        }
        Ok(Self {
            client,
            identity,
            name,
            standard_strings,
            dblink: rows[0].get(6),
            target,
            notices,
            server,
            closed,
            retired: false,
        })
    }

    /// Backend pid and start.
    pub(crate) fn identity(&self) -> SessionIdentity {
        self.identity
    }

    /// Where it goes.
    pub(crate) fn server(&self) -> Server {
        self.server
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
    pub(crate) fn retire(&mut self) {
        self.retired = true;
    }

    /// Opens the task's transaction and tells it who it is, in one flight with whatever is sent
    /// next. Returns the transaction's id. The completion writes in it, whatever the database's
    /// default for new transactions is.
    pub(crate) async fn begin(&self, claim: &Claim) -> Result<String, Error> {
        let begin = format!("{BEGIN}; SELECT {}, {XACT}", task_settings(claim, true));
        let answers = self.client.simple_query_raw(&begin).await?;
        Ok(last_value(answers).await?.unwrap_or_default())
    }

    /// As [`Session::begin`], for the first of several tasks in one transaction. Only sends.
    pub(crate) async fn begin_shared(&self, claim: &Claim) -> Result<SimpleQueryStream, Error> {
        let begin = format!("{BEGIN}; {SAVEPOINT}; SELECT {}, {XACT}", self.begin_task(claim));
        self.client.simple_query_raw(&begin).await
    }

    /// Sends a statement of a shared transaction, and after it in the same message the border to the
    /// next task, if one follows: nothing passes it but the transaction itself.
    ///
    /// A statement that fails takes its border along, so that its savepoint is the last one then.
    pub(crate) async fn send_shared(
        &self,
        statement: &str,
        next: Option<&Claim>,
    ) -> Result<SimpleQueryStream, Error> {
        let Some(next) = next else { return self.client.simple_query_raw(statement).await };
        let statement = format!(
            "{statement}\n; {RESET_SESSION}; RELEASE {SAVEPOINT}; {SAVEPOINT}; \
             SELECT {UNLOCK} AS {TASK_BOUNDARY}, {}",
            self.begin_task(next)
        );
        self.client.simple_query_raw(&statement).await
    }

    /// Undoes the last task of a shared transaction, and only that. What no savepoint takes back is
    /// forgotten.
    pub(crate) async fn roll_back_last(&self) -> Result<(), Error> {
        let rollback = format!(
            "/* worker.rollback_task */ ROLLBACK TO {SAVEPOINT}; {RESET_SESSION}; SELECT {UNLOCK}"
        );
        self.client.batch_execute(&rollback).await
    }

    /// The next task takes the place of an undone one. Only sends.
    pub(crate) async fn begin_next(&self, claim: &Claim) -> Result<SimpleQueryStream, Error> {
        let begin = format!("/* worker.begin_next */ SELECT {}", self.begin_task(claim));
        self.client.simple_query_raw(&begin).await
    }

    fn begin_task(&self, claim: &Claim) -> String {
        let named = set("application_name", &self.owner(claim), true);
        format!("{}, {named}", task_settings(claim, true))
    }

    /// What the session is called while it runs the task inside a shared transaction: the server
    /// tells the client of each change, between one task's notices and the next one's.
    pub(crate) fn owner(&self, claim: &Claim) -> String {
        format!("{} task {}", self.name, claim.id())
    }

    /// Whether the scanner reads strings as this session does: where it may not, tasks that slip a
    /// COMMIT past it must not take others along. And whether everything that a task leaves can be
    /// forgotten in the middle of a transaction.
    pub(crate) fn may_share(&self) -> bool {
        self.standard_strings && self.dblink.is_none()
    }

    /// Tells a task without a transaction of its own who it is.
    pub(crate) async fn set_task_settings(&self, claim: &Claim) -> Result<(), Error> {
        self.client
            .batch_execute(&format!(
                "/* worker.set_task_settings */ SELECT {}",
                task_settings(claim, false)
            ))
            .await
    }

    /// Ends whatever is open and forgets all that the task left. Two messages: the second does its
    /// work whatever becomes of the first.
    pub(crate) async fn reset(&mut self) {
        let reset = future::join(self.client.batch_execute("ROLLBACK"), self.discard_state());
        let done = timeout(PATIENCE, reset).await;
        self.retired |= done.is_err() || done.is_ok_and(|(ended, rest)| ended.and(rest).is_err());
    }

    /// The completions, COMMIT and the reset in one flight. A completion that fails aborts the
    /// transaction, and COMMIT ends an aborted transaction by rolling it back.
    pub(crate) async fn complete_and_commit(
        &self,
        successes: &[Success<'_>],
        xact: &str,
    ) -> CommitResult {
        let (completed, (ended, all)) =
            future::join(complete(&self.client, successes, Some(xact)), self.commit()).await;
        let clean = all.is_ok();
        let committed = completed.and(if ended { Ok(()) } else { all });
        CommitResult { committed, clean }
    }

    async fn discard_state(&self) -> Result<(), Error> {
        self.client
            .batch_execute(&format!("/* worker.reset_session */ {RESET_SESSION}; SELECT {UNLOCK}"))
            .await
    }

    /// COMMIT and the reset after it, in one message. `true`: COMMIT was carried out, whatever became
    /// of the reset.
    async fn commit(&self) -> (bool, Result<(), Error>) {
        let mut ended = false;
        let all = async {
            let commit = format!("/* worker.commit */ COMMIT; {RESET_SESSION}; SELECT {UNLOCK}");
            let mut answers = pin!(self.client.simple_query_raw(&commit).await?);
            while answers.try_next().await?.is_some() {
                ended = true;
            }
            Ok(())
        };
        let all = all.await;
        (ended, all)
    }

    /// The session, if another task may use it.
    pub(crate) async fn reusable(self) -> Option<Self> {
        if !self.retired
            && let Some(schema) = &self.dblink
            && !matches!(
                timeout(PATIENCE, self.client.batch_execute(&disconnect(schema))).await,
                Ok(Ok(()))
            )
        {
            return None;
        }
        self.notices.take();
        (!self.retired && !self.is_closed()).then_some(self)
    }

    /// By what the running statement can be cancelled.
    pub(crate) fn canceller(&self) -> Canceller {
        Canceller { token: self.client.cancel_token(), target: self.target.clone() }
    }
}

/// What a task reads of itself, and what most tasks read: the session starts with that and is reset to
/// it, so that it need not be told.
const DEFAULT_TASK_SETTINGS: [(&str, &str); 3] =
    [("mill.attempt", "1"), ("mill.queue", "default"), ("mill.name", "")];

/// Readable by the task's SQL: `current_setting('mill.task_id')`. `local`: until the transaction's end,
/// else until the reset after the task. Expressions for a SELECT, in one message with what stands before
/// it; SET would be faster by some microseconds, but pg_stat_statements keeps an entry for each of its
/// texts.
fn task_settings(claim: &Claim, local: bool) -> String {
    let mut settings = set("mill.task_id", &claim.id().to_string(), local);
    let attempt = claim.attempt().to_string();
    let values = [attempt.as_str(), claim.queue(), claim.name().unwrap_or_default()];
    for ((setting, default), value) in DEFAULT_TASK_SETTINGS.into_iter().zip(values) {
        if value != default {
            settings.push_str(", ");
            settings.push_str(&set(setting, value, local));
        }
    }
    settings
}

fn set(setting: &str, value: &str, local: bool) -> String {
    format!("pg_catalog.set_config('{setting}', {}, {local})", escape_literal(value))
}

/// The last column of the last row.
///
/// # Errors
/// The server's or the connection's.
pub(crate) async fn last_value(answers: SimpleQueryStream) -> Result<Option<String>, Error> {
    let mut answers = pin!(answers);
    let mut value = None;
    while let Some(answer) = answers.try_next().await? {
        if let SimpleQueryMessage::Row(row) = answer {
            value = row.get(row.len() - 1).map(str::to_owned);
        }
    }
    Ok(value)
}

/// Ends the connections of dblink, the one without a name last: there may be none (08003).
fn disconnect(schema: &str) -> String {
    format!(
        "/* worker.disconnect_dblink */ DO $mill$
DECLARE
    named text;
BEGIN
    FOREACH named IN ARRAY coalesce({schema}.dblink_get_connections(), '{{}}') LOOP
        PERFORM {schema}.dblink_disconnect(named);
    END LOOP;
    PERFORM {schema}.dblink_disconnect();
EXCEPTION WHEN connection_does_not_exist THEN
    NULL;
END
$mill$"
    )
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
        let sent = timeout(patience, queue::connect::cancel(&self.token, &self.target));
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
    Queue(QueueError),
    /// The login of this name is one.
    Superuser(String),
    /// This target is another database than the queue's.
    OtherDatabase(String),
    /// The server accepted the connection and said nothing.
    NoAnswer,
    /// The worker is registered at another server by now.
    Moved,
}

impl SessionError {
    /// Whether only another configuration helps.
    pub(crate) fn lasting(&self) -> bool {
        matches!(self, Self::Superuser(_) | Self::OtherDatabase(_))
    }
}

impl std::fmt::Display for SessionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(error) => f.write_str(&queue::chain(error)),
            Self::Query(error) => f.write_str(&queue::database_message(error)),
            Self::Queue(error) => error.fmt(f),
            Self::Superuser(login) => {
                write!(f, "tasks would run as \"{login}\", who is superuser")
            }
            Self::OtherDatabase(target) => {
                write!(f, "tasks would run in another database than the queue's: {target}")
            }
            Self::NoAnswer => write!(f, "no answer from the server within {PATIENCE:?}"),
            Self::Moved => f.write_str("the queue is on another server now"),
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

impl From<QueueError> for SessionError {
    fn from(error: QueueError) -> Self {
        Self::Queue(error)
    }
}

impl From<SessionError> for QueueError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Connect(error) => Self::Unreachable(error),
            SessionError::Query(error) => Self::Database(error),
            SessionError::Queue(error) => error,
            SessionError::NoAnswer => Self::NoAnswer { within: PATIENCE },
            SessionError::Moved => Self::Refused { message: error.to_string(), hint: None },
            SessionError::OtherDatabase(_) => Self::Refused {
                message: error.to_string(),
                hint: Some(
                    "a task and its completion commit in one transaction: let --task-url and [run_as.NAME] \
                     name the same server and database as --database-url"
                        .to_owned(),
                ),
            },
            SessionError::Superuser(_) => Self::Refused {
                message: error.to_string(),
                hint: Some(
                    "Give tasks a login of their own: CREATE ROLE mill_tasks LOGIN PASSWORD '…'; \
                     GRANT … ON your own tables TO mill_tasks; worker --task-url \
                     'postgres://mill_tasks@…'. Or allow it, where nobody else enqueues: \
                     --allow-superuser"
                        .to_owned(),
                ),
            },
        }
    }
}

/// Moves the bytes and keeps the notices.
async fn drive(mut connection: Connection, notices: Notices, closed: CancellationToken) {
    let _ended = closed.drop_guard();
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                let owner = connection.parameter("application_name").unwrap_or_default();
                notices.push(owner, &notice);
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return,
        }
    }
}
