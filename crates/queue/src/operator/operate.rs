//! Settings of queues and workers that operators change.

use std::time::Duration;

use conninfo::GenericClient;
use serde::Serialize;

use crate::error::QueueError;
use crate::id::WorkerId;
use crate::row::{Param, execute, first, from_row, one};
use crate::schema;

const PAUSE: &str = "SELECT /* queue.pause */ mill.pause($1)";
const RESUME: &str = "SELECT /* queue.resume */ mill.resume($1)";
const SET_SHARED_COMMIT: &str =
    "SELECT /* queue.set_shared_commit */ mill.set_shared_commit($1, make_interval(secs => $2))";
const SET_QUEUE_STORAGE: &str =
    "SELECT /* queue.set_queue_storage */ mill.set_queue_storage($1, $2, $3)";
const SET_QUEUE_CONDITIONS: &str = "SELECT /* queue.set_queue_conditions */ mill.set_queue_conditions($1, make_interval(secs => $2), make_interval(secs => $3), $4)";
const REMOVE_QUEUE: &str = "SELECT /* queue.remove_queue */ mill.remove_queue($1)";

/// A queue is known if it has settings, limits, live tasks, a recent attempt, a task of a job or a
/// worker of its own. The pending tasks are looked up in an index first, because the condition on
/// all live tasks may read the whole table.
const IS_KNOWN: &str = "SELECT /* queue.queue_is_known */ $1 = 'default' OR EXISTS (SELECT FROM mill.queues q WHERE q.name = $1)
    OR EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = $1)
    OR EXISTS (SELECT FROM mill.workers w WHERE $1 = ANY (w.queues))
    OR EXISTS (SELECT FROM mill.job_tasks t WHERE t.queue = $1)
    OR EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'pending' AND t.queue = $1)
    OR EXISTS (SELECT FROM mill.tasks t WHERE t.queue = $1)
    OR EXISTS (SELECT FROM mill.attempts a WHERE a.queue = $1 AND a.finished_at > now() - interval '7 days')";
const DRAIN: &str = "SELECT /* queue.drain */ mill.drain($1, $2)";

/// Runs in sessions of tasks, too, whose search_path may contain functions of tasks. So all names are
/// qualified, and the operators are those of pg_catalog for exactly these types.
const RIGHTS: &str = "SELECT /* queue.login_rights */ current_user::text AS login, r.rolsuper AS superuser,
    r.rolsuper OR pg_catalog.pg_has_role(n.nspowner, CASE
        WHEN pg_catalog.current_setting('server_version_num')::int4 >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END) AS owner,
    r.rolsuper OR pg_catalog.has_any_column_privilege('mill.tasks', 'UPDATE') AS worker,
    r.rolsuper OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
        AND pg_catalog.pg_has_role('pg_signal_backend', 'USAGE') AS sees_backends
FROM pg_catalog.pg_namespace n, pg_catalog.pg_roles r
WHERE n.nspname = 'mill' AND r.rolname = current_user";

/// Privileges of a login on the queue.
#[derive(Clone, Debug)]
pub struct LoginRights {
    /// Name of the login.
    pub login: String,
    /// Whether the login is a superuser, which may do everything.
    pub superuser: bool,
    /// Whether the login may change or drop the queue's own tables.
    pub owner: bool,
    /// Whether the login may change tasks directly, as a worker does.
    pub worker: bool,
    /// Whether the login may see and terminate backends of other logins.
    pub sees_backends: bool,
}

from_row! { LoginRights { login, superuser, owner, worker, sees_backends } }

/// The conditions under which workers claim from a queue, or tasks of a target; `None` means no such
/// condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, utoipa::ToSchema)]
pub struct QueueConditions {
    /// Maximum lag of a connected standby, in seconds.
    pub max_replication_lag_seconds: Option<f64>,
    /// Maximum time for which a transaction has held its snapshot, in seconds.
    pub max_snapshot_age_seconds: Option<f64>,
    /// Maximum number of active sessions of the server.
    pub max_active_sessions: Option<i32>,
}

from_row! {
    QueueConditions { max_replication_lag_seconds, max_snapshot_age_seconds, max_active_sessions }
}

impl QueueConditions {
    /// Returns the parameters of a statement that sets the conditions of a queue or a target.
    pub(crate) fn params<'a>(&'a self, name: &'a &str) -> [&'a dyn Param; 4] {
        let lag = &self.max_replication_lag_seconds;
        [name, lag, &self.max_snapshot_age_seconds, &self.max_active_sessions]
    }
}

/// Returns the privileges of the session's login.
///
/// # Errors
/// Fails if the database does not contain the schema.
pub async fn login_rights(client: &impl GenericClient) -> Result<LoginRights, QueueError> {
    first(client, RIGHTS, &[]).await?.ok_or_else(schema::missing)
}

/// Returns whether a queue of this name has settings, tasks or a worker, or had a task within seven
/// days.
pub async fn queue_is_known(client: &impl GenericClient, queue: &str) -> Result<bool, QueueError> {
    one(client, IS_KNOWN, &[&queue]).await
}

/// Removes the settings of a queue. Returns `false` if it has none.
///
/// # Errors
/// Fails while live tasks have the limit of the queue.
pub async fn remove_queue(client: &impl GenericClient, queue: &str) -> Result<bool, QueueError> {
    one(client, REMOVE_QUEUE, &[&queue]).await
}

/// Stops claims from a queue; running tasks continue.
///
/// # Errors
/// Fails if the name is invalid.
pub async fn pause(client: &impl GenericClient, queue: &str) -> Result<(), QueueError> {
    execute(client, PAUSE, &[&queue]).await
}

/// Resumes claims from a paused queue.
pub async fn resume(client: &impl GenericClient, queue: &str) -> Result<(), QueueError> {
    execute(client, RESUME, &[&queue]).await
}

/// Allows readers to run short tasks of the queue in one transaction, for up to `budget`. With
/// `None`, each task commits alone.
///
/// # Errors
/// Fails if the budget is outside 1 to 100 ms.
pub async fn set_shared_commit(
    client: &impl GenericClient,
    queue: &str,
    budget: Option<Duration>,
) -> Result<(), QueueError> {
    let seconds = budget.map(|budget| budget.as_secs_f64());
    execute(client, SET_SHARED_COMMIT, &[&queue, &seconds]).await
}

/// Sets whether params, and output, of tasks that are enqueued later are stored after their end;
/// `None` leaves a setting unchanged.
pub async fn set_queue_storage(
    client: &impl GenericClient,
    queue: &str,
    params: Option<bool>,
    output: Option<bool>,
) -> Result<(), QueueError> {
    execute(client, SET_QUEUE_STORAGE, &[&queue, &params, &output]).await
}

/// Sets the conditions under which workers claim from the queue.
///
/// # Errors
/// Fails if a condition is out of range.
pub async fn set_queue_conditions(
    client: &impl GenericClient,
    queue: &str,
    conditions: QueueConditions,
) -> Result<(), QueueError> {
    execute(client, SET_QUEUE_CONDITIONS, &conditions.params(&queue)).await
}

/// Makes a worker stop or resume claiming. Returns `false` if it does not exist.
pub async fn drain(
    client: &impl GenericClient,
    worker: WorkerId,
    draining: bool,
) -> Result<bool, QueueError> {
    one(client, DRAIN, &[&worker.0, &draining]).await
}
