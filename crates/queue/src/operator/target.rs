//! Targets: other databases in which tasks run. Their connection strings are in the configuration of
//! workers; the queue records who may use them, and how far they are known to be intact.

use std::time::Duration;

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::TaskId;
use serde::Serialize;
use uuid::Uuid;

use crate::error::QueueError;
use crate::operator::operate::QueueConditions;
use crate::row::{column, execute, from_row, one, query, rows};

const SET: &str =
    "SELECT /* queue.set_target */ mill.set_target($1, $2, $3, make_interval(secs => $4))";

const SET_CONDITIONS: &str = "SELECT /* queue.set_target_conditions */ mill.set_target_conditions($1, make_interval(secs => $2), make_interval(secs => $3), $4)";

const ACCEPT: &str = "SELECT /* queue.accept_restored_target */ mill.accept_restored_target($1)";

const TARGETS: &str = "SELECT /* queue.targets */ t.name, p.allowed, p.description, extract(epoch FROM t.receipts_kept)::float8 AS receipts_kept_seconds,
    t.checked_at, t.restored_at, extract(epoch FROM t.max_replication_lag)::float8 AS max_replication_lag_seconds,
    extract(epoch FROM t.max_snapshot_age)::float8 AS max_snapshot_age_seconds, t.max_active_sessions,
    (SELECT c.held_back FROM mill.target_checks c WHERE c.name = t.name) AS held_back,
    (SELECT coalesce(sum((w.profiles->>t.name::text)::integer), 0) FROM mill.workers w
        WHERE now() - w.heartbeat_at < w.orphan_timeout) AS readers
FROM mill.targets t JOIN mill.profiles p ON p.name = t.name ORDER BY t.name";

/// Reads no profiles: `mill_worker` may not read them.
const HELD_BACK: &str = "SELECT /* queue.targets_held_back */ t.name, c.held_back FROM mill.targets t LEFT JOIN mill.target_checks c ON c.name = t.name ORDER BY t.name";

/// Tasks in autocommit mode have no receipt.
const SUCCESSES: &str = "SELECT /* queue.successes_in_target */ a.task_id, a.receipt, a.finished_at FROM mill.attempts a
WHERE a.run_as = $1 AND a.outcome = 'succeeded' AND a.receipt IS NOT NULL
    AND a.finished_at > now() - make_interval(secs => $2) AND (mill.effective(a.options)).mode = 'transaction'
ORDER BY a.finished_at";

/// A target and its use.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Target {
    /// Name of the target, the same as in the configuration of workers.
    pub name: String,
    /// Roles whose members may submit tasks to this target.
    pub allowed: Vec<String>,
    /// Free-text description.
    pub description: Option<String>,
    /// Time in seconds for which receipts are kept.
    pub receipts_kept_seconds: f64,
    /// Time at which a worker last reached the target; `None` if none has.
    pub checked_at: Option<Timestamp>,
    /// Time at which a worker found that the target was restored to an earlier time.
    pub restored_at: Option<Timestamp>,
    /// The conditions under which workers claim tasks of this target.
    #[serde(flatten)]
    pub conditions: QueueConditions,
    /// Which condition does not hold, so that workers claim none of its tasks.
    pub held_back: Option<String>,
    /// Number of readers that live workers have for this target.
    pub readers: i64,
}

from_row! {
    row => Target {
        name, allowed, description, receipts_kept_seconds, checked_at, restored_at,
        conditions: QueueConditions::from_row(row)?, held_back, readers,
    }
}

/// A task that has succeeded in a target, according to the queue.
#[derive(Clone, Debug)]
pub struct Success {
    /// The task's id.
    pub task: TaskId,
    /// Id of its receipt.
    pub receipt: Uuid,
    /// Time of the success.
    pub finished_at: Timestamp,
}

from_row! {
    row => Success { task: column(row, "task_id")?, receipt, finished_at }
}

/// Creates or changes a target; `None` leaves a setting unchanged.
///
/// # Errors
/// Fails if a role does not exist, a profile of this name is in use, or the role is not the owner of
/// the queue.
pub async fn set_target(
    client: &impl GenericClient,
    name: &str,
    allowed: Option<&[String]>,
    description: Option<&str>,
    receipts_kept: Option<Duration>,
) -> Result<(), QueueError> {
    let kept = receipts_kept.map(|kept| kept.as_secs_f64());
    execute(client, SET, &[&name, &allowed, &description, /* receipts_kept */ &kept]).await
}

/// Sets the conditions under which workers claim tasks of the target.
///
/// # Errors
/// Fails if there is no such target, or if a condition is out of range.
pub async fn set_target_conditions(
    client: &impl GenericClient,
    name: &str,
    conditions: QueueConditions,
) -> Result<(), QueueError> {
    execute(client, SET_CONDITIONS, &conditions.params(&name)).await
}

/// Ends the problem that the target was restored. Returns `false` if there was none.
pub async fn accept_restored(client: &impl GenericClient, name: &str) -> Result<bool, QueueError> {
    one(client, ACCEPT, &[&name]).await
}

/// Returns every target.
pub async fn targets(client: &impl GenericClient) -> Result<Vec<Target>, QueueError> {
    rows(client, TARGETS, &[]).await
}

/// Returns the name of every target, and which of its conditions does not hold, for metrics.
pub async fn targets_held_back(
    client: &impl GenericClient,
) -> Result<Vec<(String, Option<String>)>, QueueError> {
    let rows = query(client, HELD_BACK, &[]).await?;
    rows.iter().map(|row| Ok((column(row, "name")?, column(row, "held_back")?))).collect()
}

/// Returns the successes in a target within this time, oldest first.
pub async fn successes(
    client: &impl GenericClient,
    name: &str,
    since: Duration,
) -> Result<Vec<Success>, QueueError> {
    rows(client, SUCCESSES, &[&name, &since.as_secs_f64()]).await
}
