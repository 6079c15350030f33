//! Task counts per queue, for the gauges of one worker and for `pgmill status`.

use std::time::Duration;

use conninfo::GenericClient;
use serde::Serialize;

use crate::error::QueueError;
use crate::id::WorkerId;
use crate::operator::operate::QueueConditions;
use crate::row::{from_row, one, rows};
use crate::transition::limit::Rate;

const QUEUES: &str = "SELECT /* queue.queue_status */ s.queue, s.paused, s.pending, s.running, s.scheduled, s.blocked,
    extract(epoch FROM s.oldest_pending_age)::float8 AS oldest_pending_seconds,
    extract(epoch FROM s.longest_running)::float8 AS longest_running_seconds,
    extract(epoch FROM s.shared_commit)::float8 AS shared_commit_seconds, s.max_running,
    s.rate_starts, extract(epoch FROM s.rate_period)::float8 AS rate_seconds, s.store_params, s.store_output,
    extract(epoch FROM s.max_replication_lag)::float8 AS max_replication_lag_seconds,
    extract(epoch FROM s.max_snapshot_age)::float8 AS max_snapshot_age_seconds, s.max_active_sessions, s.held_back
FROM mill.queue_status s ORDER BY s.queue";

/// The lock that one worker holds while it publishes the fleet-wide gauges.
const PUBLISHER: &str =
    "SELECT /* queue.publisher */ mill.hold_lock('fleet metrics', $1, make_interval(secs => $2))";

/// A queue and its task counts.
#[derive(Clone, Debug, Serialize)]
pub struct QueueStatus {
    /// Name of the queue.
    #[serde(rename = "name")]
    pub queue: String,
    /// Whether the queue is paused.
    pub paused: bool,
    /// Number of tasks that may be claimed.
    pub pending: i64,
    /// Number of running tasks.
    pub running: i64,
    /// Number of tasks that are not due.
    pub scheduled: i64,
    /// Number of tasks that wait for a permit.
    pub blocked: i64,
    /// Seconds since the due time of the oldest pending task.
    pub oldest_pending_seconds: Option<f64>,
    /// Seconds since the claim of the longest-running task.
    pub longest_running_seconds: Option<f64>,
    /// Time budget of shared commits, in seconds; `None` means that each task commits alone.
    pub shared_commit_seconds: Option<f64>,
    /// Maximum number of concurrent tasks; `None` means unlimited.
    pub max_running: Option<i32>,
    /// Maximum rate of starts; `None` means unlimited.
    pub rate: Option<Rate>,
    /// Default for its tasks: whether their params are stored after their end.
    pub store_params: bool,
    /// Default for its tasks: whether their output is stored after their end.
    pub store_output: bool,
    /// The conditions under which workers claim.
    #[serde(flatten)]
    pub conditions: QueueConditions,
    /// Which condition does not hold, so that workers claim nothing.
    pub held_back: Option<String>,
}

from_row! {
    row => QueueStatus {
        queue, paused, pending, running, scheduled, blocked, oldest_pending_seconds,
        longest_running_seconds, shared_commit_seconds, max_running, rate: Rate::from_row(row)?,
        store_params, store_output, conditions: QueueConditions::from_row(row)?, held_back,
    }
}

/// Returns every queue that has live tasks or a setting. Reads all live tasks.
pub async fn queues(client: &impl GenericClient) -> Result<Vec<QueueStatus>, QueueError> {
    rows(client, QUEUES, &[]).await
}

/// Makes the worker the publisher of the fleet-wide gauges for this time, unless another one is.
/// Returns whether it is the publisher.
pub async fn hold_publisher(
    client: &impl GenericClient,
    worker: WorkerId,
    held_for: Duration,
) -> Result<bool, QueueError> {
    one(client, PUBLISHER, &[&worker.0, &held_for.as_secs_f64()]).await
}
