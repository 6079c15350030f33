//! Connection pool of the console. Reads run in short read-only transactions with a statement
//! timeout.

use std::time::Duration;

use conninfo::{ConnectError, ConnectionTarget, pool_error, pool_manager};
use deadpool_postgres::{Object, Pool, RecyclingMethod, Runtime, Transaction};
use queue::insight::viewer;
use queue::{QueueError, audit, schema};
use tokio_postgres::IsolationLevel;
use tokio_postgres::error::SqlState;

/// Maximum number of sessions: enough for a few users with concurrent requests.
const MAX_SESSIONS: usize = 6;

/// Time limit for obtaining a session or a connection.
const POOL_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of a read transaction, which limit its load. JIT is off because compilation takes
/// longer than these reads.
const READ_SETTINGS: &str = "/* console.read */
SET LOCAL statement_timeout = '2s'; SET LOCAL lock_timeout = '1s'; SET LOCAL jit = off";

/// Settings of a write transaction. It may wait for row locks, which a worker holds briefly while
/// it finishes a task.
const WRITE_SETTINGS: &str =
    "/* console.write */ SET LOCAL statement_timeout = '20s'; SET LOCAL lock_timeout = '5s'";

const LOGIN: &str = "/* console.login */ SELECT current_user::text";

/// The connection pool.
pub(crate) struct Database {
    pool: Pool,
}

/// A session that serves one request.
pub(crate) struct Session(Object);

impl Database {
    pub(crate) fn new(target: &ConnectionTarget) -> Result<Self, ConnectError> {
        let pool = Pool::builder(pool_manager(target, RecyclingMethod::Verified))
            .max_size(MAX_SESSIONS)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(POOL_TIMEOUT))
            .create_timeout(Some(POOL_TIMEOUT))
            .recycle_timeout(Some(POOL_TIMEOUT))
            .build()
            .map_err(|error| ConnectError::Unreachable {
                server: "the pool".to_owned(),
                reason: error.to_string(),
            })?;
        Ok(Self { pool })
    }

    /// Checks that the schema version matches and that the login may read the queue.
    pub(crate) async fn check(&self) -> Result<(), QueueError> {
        let mut session = self.session().await?;
        let tx = session.begin_read().await?;
        let login: String = tx.query_typed(LOGIN, &[]).await?[0].try_get(0)?;
        match may_read(&tx).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            // Without any privilege on the schema, not even the version can be read.
            Err(error) if error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {}
            Err(error) => return Err(error),
        }
        Err(QueueError::Refused {
            message: format!("login \"{login}\" is not allowed to read the queue"),
            hint: Some(format!("GRANT mill_viewer TO \"{login}\", or mill_operator for actions")),
        })
    }

    pub(crate) async fn session(&self) -> Result<Session, QueueError> {
        let object = self.pool.get().await.map_err(pool_error)?;
        Ok(Session(object))
    }
}

/// Checks the schema version, and returns whether the login may read the queue.
async fn may_read(tx: &Transaction<'_>) -> Result<bool, QueueError> {
    schema::check_version(&**tx).await?;
    Ok(viewer::viewer(&**tx).await?.can_read)
}

impl Session {
    /// Begins a read-only transaction with a statement timeout of two seconds.
    pub(crate) async fn begin_read(&mut self) -> Result<Transaction<'_>, QueueError> {
        let tx = self.0.build_transaction().read_only(true).start().await?;
        tx.batch_execute(READ_SETTINGS).await?;
        Ok(tx)
    }

    /// Like [`Self::begin_read`], with one snapshot for all statements (REPEATABLE READ).
    pub(crate) async fn begin_snapshot(&mut self) -> Result<Transaction<'_>, QueueError> {
        let level = IsolationLevel::RepeatableRead;
        let builder = self.0.build_transaction().read_only(true).isolation_level(level);
        let tx = builder.start().await?;
        tx.batch_execute(READ_SETTINGS).await?;
        Ok(tx)
    }

    /// Begins a writing transaction; the audit log records `actor`.
    pub(crate) async fn begin_write(&mut self, actor: &str) -> Result<Transaction<'_>, QueueError> {
        let tx = self.0.build_transaction().start().await?;
        tx.batch_execute(WRITE_SETTINGS).await?;
        audit::set_actor(&*tx, actor).await?;
        Ok(tx)
    }

    /// Notifies workers after a commit that tasks may be available. Errors are ignored, because the
    /// next poll of the workers finds the tasks anyway.
    pub(crate) async fn notify_workers(&self) {
        drop(queue::enqueue::notify(&**self.0).await);
    }
}
