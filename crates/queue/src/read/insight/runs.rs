//! Runs, page by page, and bounded queries on one run.
//!
//! No index covers the jobs or the state of finished runs. Therefore a page reads a fixed number of
//! runs and reports where it stopped. For runs in progress there is an index, regardless of their
//! age.

use conninfo::GenericClient;
use jiff::{SignedDuration, Timestamp};
use pgmill_client::{RunId, TaskId};
use serde::Serialize;

use crate::error::QueueError;
use crate::operator::run::RunState;
use crate::row::{Param, column, from_row, one, rows};

/// Maximum number of runs that one page reads.
const RUNS_SCANNED: i64 = 10_000;

/// Maximum of counts on a run in progress.
pub const COUNT_LIMIT: i64 = 1000;

const COLUMNS: &str = "r.id, r.jobs, s.name AS schedule, r.state::text, r.started_at, r.started_by,
    r.finished_at, extract(epoch FROM coalesce(r.finished_at, now()) - coalesce(r.restarted_at, r.started_at))::float8
        AS duration_seconds,
    r.restarts, r.tasks::bigint, (r.tasks - r.open)::bigint AS finished,
    CASE WHEN r.state <> 'running' THEN r.failed ELSE (SELECT count(*) FROM (SELECT FROM mill.run_tasks t
        WHERE t.state = 'failed' AND t.run_id = r.id LIMIT $2) AS f) END::bigint AS failed,
    r.cancelled_at IS NOT NULL AS cancelled, r.late_since IS NOT NULL AS late";

const NEWEST: &str = "SELECT /* queue.insight_newest_run */ coalesce((SELECT r.id FROM mill.runs r ORDER BY r.id DESC LIMIT 1), 0) AS newest";

/// Finds the first run that started at a time or later by bisection of the ids. There is no index on
/// the time, but ids and times ascend together.
const FIRST_SINCE: &str = "WITH /* queue.insight_first_run_since */ RECURSIVE search AS (
    SELECT 0::bigint AS low, $1::bigint AS high
    UNION ALL
    SELECT CASE WHEN m.earlier THEN m.middle + 1 ELSE m.low END, CASE WHEN m.earlier THEN m.high ELSE m.middle END
    FROM (SELECT s.low, s.high, (s.low + s.high) / 2 AS middle, coalesce((SELECT r.started_at < $2 FROM mill.runs r
        WHERE r.id >= (s.low + s.high) / 2 ORDER BY r.id LIMIT 1), false) AS earlier FROM search s WHERE s.low < s.high) AS m
)
SELECT s.low FROM search s WHERE s.low >= s.high";

/// Maximum time for which a transaction that starts a run is open. The order of runs that started
/// within this time may differ from the order of their ids.
const MAX_DISORDER: SignedDuration = SignedDuration::from_hours(1);

/// Sorts the nodes that need attention first.
const NODES: &str = "SELECT /* queue.insight_run_nodes */ n.node FROM unnest('{ready,released,failed,cancelled,upstream_failed,waiting,succeeded,skipped}'::mill.run_task_state[])
    WITH ORDINALITY AS s(state, place)
CROSS JOIN LATERAL (SELECT t.node FROM mill.run_tasks t WHERE t.state = s.state AND t.run_id = $1
    ORDER BY t.node LIMIT $2) AS n
ORDER BY s.place, n.node LIMIT $2";

/// Columns of [`ComparedRun`].
macro_rules! compared {
    ($name:literal, $condition:literal) => {
        concat!(
            "SELECT /* ",
            $name,
            " */ r.id, r.state::text, r.started_at, r.fire_at,
    extract(epoch FROM coalesce(r.finished_at, now()) - coalesce(r.restarted_at, r.started_at))::float8
        AS duration_seconds
FROM mill.runs r WHERE r.id <= $1 AND r.id > $1 - $2 AND ",
            $condition,
            " ORDER BY r.id DESC LIMIT $3"
        )
    };
}

const SIBLINGS: &str = compared!(
    "queue.insight_run_siblings",
    "r.jobs = (SELECT o.jobs FROM mill.runs o WHERE o.id = $1)"
);

const RUNS_OF_JOB: &str = compared!("queue.insight_runs_of_job", "$4 = ANY (r.jobs)");

const CELLS: &str = "SELECT /* queue.insight_run_cells */ t.run_id AS run, t.name,
    CASE WHEN t.state = 'failed' AND t.ignore_failure THEN 'ignored' ELSE t.state::text END AS state,
    t.task_id, extract(epoch FROM t.finished_at - t.started_at)::float8 AS duration_seconds
FROM mill.run_tasks t WHERE t.name = ANY ($2) AND t.run_id = ANY ($1)";

/// A filter on runs.
#[derive(Clone, Debug, Default)]
pub struct RunQuery {
    /// The state.
    pub state: Option<RunState>,
    /// A job of the run, which may have others.
    pub job: Option<String>,
    /// The schedule that fired the run.
    pub schedule: Option<String>,
    /// Selects runs that started at this time or later.
    pub from: Option<Timestamp>,
    /// Selects runs that started at this time or earlier.
    pub to: Option<Timestamp>,
    /// Selects runs with smaller ids than this one.
    pub after: Option<i64>,
}

/// A run in a list.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct RunSummary {
    /// The run's id.
    pub id: RunId,
    /// The jobs of the run.
    pub jobs: Vec<String>,
    /// The schedule that fired the run.
    pub schedule: Option<String>,
    /// State of the run.
    pub state: RunState,
    /// Whether the run was cancelled and is still in progress.
    pub cancelling: bool,
    /// Start, by the database clock.
    pub started_at: Timestamp,
    /// The role that started the run.
    pub started_by: String,
    /// End of the run; `None` while it is in progress.
    pub finished_at: Option<Timestamp>,
    /// Seconds from the start to the end of the run, or until now.
    pub duration_seconds: f64,
    /// Number of restarts.
    pub restarts: i32,
    /// Number of tasks.
    pub tasks: i64,
    /// Number of finished tasks, as of the last advance of the run.
    pub finished: i64,
    /// Number of failed tasks. For a run in progress, counted up to [`COUNT_LIMIT`] and including
    /// failures that are ignored.
    pub failed: i64,
    /// Whether the run has missed its deadline.
    pub late: bool,
    /// Expected end of a run in progress, if it was estimated.
    pub eta_at: Option<Timestamp>,
}

from_row! {
    row => RunSummary {
        id, jobs, schedule, state,
        cancelling: column(row, "cancelled")?
            && column::<RunState>(row, "state")? == RunState::Running,
        started_at, started_by, finished_at, duration_seconds, restarts, tasks, finished, failed,
        late, eta_at: None,
    }
}

/// A page of runs, newest first.
#[derive(Clone, Debug, Default, Serialize, utoipa::ToSchema)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// [`RunQuery::after`] of the next page; `None` on the last page.
    pub next: Option<i64>,
}

/// A run to compare with others of the same jobs.
#[derive(Clone, Debug, Serialize)]
pub struct ComparedRun {
    /// The run's id.
    pub id: RunId,
    /// State of the run.
    pub state: RunState,
    /// Start of the run.
    pub started_at: Timestamp,
    /// The instant for which a schedule fired the run.
    pub fire_at: Option<Timestamp>,
    /// Seconds from the start of the run, or from its last restart, to its end or until now.
    pub duration_seconds: f64,
}

from_row! { ComparedRun { id, state, started_at, fire_at, duration_seconds } }

/// State of a task in one of these runs.
#[derive(Clone, Debug, Serialize)]
pub struct GridCell {
    /// The run.
    pub run: RunId,
    /// The task's name.
    pub name: String,
    /// State as in `mill.run_tasks`; `ignored` for a failed task whose failure is ignored.
    pub state: String,
    /// The task's id; `None` until the task enters the queue.
    pub task_id: Option<TaskId>,
    /// Duration of the last attempt, in seconds.
    pub duration_seconds: Option<f64>,
}

from_row! { GridCell { run, name, state, task_id, duration_seconds } }

/// Returns a page of runs.
pub async fn page(
    client: &impl GenericClient,
    query: &RunQuery,
    limit: i64,
) -> Result<RunPage, QueueError> {
    let newest = newest(client).await?;
    // Ids begin at 1, so either this is the last page, or `lowest` leaves another page.
    let mut after = query.after.unwrap_or(i64::MAX).min(newest.saturating_add(1));
    if let Some(to) = query.to.and_then(|to| to.checked_add(MAX_DISORDER).ok()) {
        after = after.min(first_since(client, newest, to).await?);
    }
    let first = match query.from.and_then(|from| from.checked_sub(MAX_DISORDER).ok()) {
        Some(from) => first_since(client, newest, from).await?,
        None => 0,
    };
    let back = if query.state == Some(RunState::Running) { after } else { RUNS_SCANNED };
    let lowest = after.saturating_sub(back).max(first);
    let sql = format!(
        "SELECT /* queue.insight_runs */ {COLUMNS} FROM mill.runs r LEFT JOIN mill.schedules s ON s.id = r.schedule_id
         WHERE r.id < $3 AND r.id >= $4 AND ($5::text IS NULL OR r.state = $5::text::mill.run_state)
             AND ($6::text IS NULL OR lower($6) IN (SELECT lower(j) FROM unnest(r.jobs) AS j))
             AND ($7::text IS NULL OR r.schedule_id = (SELECT o.id FROM mill.schedules o WHERE o.name = $7))
             AND ($5::text IS DISTINCT FROM 'running' OR r.state = 'running')
             AND ($8::timestamptz IS NULL OR r.started_at >= $8) AND ($9::timestamptz IS NULL OR r.started_at <= $9)
         ORDER BY r.id DESC LIMIT $1"
    );
    let wanted = limit + 1;
    let params: [&dyn Param; 9] = [
        /* limit */ &wanted,
        /* count_limit */ &COUNT_LIMIT,
        &after,
        &lowest,
        &query.state.map(RunState::as_str),
        &query.job,
        &query.schedule,
        &query.from,
        &query.to,
    ];
    let mut runs: Vec<RunSummary> = rows(client, &sql, &params).await?;
    let full = runs.len() > usize::try_from(limit).unwrap_or(usize::MAX);
    runs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let next = match runs.last().filter(|_| full) {
        Some(last) => Some(last.id.0),
        None => Some(lowest).filter(|lowest| *lowest > first.max(1)),
    };
    Ok(RunPage { runs, next })
}

/// Returns the highest run id; 0 if there are no runs.
pub(super) async fn newest(client: &impl GenericClient) -> Result<i64, QueueError> {
    one(client, NEWEST, &[]).await
}

/// Returns the id of the first run that started at this time or later; the id after the newest if
/// there is none.
async fn first_since(
    client: &impl GenericClient,
    newest: i64,
    at: Timestamp,
) -> Result<i64, QueueError> {
    let end = newest.saturating_add(1);
    one(client, FIRST_SINCE, &[&end, &at]).await
}

/// Returns up to this number of nodes of a run, with released and failed nodes first.
pub async fn nodes(
    client: &impl GenericClient,
    run: RunId,
    limit: i64,
) -> Result<Vec<i64>, QueueError> {
    rows(client, NODES, &[&run.0, &limit]).await
}

/// Returns a run and earlier runs of the same jobs, newest first.
pub async fn compared_runs(
    client: &impl GenericClient,
    run: RunId,
    limit: i64,
) -> Result<Vec<ComparedRun>, QueueError> {
    rows(client, SIBLINGS, &[&run.0, /* runs_scanned */ &RUNS_SCANNED, &limit]).await
}

/// Returns the last runs that include a job, newest first. Only the newest 10,000 runs are searched.
pub async fn runs_of_job(
    client: &impl GenericClient,
    job: &str,
    limit: i64,
) -> Result<Vec<ComparedRun>, QueueError> {
    let newest = newest(client).await?;
    rows(client, RUNS_OF_JOB, &[&newest, /* runs_scanned */ &RUNS_SCANNED, &limit, &job]).await
}

/// Returns the states of the tasks with these names in these runs.
pub async fn grid_cells(
    client: &impl GenericClient,
    runs: &[i64],
    names: &[&str],
) -> Result<Vec<GridCell>, QueueError> {
    rows(client, CELLS, &[&runs, &names]).await
}
