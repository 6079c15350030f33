//! Progress reports of running tasks.
//!
//! Reports are rows of an unlogged table of their own, so that only claim, finish and reclaim write
//! the row of a running task. A report that a finished attempt left behind is never shown, so
//! nothing depends on its removal.

use conninfo::GenericClient;
use pgmill_client::TaskId;
use serde_json::Value;

use crate::error::QueueError;
use crate::id::{Token, WorkerId};
use crate::row::execute;

/// One statement for all tasks of a worker. Writes nothing for a task that does not have the token,
/// because the claim then no longer belongs to this worker.
const RECORD_PROGRESS: &str = "WITH /* queue.record_progress */ gone AS (
    DELETE FROM mill.progress p WHERE p.task_id = ANY ($6) AND p.worker_id = $7
)
INSERT INTO mill.progress AS p (task_id, worker_id, attempt, reported_at, percent, message, notices)
SELECT t.id, t.claimed_by, t.attempt, clock_timestamp(), reports.percent, reports.message, reports.notices
FROM unnest($1::bigint[], $2::uuid[], $3::float8[], $4::text[], $5::jsonb[])
        AS reports (id, token, percent, message, notices)
    JOIN mill.tasks t ON t.id = reports.id AND t.token = reports.token
ORDER BY t.id
ON CONFLICT (task_id) DO UPDATE SET worker_id = excluded.worker_id, attempt = excluded.attempt,
    reported_at = excluded.reported_at, percent = excluded.percent, message = excluded.message,
    notices = excluded.notices";

/// The latest report of a running task.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressReport {
    /// The task.
    pub id: TaskId,
    /// Token of the task's claim.
    pub token: Token,
    /// Progress in percent that the task reported, 0 to 100.
    pub percent: Option<f64>,
    /// Message that the task reported.
    pub message: Option<String>,
    /// The task's last notices that do not report progress, newest last.
    pub notices: Option<Value>,
}

/// Replaces the reports of these tasks, and deletes those of tasks that have ended.
pub async fn record_progress(
    client: &impl GenericClient,
    worker: WorkerId,
    reports: &[ProgressReport],
    ended: &[TaskId],
) -> Result<(), QueueError> {
    let ids: Vec<i64> = reports.iter().map(|it| it.id.0).collect();
    let tokens: Vec<uuid::Uuid> = reports.iter().map(|it| it.token.0).collect();
    let percents: Vec<Option<f64>> = reports.iter().map(|it| it.percent).collect();
    let messages: Vec<Option<&str>> = reports.iter().map(|it| it.message.as_deref()).collect();
    let notices: Vec<Option<&Value>> = reports.iter().map(|it| it.notices.as_ref()).collect();
    let ended: Vec<i64> = ended.iter().map(|id| id.0).collect();
    execute(
        client,
        RECORD_PROGRESS,
        &[&ids, &tokens, &percents, &messages, &notices, /* ended ids */ &ended, &worker.0],
    )
    .await
}
