//! Attempts that ended because their worker died, for the traces of the worker that reclaimed them.

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::{Outcome, RunId, TaskId, Traceparent};

use crate::error::QueueError;
use crate::id::WorkerId;
use crate::row::{column, from_row, rows};

/// Uses the index `attempts_task`. The range of `finished_at` excludes the partitions of other days.
const LOST_ATTEMPTS: &str = "SELECT /* queue.lost_attempts */ DISTINCT ON (a.task_id) a.task_id AS task, a.attempt, a.worker_id AS worker, a.queue, a.name,
    CASE WHEN a.node IS NOT NULL THEN a.run_id END AS run, a.enqueued_at, a.started_at, a.finished_at,
    a.outcome::text, a.final AS last, (a.options).traceparent AS caller
FROM mill.attempts a
WHERE a.task_id = ANY ($1) AND a.worker_id = $2 AND a.started_at IS NOT NULL
    AND a.finished_at > now() - interval '1 hour'
ORDER BY a.task_id, a.finished_at DESC";

/// An attempt of a dead worker.
#[derive(Clone, Debug)]
pub struct LostAttempt {
    /// The task.
    pub task: TaskId,
    /// Attempt number, from 1.
    pub attempt: u32,
    /// The dead worker.
    pub worker: WorkerId,
    /// Queue of the task.
    pub queue: String,
    /// Name of the task.
    pub name: Option<String>,
    /// Run of the task.
    pub run: Option<RunId>,
    /// Time of the enqueue.
    pub enqueued_at: Timestamp,
    /// Time of the claim.
    pub started_at: Timestamp,
    /// Time of the reclaim.
    pub finished_at: Timestamp,
    /// Recorded outcome.
    pub outcome: Outcome,
    /// Whether the task ended with this attempt.
    pub last: bool,
    /// Trace context of the caller who enqueued the task.
    pub caller: Option<Traceparent>,
}

from_row! {
    row => LostAttempt {
        task, attempt: column::<i32>(row, "attempt")?.cast_unsigned(), worker, queue, name, run, enqueued_at,
        started_at, finished_at, outcome, last,
        caller: column::<Option<&str>>(row, "caller")?.and_then(|text| text.parse().ok()),
    }
}

/// Returns the last attempt of each of these tasks that this worker began.
///
/// # Errors
/// Fails if the role may not read the history.
pub async fn lost_attempts(
    client: &impl GenericClient,
    tasks: &[TaskId],
    worker: WorkerId,
) -> Result<Vec<LostAttempt>, QueueError> {
    let ids: Vec<i64> = tasks.iter().map(|task| task.0).collect();
    rows(client, LOST_ATTEMPTS, &[/* task_ids */ &ids, &worker.0]).await
}
