//! The last attempts of one task name: the usual duration of a task.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use crate::error::QueueError;
use crate::pg_enum::enum_column;
use crate::task::{Outcome, TaskId};

/// Covers the same days as `mill.durations_of`.
const RECENT_ATTEMPTS: &str = "/* queue.insight_recent_attempts */
SELECT a.task_id, a.outcome::text, a.finished_at,
    extract(epoch FROM a.finished_at - a.started_at)::float8
FROM mill.attempts a
WHERE a.queue = $1 AND a.name = $2 AND a.started_at IS NOT NULL
    AND a.finished_at >= date_trunc('day', now(), 'UTC') - interval '144 hours'
    AND a.finished_at < now() + interval '1 hour'
ORDER BY a.finished_at DESC LIMIT 60";

/// An ended attempt.
#[derive(Clone, Debug, PartialEq, Serialize)]
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

/// Returns the last 60 attempts of this name within seven days, newest first.
pub async fn recent_attempts(
    client: &impl GenericClient,
    queue: &str,
    name: &str,
) -> Result<Vec<RecentAttempt>, QueueError> {
    let attempt = |row: &Row| {
        Ok(RecentAttempt {
            task_id: TaskId(row.try_get(0)?),
            outcome: enum_column(row, 1, "outcome")?,
            finished_at: row.try_get(2)?,
            duration_seconds: row.try_get(3)?,
        })
    };
    let values: [(&(dyn ToSql + Sync), Type); 2] = [(&queue, Type::TEXT), (&name, Type::TEXT)];
    client.query_typed(RECENT_ATTEMPTS, &values).await?.iter().map(attempt).collect()
}
