//! Sessions of the database. A look is a read-only transaction that ends soon, whatever it is asked.

use std::time::Duration;

use deadpool_postgres::{Object, Pool, RecyclingMethod, Runtime, Transaction};
use queue::connect::{ConnectError, Target, pool_error, pool_manager};
use queue::insight::viewer;
use queue::{QueueError, audit, schema};
use tokio_postgres::IsolationLevel;

/// A handful of people, each with some requests at once.
const MAX_SESSIONS: usize = 6;

/// Somebody who waits for a session or a connection is told so after this long.
const POOL_TIMEOUT: Duration = Duration::from_secs(5);

/// No look may burden the database for longer. Compiling a statement takes longer than what these read.
const READ_SETTINGS: &str = "/* console.read */
SET LOCAL statement_timeout = '2s'; SET LOCAL lock_timeout = '1s'; SET LOCAL jit = off";

/// Acting waits for row locks, which a finish holds for a moment.
const WRITE_SETTINGS: &str =
    "/* console.write */ SET LOCAL statement_timeout = '20s'; SET LOCAL lock_timeout = '5s'";

/// The pool.
pub(crate) struct Database {
    pool: Pool,
}

/// One session, for one request.
pub(crate) struct Session(Object);

impl Database {
    pub(crate) fn new(target: &Target) -> Result<Self, ConnectError> {
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

    /// Refuses a database that is none of pgmill's, or one that this login may not look at.
    pub(crate) async fn check(&self) -> Result<(), QueueError> {
        let mut session = self.session().await?;
        let tx = session.begin_read().await?;
        schema::check_version(&*tx).await?;
        let viewer = viewer::viewer(&*tx).await?;
        if viewer.can_read {
            return Ok(());
        }
        Err(QueueError::Refused {
            message: format!("the login \"{}\" may not look at the queue", viewer.login),
            hint: Some(format!(
                "GRANT mill_viewer TO \"{}\"; or mill_operator, if it is to act",
                viewer.login
            )),
        })
    }

    pub(crate) async fn session(&self) -> Result<Session, QueueError> {
        let object = self.pool.get().await.map_err(pool_error)?;
        Ok(Session(object))
    }
}

impl Session {
    /// A transaction that writes nothing and in which no statement takes longer than two seconds.
    pub(crate) async fn begin_read(&mut self) -> Result<Transaction<'_>, QueueError> {
        let tx = self.0.build_transaction().read_only(true).start().await?;
        tx.batch_execute(READ_SETTINGS).await?;
        Ok(tx)
    }

    /// The same; all statements in it see the database as it was at the first one.
    pub(crate) async fn begin_snapshot(&mut self) -> Result<Transaction<'_>, QueueError> {
        let level = IsolationLevel::RepeatableRead;
        let builder = self.0.build_transaction().read_only(true).isolation_level(level);
        let tx = builder.start().await?;
        tx.batch_execute(READ_SETTINGS).await?;
        Ok(tx)
    }

    /// A transaction in this name.
    pub(crate) async fn begin_write(&mut self, actor: &str) -> Result<Transaction<'_>, QueueError> {
        let tx = self.0.build_transaction().start().await?;
        tx.batch_execute(WRITE_SETTINGS).await?;
        audit::set_actor(&*tx, actor).await?;
        Ok(tx)
    }

    /// Tells the fleet, after a commit, that there may be something to do. Without it the next poll
    /// finds out, so that it may fail.
    pub(crate) async fn notify_workers(&self) {
        drop(queue::enqueue::notify(&**self.0).await);
    }
}
