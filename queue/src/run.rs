//! Runs: started, brought forward, cancelled, restarted.
//!
//! The end of a task of a run appends an event in the transaction that ends it. Whoever ended it asks
//! here for the run to be advanced; what nobody asked for, a look of some worker finds. Advancing
//! takes the events under a lock on the run's row: each once, whoever does it.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};
use tokio_postgres::GenericClient;
use tokio_postgres::types::{Json, Type};

use crate::error::QueueError;
use crate::pg_enum;

const START: &str = "/* queue.start_run */
SELECT s.run_id, coalesce(s.dropped, '{}') FROM mill.start_run($1, $2) AS s";

const ADVANCE: &str = "/* queue.advance_run */
SELECT a.released, a.ended::text, a.more FROM mill.advance_run($1) AS a";

const CANCEL: &str = "/* queue.cancel_run */ SELECT mill.cancel_run($1, $2)";

const RETRY: &str = "/* queue.retry_run_task */ SELECT mill.retry_run_task($1, $2)";

const RESTART: &str = "/* queue.restart_run */
SELECT r FROM mill.restart_run($1, $2, $3, $4, $5) AS r";

const WHY: &str = "/* queue.why_run_task */ SELECT mill.why($1, $2)";

/// `mill.runs.id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct RunId(pub i64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pg_enum! {
    /// State of a run.
    RunState {
        /// Some task of it has not ended.
        Running = "running",
        /// Every task that could run has succeeded, or its failure was said not to count.
        Succeeded = "succeeded",
        /// A task has failed.
        Failed = "failed",
        /// It was cancelled, or one of its tasks.
        Cancelled = "cancelled",
    }
}

pg_enum! {
    /// State of a task of a run.
    RunTaskState {
        /// For its parents.
        Waiting = "waiting",
        /// About to get into the queue.
        Ready = "ready",
        /// In the queue, or running.
        Released = "released",
        /// Its statement ran to its end.
        Succeeded = "succeeded",
        /// It failed, timed out, was lost, or nobody saw its end.
        Failed = "failed",
        /// Somebody cancelled it, or the run.
        Cancelled = "cancelled",
        /// Its parents did not end as it expected.
        UpstreamFailed = "upstream_failed",
    }
}

pg_enum! {
    /// What an edge expects of the parent.
    Expected {
        /// That it succeeds.
        Succeeded = "succeeded",
        /// That it does not.
        Failed = "failed",
        /// That it ends.
        Finished = "finished",
    }
}

pg_enum! {
    /// How many of its parents a task waits for.
    JoinMode {
        /// Every one.
        All = "all",
        /// The first.
        Any = "any",
    }
}

/// A run that has been started.
#[derive(Clone, Debug, Serialize)]
pub struct Started {
    /// Its id.
    pub run: RunId,
    /// Edges that lead to tasks of other jobs: `parent > child`.
    pub dropped: Vec<String>,
}

/// What one pass over a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advanced {
    /// Tasks that got into the queue.
    pub released: u64,
    /// How the run ended, if it did in this pass.
    pub ended: Option<RunState>,
    /// There is more to do at once.
    pub more: bool,
}

/// Which tasks of a run to run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartOptions {
    /// Those that failed.
    pub failed: bool,
    /// Those that never ran.
    pub never_run: bool,
    /// Those that failed and all that come after them.
    pub downstream: bool,
    /// Also in a run that has not failed.
    pub force: bool,
}

/// Starts a run of these jobs, merged; the caller rings after its commit.
///
/// # Errors
/// An unknown or disabled job, a parameter that is missing or too many, tasks that wait for each
/// other; database trouble.
pub async fn start(
    client: &impl GenericClient,
    jobs: &[String],
    params: &Map<String, Value>,
) -> Result<Started, QueueError> {
    let rows = client
        .query_typed(START, &[(&jobs, Type::TEXT_ARRAY), (&Json(params), Type::JSONB)])
        .await?;
    Ok(Started { run: RunId(rows[0].try_get(0)?), dropped: rows[0].try_get(1)? })
}

/// Takes in what has ended in this run and releases what is ready, up to some thousand tasks.
///
/// # Errors
/// Database trouble.
pub async fn advance(client: &impl GenericClient, run: RunId) -> Result<Advanced, QueueError> {
    let rows = client.query_typed(ADVANCE, &[(&run.0, Type::INT8)]).await?;
    let ended: Option<&str> = rows[0].try_get(1)?;
    let unexpected =
        |value: &str| QueueError::Unexpected { column: "ended", value: value.to_owned() };
    Ok(Advanced {
        released: u64::from(rows[0].try_get::<_, i32>(0)?.cast_unsigned()),
        ended: ended.map(|word| word.parse().map_err(|_| unexpected(word))).transpose()?,
        more: rows[0].try_get(2)?,
    })
}

/// Cancels a run, with `kill` also its running tasks. Returns `cancelling`, the state of a run that
/// has ended, or `not found`.
///
/// # Errors
/// Database trouble; a missing right.
pub async fn cancel(
    client: &impl GenericClient,
    run: RunId,
    kill: bool,
) -> Result<String, QueueError> {
    let rows = client.query_typed(CANCEL, &[(&run.0, Type::INT8), (&kill, Type::BOOL)]).await?;
    Ok(rows[0].try_get(0)?)
}

/// Runs a task of a live run again, after it failed or was cancelled. Returns `retried`, the task's
/// state, or `not found`.
///
/// # Errors
/// The run does not go on; database trouble; a missing right.
pub async fn retry(
    client: &impl GenericClient,
    run: RunId,
    task: &str,
) -> Result<String, QueueError> {
    let rows = client.query_typed(RETRY, &[(&run.0, Type::INT8), (&task, Type::TEXT)]).await?;
    Ok(rows[0].try_get(0)?)
}

/// Runs tasks of a run that has ended again; returns their names.
///
/// # Errors
/// There is no such run, it goes on, it has not failed, or has no such task; database trouble.
pub async fn restart(
    client: &impl GenericClient,
    run: RunId,
    options: RestartOptions,
) -> Result<Vec<String>, QueueError> {
    let rows = client
        .query_typed(
            RESTART,
            &[
                (&run.0, Type::INT8),
                (&options.failed, Type::BOOL),
                (&options.never_run, Type::BOOL),
                (&options.downstream, Type::BOOL),
                (&options.force, Type::BOOL),
            ],
        )
        .await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

/// One sentence: why this task of a run is not running now, or what became of it.
///
/// # Errors
/// Database trouble.
pub async fn why(
    client: &impl GenericClient,
    run: RunId,
    task: &str,
) -> Result<Option<String>, QueueError> {
    let rows = client.query_typed(WHY, &[(&run.0, Type::INT8), (&task, Type::TEXT)]).await?;
    Ok(rows[0].try_get(0)?)
}
