//! Runs: start, advance, cancel, retry and restart.
//!
//! The transaction that ends a task of a run appends an event. The process that ended the task then
//! calls [`advance`]. If it does not, the next poll of any worker finds the event. An advance takes
//! the events under a lock on the run's row, so that each event is processed once.

use conninfo::GenericClient;
use pgmill_client::RunId;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::QueueError;
use crate::pg_enum;
use crate::row::{column, execute, from_row, one, rows};

pub use pgmill_client::{RunOptions, RunState};

const ADVANCE: &str = "SELECT /* queue.advance_run */ a.released, a.ended::text, a.more FROM mill.advance_run($1) AS a";

const RETRY: &str = "SELECT /* queue.retry_run_task */ mill.retry_run_task($1, $2)";

const RERUN: &str = "SELECT /* queue.rerun_run */ r FROM mill.rerun_run($1, $2, $3) AS r";

const RESTART: &str =
    "SELECT /* queue.restart_run */ r FROM mill.restart_run($1, $2, $3, $4, $5) AS r";

const APPROVE: &str = "SELECT /* queue.approve */ mill.approve($1, $2)";

const REJECT: &str = "SELECT /* queue.reject */ mill.reject($1, $2, $3)";

const WHY_RUN: &str = "SELECT /* queue.why_run */ mill.why_run($1)";

const WHY: &str = "SELECT /* queue.why_run_task */ mill.why($1, $2)";

pg_enum! {
    /// State of a task of a run.
    RunTaskState {
        /// Waits for its parents.
        Waiting = "waiting",
        /// Its parents have ended as its edges require: waits for approval if it needs any, and
        /// otherwise is about to enter the queue.
        Ready = "ready",
        /// In the queue, or running.
        Released = "released",
        /// The statement succeeded.
        Succeeded = "succeeded",
        /// The task failed, timed out, was lost, or has an unknown outcome.
        Failed = "failed",
        /// The task or the run was cancelled.
        Cancelled = "cancelled",
        /// The task cannot start, because a parent failed, was cancelled or is itself
        /// `upstream_failed`.
        UpstreamFailed = "upstream_failed",
        /// The task cannot start although no parent failed, because its branch was not taken.
        Skipped = "skipped",
    }
}

pg_enum! {
    /// The outcome that an edge requires of the parent.
    Expected {
        /// The parent succeeds.
        Succeeded = "succeeded",
        /// The parent does not succeed.
        Failed = "failed",
        /// The parent ends.
        Finished = "finished",
        /// The parent ends, or does not run because of its own parents.
        Always = "always",
    }
}

pg_enum! {
    /// Whether a task waits for all of its parents, or for one of them.
    JoinMode {
        /// All parents.
        All = "all",
        /// The first parent that ends as required.
        Any = "any",
    }
}

/// A started run.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Started {
    /// The run's id.
    pub run: RunId,
    /// Edges that were left out because their parent is in none of the run's jobs:
    /// `parent > child`.
    pub dropped: Vec<String>,
}

/// Result of one pass over a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advanced {
    /// Number of tasks that entered the queue.
    pub released: u64,
    /// Final state of the run, if it ended in this pass.
    pub ended: Option<RunState>,
    /// Whether there is more to do now.
    pub more: bool,
}

from_row! {
    row => Advanced {
        released: u64::from(column::<i32>(row, "released")?.cast_unsigned()), ended, more,
    }
}

/// The tasks of a run that are to run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartOptions {
    /// Tasks that started and did not succeed, and tasks that could not run because of them.
    pub failed: bool,
    /// Tasks that never started.
    pub never_run: bool,
    /// Tasks that started and did not succeed, and all tasks after the selected ones.
    pub downstream: bool,
    /// Whether to restart even a run that was cancelled.
    pub force: bool,
}

/// Starts one run of these jobs together. After its commit, the caller has to notify the workers.
///
/// # Errors
/// Fails if a job is unknown or disabled, if a parameter is missing or unknown, or if tasks wait
/// for each other.
pub async fn start(
    client: &impl tokio_postgres::GenericClient,
    jobs: &[String],
    params: &Map<String, Value>,
    options: &RunOptions,
) -> Result<Started, QueueError> {
    let run = pgmill_client::start_run(client, jobs, params, options).await?;
    Ok(Started { run: run.run_id, dropped: run.dropped })
}

/// Processes the ended tasks of this run and releases tasks that are ready. One call processes up
/// to some thousand tasks.
pub async fn advance(client: &impl GenericClient, run: RunId) -> Result<Advanced, QueueError> {
    one(client, ADVANCE, &[&run.0]).await
}

/// Cancels a run; with `kill`, also its running tasks. Returns `cancelling`, or the state of a run
/// that has ended, or `not found`.
///
/// # Errors
/// Fails if the role lacks the privilege.
pub async fn cancel(
    client: &impl tokio_postgres::GenericClient,
    run: RunId,
    kill: bool,
) -> Result<String, QueueError> {
    Ok(pgmill_client::cancel_run(client, run, kill).await?)
}

/// Retries a failed or cancelled task of a run, and the tasks that could not run because of it. A
/// run that has ended is then in progress again. Returns `retried`, or the state of a task in
/// another state, or `not found`.
///
/// # Errors
/// Fails if the run is being cancelled or the role lacks the privilege.
pub async fn retry(
    client: &impl GenericClient,
    run: RunId,
    task: &str,
) -> Result<String, QueueError> {
    one(client, RETRY, &[&run.0, &task]).await
}

/// Runs tasks of a run again, whatever their outcome was: all tasks if `tasks` is empty, or else
/// these and, with `downstream`, all tasks after them. Returns their names.
///
/// # Errors
/// Fails if there is no such run or task, or if one of the tasks has not ended.
pub async fn rerun(
    client: &impl GenericClient,
    run: RunId,
    tasks: &[String],
    downstream: bool,
) -> Result<Vec<String>, QueueError> {
    let tasks = (!tasks.is_empty()).then_some(tasks);
    rows(client, RERUN, &[&run.0, &tasks, &downstream]).await
}

/// Runs those tasks of an ended run that did not succeed again, and returns their names.
///
/// # Errors
/// Fails if the run does not exist, is in progress, was cancelled (unless forced), or contains no
/// task that can run again.
pub async fn restart(
    client: &impl GenericClient,
    run: RunId,
    options: RestartOptions,
) -> Result<Vec<String>, QueueError> {
    rows(
        client,
        RESTART,
        &[&run.0, &options.failed, &options.never_run, &options.downstream, &options.force],
    )
    .await
}

/// Approves a task of a run that waits for approval. After the commit, the caller has to notify the
/// workers.
///
/// # Errors
/// Fails if the task does not wait for approval, or if the role lacks the privilege.
pub async fn approve(
    client: &impl GenericClient,
    run: RunId,
    task: &str,
) -> Result<(), QueueError> {
    execute(client, APPROVE, &[&run.0, &task]).await
}

/// Rejects a task of a run that waits for approval: the task is cancelled.
///
/// # Errors
/// Fails if the task does not wait for approval, or if the role lacks the privilege.
pub async fn reject(
    client: &impl GenericClient,
    run: RunId,
    task: &str,
    reason: Option<&str>,
) -> Result<(), QueueError> {
    execute(client, REJECT, &[&run.0, &task, &reason]).await
}

/// Returns one sentence that says how far a run is, or how it ended; `None` if it does not exist.
pub async fn why_run(
    client: &impl GenericClient,
    run: RunId,
) -> Result<Option<String>, QueueError> {
    one(client, WHY_RUN, &[&run.0]).await
}

/// Returns one sentence that says why this task of a run is not running now, or how it ended.
pub async fn why(
    client: &impl GenericClient,
    run: RunId,
    task: &str,
) -> Result<Option<String>, QueueError> {
    one(client, WHY, &[&run.0, &task]).await
}
