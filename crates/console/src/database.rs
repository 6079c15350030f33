//! Connection pool of the console. Reads run in short read-only transactions with a statement
//! timeout.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use axum::http::StatusCode;
use conninfo::{ConnectError, ConnectionTarget, pool_error, pool_manager};
use deadpool_postgres::{Object, Pool, RecyclingMethod, Runtime, Transaction};
use queue::insight::viewer;
use queue::row::one;
use queue::{QueueError, audit, schema};
use tokio::sync::OnceCell;
use tokio_postgres::IsolationLevel;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use crate::error::HttpError;
use crate::options::AccessRules;
use crate::options::rights::Rights;

/// Maximum number of sessions: enough for a few users with concurrent requests.
const MAX_SESSIONS: usize = 6;

/// Time limit for obtaining a session or a connection.
const POOL_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of a read transaction, which limit its load. JIT is off because compilation takes
/// longer than these reads.
const READ_SETTINGS: &str = "SET /* console.read */ LOCAL statement_timeout = '2s'; SET LOCAL lock_timeout = '1s'; SET LOCAL jit = off";

/// Settings of a write transaction. It may wait for row locks, which a worker holds briefly while
/// it finishes a task.
const WRITE_SETTINGS: &str =
    "SET /* console.write */ LOCAL statement_timeout = '20s'; SET LOCAL lock_timeout = '5s'";

const LOGIN: &str = "SELECT /* console.login */ current_user::text";

/// Roles that do not exist, or of which the login is not a member.
const MISSING_ROLES: &str = "SELECT /* console.missing_roles */ w.role FROM unnest($1::text[]) AS w(role) WHERE NOT EXISTS (
    SELECT FROM pg_roles r WHERE r.rolname = w.role AND pg_has_role(r.oid,
        CASE WHEN current_setting('server_version_num')::int4 >= 160000 THEN 'SET' ELSE 'MEMBER' END))";

const SET_ROLE: &str = "SELECT /* console.set_role */ set_config('role', $1, true)";

const IS_EXPIRED: &str = "SELECT /* console.is_expired */ clock_timestamp() >= $1";

/// The connection pool.
pub(crate) struct Database {
    pool: Pool,
    /// Roles that the transactions of users assume.
    roles: Vec<String>,
    /// Whether [`Database::check`] has succeeded.
    checked: OnceCell<()>,
}

/// A session that serves one request.
pub(crate) struct Session {
    client: Object,
    /// Role that its transactions assume.
    role: Option<String>,
}

/// A writing transaction.
pub(crate) struct WriteTransaction<'a>(Transaction<'a>);

impl WriteTransaction<'_> {
    /// Commits.
    ///
    /// # Errors
    /// As [`HttpError::of_commit`].
    pub(crate) async fn commit(self) -> Result<(), HttpError> {
        self.0.commit().await.map_err(|error| HttpError::of_commit(error.into()))
    }

    /// Undoes all changes.
    pub(crate) async fn rollback(self) -> Result<(), QueueError> {
        Ok(self.0.rollback().await?)
    }
}

impl<'a> Deref for WriteTransaction<'a> {
    type Target = tokio_postgres::Transaction<'a>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for WriteTransaction<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Database {
    pub(crate) fn new(
        target: &ConnectionTarget,
        access: &AccessRules,
    ) -> Result<Self, ConnectError> {
        let target = target.with_safe_search_path();
        let pool = Pool::builder(pool_manager(&target, RecyclingMethod::Verified))
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
        let roles = access.roles().map(str::to_owned).collect();
        Ok(Self { pool, roles, checked: OnceCell::new() })
    }

    /// Checks that the schema version matches, that the login may read the queue, and that it may
    /// assume the roles of the users. A check that succeeded is not repeated.
    pub(crate) async fn check(&self) -> Result<(), QueueError> {
        self.checked.get_or_try_init(|| self.check_now()).await.copied()
    }

    async fn check_now(&self) -> Result<(), QueueError> {
        let mut session = self.connect().await?;
        let tx = session.begin_read().await?;
        let login: String = one(&*tx, LOGIN, &[]).await?;
        match may_read(&tx).await {
            Ok(true) => return check_roles(&tx, &login, &self.roles).await,
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

    /// Returns a session with the privileges of the console's login. The first session checks the
    /// database, because one of several databases may be unreachable when the console starts.
    pub(crate) async fn session(&self) -> Result<Session, QueueError> {
        self.check().await?;
        self.connect().await
    }

    async fn connect(&self) -> Result<Session, QueueError> {
        Ok(Session { client: self.pool.get().await.map_err(pool_error)?, role: None })
    }

    /// Returns a session for a user with these rights.
    ///
    /// # Errors
    /// The rights have expired; the database is unreachable.
    pub(crate) async fn session_for(&self, rights: &Rights) -> Result<Session, HttpError> {
        let session = Session { role: rights.role.clone(), ..self.session().await? };
        if let Some(expires_at) = rights.expires_at
            && one(&**session.client, IS_EXPIRED, &[&expires_at]).await?
        {
            return Err(HttpError::new(StatusCode::UNAUTHORIZED, "the access has expired")
                .hint(format!("it was valid until {expires_at}; ask for a new token")));
        }
        Ok(session)
    }
}

/// Checks the schema version, and returns whether the login may read the queue.
async fn may_read(tx: &Transaction<'_>) -> Result<bool, QueueError> {
    schema::check_version(&**tx).await?;
    Ok(viewer::viewer(&**tx).await?.can_read)
}

/// Checks that the login is a member of all roles of the users.
async fn check_roles(
    tx: &Transaction<'_>,
    login: &str,
    roles: &[String],
) -> Result<(), QueueError> {
    let missing = tx.query_typed(MISSING_ROLES, &[(&roles, Type::TEXT_ARRAY)]).await?;
    let Some(row) = missing.first() else { return Ok(()) };
    let role: String = row.try_get(0)?;
    Err(QueueError::Refused {
        message: format!("login \"{login}\" may not assume the role \"{role}\" of a user"),
        hint: Some(format!("GRANT \"{role}\" TO \"{login}\"")),
    })
}

/// Assumes the role until the end of the transaction. The settings before it need no privilege.
async fn assume_role(tx: &Transaction<'_>, role: Option<&str>) -> Result<(), QueueError> {
    if let Some(role) = role {
        tx.query_typed(SET_ROLE, &[(&role, Type::TEXT)]).await?;
    }
    Ok(())
}

impl Session {
    /// Begins a read-only transaction with a statement timeout of two seconds.
    pub(crate) async fn begin_read(&mut self) -> Result<Transaction<'_>, QueueError> {
        let tx = self.client.build_transaction().read_only(true).start().await?;
        tx.batch_execute(READ_SETTINGS).await?;
        assume_role(&tx, self.role.as_deref()).await?;
        Ok(tx)
    }

    /// Like [`Self::begin_read`], with one snapshot for all statements (REPEATABLE READ).
    pub(crate) async fn begin_snapshot(&mut self) -> Result<Transaction<'_>, QueueError> {
        let level = IsolationLevel::RepeatableRead;
        let builder = self.client.build_transaction().read_only(true).isolation_level(level);
        let tx = builder.start().await?;
        tx.batch_execute(READ_SETTINGS).await?;
        assume_role(&tx, self.role.as_deref()).await?;
        Ok(tx)
    }

    /// Begins a writing transaction; the audit log records `actor`.
    pub(crate) async fn begin_write(
        &mut self,
        actor: &str,
    ) -> Result<WriteTransaction<'_>, QueueError> {
        // Some functions of the schema require this level, which the database or the login may replace as the default.
        let level = IsolationLevel::ReadCommitted;
        let tx = self.client.build_transaction().isolation_level(level).start().await?;
        tx.batch_execute(WRITE_SETTINGS).await?;
        assume_role(&tx, self.role.as_deref()).await?;
        audit::set_actor(&*tx, actor).await?;
        Ok(WriteTransaction(tx))
    }
}
