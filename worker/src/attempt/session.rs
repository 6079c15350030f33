//! The session of a reader: separate from the control sessions, used by one task at a time, and
//! reset between tasks.

mod error;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock};

use conninfo::{Connection, ConnectionTarget};
use fleet_decisions::timing::SESSION_TIMEOUT;
use futures_util::{TryStreamExt, future};
use postgres_protocol::escape::escape_literal;
use queue::claim::SessionIdentity;
use queue::server::{Server, server};
use queue::{Claim, Isolation, QueueError};
use tokio::time::timeout;
use tokio_postgres::{
    AsyncMessage, Client, Error, SimpleQueryMessage, SimpleQueryRow, SimpleQueryStream,
};
use tokio_util::sync::CancellationToken;

use crate::attempt::output::notices::Notices;
use crate::attempt::supervise::Canceller;
use crate::context::reader_sessions::Connected;
use crate::control::Control;
use crate::login::Login;
use crate::shutdown::Tasks;

pub(crate) use error::SessionError;

pub(crate) const BEGIN: &str = "BEGIN /* worker.begin */ READ WRITE";
pub(crate) const XACT: &str = "pg_catalog.pg_current_xact_id()";

/// Names are qualified, because the search_path of the login may contain functions of tasks.
const IDENTITY: &str = "SELECT /* worker.identity */ a.pid, a.backend_start,
    pg_catalog.current_setting('application_name'),
    pg_catalog.current_setting('standard_conforming_strings') = 'on',
    (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = session_user), session_user::text,
    (SELECT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_extension e
        JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'dblink'),
    EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tginitdeferred AND NOT t.tgisinternal)
FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) AS a";

/// Discards all state that a task leaves in its session: cursors, role, settings, prepared
/// statements, LISTEN, temporary tables, sequence values, locks. DISCARD ALL would also drop cached
/// plans, which contain nothing of the task. Planning the completion again for each task took ten
/// times as long (0.49 ms) as executing it.
pub(crate) const RESET_SESSION: &str = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; DEALLOCATE ALL; \
    UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES";
pub(crate) const UNLOCK: &str = "pg_catalog.pg_advisory_unlock_all()";

/// First column of the result set that marks the boundary between two tasks. All results before
/// this result set belong to the first task. The name is random, so that no task can use it.
pub(crate) static TASK_BOUNDARY: LazyLock<String> =
    LazyLock::new(|| format!("mill_task_boundary_{:016x}", rand::random::<u64>()));

/// Savepoint at the start of each task of a shared commit.
const SAVEPOINT: &str = "SAVEPOINT mill_task";

/// A transaction that was opened by the message that also contains the statement, and possibly the
/// COMMIT of the task before.
///
/// One message instead of two: if BEGIN fails, for example because a cancel request for an earlier
/// statement arrives late, the server skips the rest of the message. It would execute a second
/// message, outside of a transaction, and so commit its effects.
pub(crate) struct OpenedTransaction {
    /// Answers to the message.
    pub(crate) answers: Pin<Box<SimpleQueryStream>>,
    /// Number of commands up to COMMIT that the answers still contain.
    pub(crate) until_commit: usize,
    /// Number of characters of the message before the statement.
    pub(crate) offset: usize,
}

impl OpenedTransaction {
    /// Reads the answers up to that of COMMIT. The server may send it only together with the answer
    /// to the statement, because it sends answers when the whole message is executed. Dropping
    /// the future loses no answer.
    ///
    /// # Errors
    /// Returns the error of the completion, of COMMIT or of the connection.
    pub(crate) async fn read_commit(&mut self) -> Result<(), Error> {
        while self.until_commit > 0 {
            match self.answers.try_next().await? {
                Some(SimpleQueryMessage::CommandComplete(_)) => self.until_commit -= 1,
                Some(_) => {}
                None => break,
            }
        }
        Ok(())
    }
}

/// An open session under a task login.
pub(crate) struct Session {
    client: Client,
    identity: SessionIdentity,
    /// The session's application_name.
    name: String,
    standard_strings: bool,
    /// Schema of the extension dblink, if installed. Its connections survive every reset.
    dblink: Option<String>,
    /// Whether the database has triggers that run at COMMIT, with the settings of that time.
    pub(crate) defers_triggers: bool,
    target: ConnectionTarget,
    notices: Notices,
    server: Server,
    /// Control sessions in the session's database.
    pub(crate) host: Arc<Control>,
    closed: CancellationToken,
    /// Name of the login.
    user: String,
    /// Counts the session among those of the readers, if a reader has it.
    pub(crate) counted: Option<Connected>,
    /// Whether the next task needs a new session, because this session may have state that a reset
    /// does not discard.
    retired: bool,
}

impl Session {
    /// Connects. One of the `tasks` drives the connection and collects the notices, until
    /// the worker is registered at another server.
    ///
    /// The server is unreachable or refuses the connection. The database is not the queue's. The
    /// login is a superuser, and superusers are not allowed.
    pub(crate) async fn open(login: &Login, tasks: &Tasks) -> Result<Self, SessionError> {
        let opened = Self::open_in_time(login, tasks);
        timeout(SESSION_TIMEOUT, opened)
            .await
            .map_err(|_| QueueError::NoAnswer { within: SESSION_TIMEOUT })?
    }

    async fn open_in_time(login: &Login, tasks: &Tasks) -> Result<Self, SessionError> {
        let registration = login.host.registration();
        let end = registration.end_of_session();
        let with_setting =
            |target: ConnectionTarget, (name, value)| target.with_option(name, value);
        let target = DEFAULT_TASK_SETTINGS.into_iter().fold(login.target.clone(), with_setting);
        let (client, connection) = conninfo::open(&target).await?;
        let notices = Notices::default();
        let closed = CancellationToken::new();
        let driven = drive(connection, notices.clone(), closed.clone());
        tasks.spawn(async move {
            let _ = end.run_until_cancelled_owned(driven).await;
        });
        let server = server(&client).await?;
        if !registration.same_database(&server) {
            return Err(SessionError::OtherDatabase(login.target.to_string()));
        }
        // The server shows the start time of the backend to the login, but not to a role that the login
        // assumes by default (ALTER ROLE … SET role).
        let (begun, rows, ended) = future::join3(
            client.batch_execute("BEGIN; SET LOCAL ROLE NONE"),
            client.query_typed(IDENTITY, &[]),
            client.batch_execute("COMMIT /* worker.identity_read */"),
        )
        .await;
        begun?;
        let row = &rows?[0];
        ended?;
        let identity = SessionIdentity { pid: row.try_get(0)?, started_at: row.try_get(1)? };
        let (name, standard_strings) = (row.try_get(2)?, row.try_get(3)?);
        let user: String = row.try_get(5)?;
        if row.try_get(4)? && !login.superuser_allowed {
            return Err(SessionError::Superuser(user));
        }
        if login.host.is_in_target() {
            queue::receipt::check(&client).await?;
        }
        Ok(Self {
            client,
            identity,
            name,
            standard_strings,
            dblink: row.try_get(6)?,
            defers_triggers: row.try_get(7)?,
            target,
            notices,
            server,
            host: Arc::clone(&login.host),
            closed,
            user,
            counted: None,
            retired: false,
        })
    }

    /// Returns the backend's pid and start time.
    pub(crate) fn identity(&self) -> SessionIdentity {
        self.identity
    }

    /// Returns the name of the login.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// Returns the session's server and database.
    pub(crate) fn server(&self) -> Server {
        self.server
    }

    /// Returns the target to which the session is connected.
    pub(crate) fn target(&self) -> &ConnectionTarget {
        &self.target
    }

    /// Returns the client, for the task's own statements.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the notices of the running task.
    pub(crate) fn notices(&self) -> &Notices {
        &self.notices
    }

    /// Returns whether the connection is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.closed.is_cancelled()
    }

    /// Resolves when the connection is closed.
    pub(crate) async fn ended(&self) {
        self.closed.cancelled().await;
    }

    /// Returns whether another statement may run in the session.
    pub(crate) fn is_usable(&self) -> bool {
        !self.retired && !self.is_closed()
    }

    /// Marks the session as not reusable for another task.
    pub(crate) fn retire(&mut self) {
        self.retired = true;
    }

    /// Opens the task's transaction and sets the task's settings. Returns the transaction id.
    pub(crate) async fn begin(&self, claim: &Claim) -> Result<String, Error> {
        let answers = self.client.simple_query_raw(&begin_message(claim)).await?;
        Ok(last_value(answers).await?.unwrap_or_default())
    }

    /// As [`Session::begin`], and executes the statement. Does not wait for the answer.
    pub(crate) async fn begin_with_statement(
        &self,
        claim: &Claim,
    ) -> Result<OpenedTransaction, Error> {
        let begin = format!("{};\n", begin_message(claim));
        let message = format!("{begin}{}", claim.with_comment(claim.statement()));
        let answers = Box::pin(self.client.simple_query_raw(&message).await?);
        Ok(OpenedTransaction { answers, until_commit: 0, offset: begin.chars().count() })
    }

    /// As [`Session::begin`], for the first task of a shared commit. Does not wait for the answer.
    pub(crate) async fn begin_shared(&self, claim: &Claim) -> Result<SimpleQueryStream, Error> {
        let begin = format!("{BEGIN}; {SAVEPOINT}; SELECT {}, {XACT}", self.begin_task(claim));
        self.client.simple_query_raw(&begin).await
    }

    /// Sends a statement of a shared commit. If there is another task, the same message contains
    /// the boundary between the tasks. No state crosses the boundary except the transaction itself.
    ///
    /// If the statement fails, the server does not execute the boundary, so the last savepoint is
    /// still that of the failed task. If BEGIN has failed, the release of the savepoint fails too, and
    /// undoes the statement.
    pub(crate) async fn send_shared(
        &self,
        statement: &str,
        next: Option<&Claim>,
    ) -> Result<SimpleQueryStream, Error> {
        let Some(next) = next else {
            // The reset keeps settings of this task, such as synchronous_commit, from the COMMIT of all.
            let last = format!("{statement}\n; {RESET_SESSION}; RELEASE {SAVEPOINT}");
            return self.client.simple_query_raw(&last).await;
        };
        let statement = format!(
            "{statement}\n; {RESET_SESSION}; RELEASE {SAVEPOINT}; {SAVEPOINT}; \
             SELECT {UNLOCK} AS {}, {}",
            *TASK_BOUNDARY,
            self.begin_task(next)
        );
        self.client.simple_query_raw(&statement).await
    }

    /// Rolls back the last task of a shared commit and no other task. Also discards session state
    /// that a rollback to a savepoint does not restore.
    pub(crate) async fn roll_back_last(&self) -> Result<(), Error> {
        let rollback = format!(
            "ROLLBACK /* worker.rollback_task */ TO {SAVEPOINT}; {RESET_SESSION}; SELECT {UNLOCK}"
        );
        self.client.batch_execute(&rollback).await
    }

    /// Begins the next task after a rollback. Does not wait for the answer.
    pub(crate) async fn begin_next(&self, claim: &Claim) -> Result<SimpleQueryStream, Error> {
        let begin = format!("SELECT /* worker.begin_next */ {}", self.begin_task(claim));
        self.client.simple_query_raw(&begin).await
    }

    fn begin_task(&self, claim: &Claim) -> String {
        let named = set("application_name", &self.owner(claim), true);
        format!("{}, {named}", task_settings(claim, true))
    }

    /// Returns the application_name of the session while it runs this task in a shared commit. The
    /// server reports each change of application_name to the client, after the notices of one task
    /// and before those of the next.
    pub(crate) fn owner(&self, claim: &Claim) -> String {
        format!("{} task {}", self.name, claim.id())
    }

    /// Returns whether tasks may share a transaction in this session. Two conditions apply. The
    /// session must parse string literals as the scanner does, so that no task hides a COMMIT from
    /// the scanner. All state that a task leaves must be discardable inside a transaction, which is
    /// not possible for connections of dblink. In a target, each task has a transaction of its own.
    pub(crate) fn may_share(&self) -> bool {
        self.standard_strings && self.dblink.is_none() && !self.host.is_in_target()
    }

    /// Sets the settings of a task that has no transaction of its own. Its isolation level is the
    /// default of the transactions that the statement opens.
    pub(crate) async fn set_task_settings(&self, claim: &Claim) -> Result<(), Error> {
        let level = claim.isolation().map(|level| {
            format!("; SET SESSION CHARACTERISTICS AS TRANSACTION{}", isolation_level(level))
        });
        self.client
            .batch_execute(&format!(
                "SELECT /* worker.set_task_settings */ {}{}",
                task_settings(claim, false),
                level.unwrap_or_default()
            ))
            .await
    }

    /// Rolls back an open transaction and discards all state of the task. Sends two messages, so
    /// that the second one is executed even if the first one fails.
    pub(crate) async fn reset(&mut self) {
        let reset = future::join(self.client.batch_execute("ROLLBACK"), self.discard_state());
        let done = timeout(SESSION_TIMEOUT, reset).await;
        self.retired |= done.is_err() || done.is_ok_and(|(ended, rest)| ended.and(rest).is_err());
    }

    async fn discard_state(&self) -> Result<(), Error> {
        self.client
            .batch_execute(&format!("{RESET_SESSION}; SELECT /* worker.reset_session */ {UNLOCK}"))
            .await
    }

    /// Returns the session if another task may use it.
    pub(crate) async fn reusable(self) -> Option<Self> {
        if !self.retired
            && let Some(schema) = &self.dblink
            && !matches!(
                timeout(SESSION_TIMEOUT, self.client.batch_execute(&disconnect(schema))).await,
                Ok(Ok(()))
            )
        {
            return None;
        }
        self.notices.take();
        self.is_usable().then_some(self)
    }

    /// Returns a value that cancels the running statement.
    pub(crate) fn canceller(&self) -> Canceller {
        Canceller { token: self.client.cancel_token(), target: self.target.clone() }
    }
}

/// Settings that describe the task, with their most common values. The session starts with these
/// values and is reset to them, so that they need not be sent for each task.
const DEFAULT_TASK_SETTINGS: [(&str, &str); 3] =
    [("mill.attempt", "1"), ("mill.queue", "default"), ("mill.name", "")];

/// Returns SELECT expressions that set the task's settings. The SQL of the task can read them, for
/// example with `current_setting('mill.task_id')`. `local` settings last until the end of the
/// transaction, other settings until the reset after the task. SET would be some microseconds
/// faster, but pg_stat_statements would keep an entry for each different value.
pub(crate) fn task_settings(claim: &Claim, local: bool) -> String {
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

/// Returns the message that opens the task's transaction. The transaction is READ WRITE, whatever the
/// database's default, because the completion writes in it.
fn begin_message(claim: &Claim) -> String {
    let level = claim.isolation().map(isolation_level).unwrap_or_default();
    format!("{BEGIN}{level}; SELECT {}, {XACT}", task_settings(claim, true))
}

fn isolation_level(level: Isolation) -> &'static str {
    match level {
        Isolation::ReadCommitted => " ISOLATION LEVEL READ COMMITTED",
        Isolation::RepeatableRead => " ISOLATION LEVEL REPEATABLE READ",
        Isolation::Serializable => " ISOLATION LEVEL SERIALIZABLE",
    }
}

fn set(setting: &str, value: &str, local: bool) -> String {
    format!("pg_catalog.set_config('{setting}', {}, {local})", escape_literal(value))
}

/// Returns the last column of the last row.
///
/// # Errors
/// Returns the error of the server or the connection.
pub(crate) async fn last_value(answers: SimpleQueryStream) -> Result<Option<String>, Error> {
    let mut answers = pin!(answers);
    let mut value = None;
    while let Some(answer) = answers.try_next().await? {
        if let SimpleQueryMessage::Row(row) = answer {
            value = last_column(&row)?;
        }
    }
    Ok(value)
}

/// Returns the last column of a row.
///
/// # Errors
/// The value is not valid UTF-8, because it was damaged on the way.
pub(crate) fn last_column(row: &SimpleQueryRow) -> Result<Option<String>, Error> {
    let Some(last) = row.len().checked_sub(1) else { return Ok(None) };
    Ok(row.try_get(last)?.map(str::to_owned))
}

/// Returns SQL that closes the connections of dblink. The unnamed connection comes last, because it
/// may not exist, which is an error (08003).
fn disconnect(schema: &str) -> String {
    format!(
        "DO /* worker.disconnect_dblink */ $mill$
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

/// Drives the connection and collects the notices.
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
