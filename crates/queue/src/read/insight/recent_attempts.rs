//! The last attempts of the tasks with one name, which show the usual duration.

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::{Outcome, TaskId};
use serde::Serialize;

use crate::error::QueueError;
use crate::row::{from_row, rows};

/// Covers the same days as `mill.durations_of`.
const RECENT_ATTEMPTS: &str =
    "SELECT /* queue.insight_recent_attempts */ a.task_id, a.outcome::text, a.finished_at,
    extract(epoch FROM a.finished_at - a.started_at)::float8 AS duration_seconds
FROM mill.attempts a
WHERE a.queue = $1 AND a.name = $2 AND a.started_at IS NOT NULL
    AND a.finished_at >= date_trunc('day', now(), 'UTC') - interval '144 hours'
    AND a.finished_at < now() + interval '1 hour'
ORDER BY a.finished_at DESC LIMIT 60";

/// An ended attempt.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct RecentAttempt {
    /// The task's id.
    pub task_id: TaskId,
    /// Outcome of the attempt.
    pub outcome: Outcome,
    /// End of the attempt.
    pub finished_at: Timestamp,
    /// Duration in seconds.
    pub duration_seconds: f64,
}

from_row! { RecentAttempt { task_id, outcome, finished_at, duration_seconds } }

/// Returns the last 60 attempts of this name within seven days, newest first.
pub async fn recent_attempts(
    client: &impl GenericClient,
    queue: &str,
    name: &str,
) -> Result<Vec<RecentAttempt>, QueueError> {
    rows(client, RECENT_ATTEMPTS, &[&queue, &name]).await
}
