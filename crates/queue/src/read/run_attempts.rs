//! Attempts of the tasks of a run: when they were due, started and ended.

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::{Outcome, TaskId};

use crate::error::QueueError;
use crate::read::run_queries::{Run, RunTask};
use crate::row::{Param, from_row, rows};

/// The range of `finished_at` excludes the partitions of other days, and the attempts before the last
/// restart of the run. An attempt ends before its run does; the minute allows for the time between the two clock readings. For a live task, the last
/// row is the attempt that runs or is due.
const RUN_ATTEMPTS: &str = "SELECT /* queue.run_attempts */ a.task_id, a.outcome::text, a.due_at, a.started_at, a.finished_at
FROM mill.visible_attempts a
WHERE a.task_id = ANY ($1) AND a.finished_at >= $2
    AND a.finished_at <= coalesce($3, now()) + interval '1 minute'
UNION ALL
SELECT t.id, NULL, t.due_at, t.claimed_at, NULL FROM mill.visible_tasks t WHERE t.id = ANY ($1)
ORDER BY task_id, finished_at NULLS LAST LIMIT $4";

/// An attempt of a task of a run.
#[derive(Clone, Debug)]
pub struct RunAttempt {
    /// The task.
    pub task_id: TaskId,
    /// Outcome; `None` if the attempt has not ended.
    pub outcome: Option<Outcome>,
    /// Due time.
    pub due_at: Timestamp,
    /// Time of the claim; `None` if the attempt has not started, or ended without being claimed.
    pub started_at: Option<Timestamp>,
    /// End of the attempt.
    pub finished_at: Option<Timestamp>,
}

from_row! { RunAttempt { task_id, outcome, due_at, started_at, finished_at } }

/// Returns the attempts of these tasks of the run by task, oldest first, up to the given number. Of a
/// restarted run, these are the attempts since the last restart.
///
/// # Errors
/// Fails if the role may not read the history.
pub async fn run_attempts<'a>(
    client: &impl GenericClient,
    run: &Run,
    tasks: impl IntoIterator<Item = &'a RunTask>,
    limit: i64,
) -> Result<Vec<RunAttempt>, QueueError> {
    let ids: Vec<i64> = tasks.into_iter().filter_map(|task| task.task_id).map(|id| id.0).collect();
    let params: [&dyn Param; 4] = [
        /* task_ids */ &ids,
        /* began_at */ &run.restarted_at.unwrap_or(run.started_at),
        &run.finished_at,
        &limit,
    ];
    rows(client, RUN_ATTEMPTS, &params).await
}
