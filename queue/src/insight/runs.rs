//! Runs, page by page, and as much of one run as a page can show.
//!
//! Nothing is indexed by job or state of a run that has ended: a page looks back over so many runs and
//! says where it stopped. Runs that go on have an index of their own, however old they are.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};

use crate::error::QueueError;
use crate::pg_enum::enum_column;
use crate::run::{RunId, RunState};
use crate::task::TaskId;

/// Runs that one page looks at.
const RUNS_SCANNED: i64 = 10_000;

/// What is counted of a run that goes on ends here.
pub const COUNT_LIMIT: i64 = 1000;

const COLUMNS: &str = "r.id, r.jobs, s.name, r.state::text, r.started_at, r.started_by, r.finished_at,
    extract(epoch FROM coalesce(r.finished_at, now()) - r.started_at)::float8, r.restarts, r.tasks::bigint,
    (r.tasks - r.open)::bigint,
    CASE WHEN r.state <> 'running' THEN r.failed ELSE (SELECT count(*) FROM (SELECT FROM mill.run_tasks t
        WHERE t.state = 'failed' AND t.run_id = r.id LIMIT $2) AS f) END::bigint,
    r.cancelled_at IS NOT NULL";

const NEWEST: &str = "/* queue.insight_newest_run */
SELECT coalesce((SELECT r.id FROM mill.runs r ORDER BY r.id DESC LIMIT 1), 0)";

/// First what somebody looks for.
const NODES: &str = "/* queue.insight_run_nodes */
SELECT n.node FROM unnest('{released,failed,cancelled,upstream_failed,ready,waiting,succeeded}'::mill.run_task_state[])
    WITH ORDINALITY AS s(state, place)
CROSS JOIN LATERAL (SELECT t.node FROM mill.run_tasks t WHERE t.state = s.state AND t.run_id = $1
    ORDER BY t.node LIMIT $2) AS n
ORDER BY s.place, n.node LIMIT $2";

const SIBLINGS: &str = "/* queue.insight_run_siblings */
SELECT r.id, r.state::text, r.started_at FROM mill.runs r
WHERE r.id <= $1 AND r.id > $1 - $2 AND r.jobs = (SELECT o.jobs FROM mill.runs o WHERE o.id = $1)
ORDER BY r.id DESC LIMIT $3";

const CELLS: &str = "/* queue.insight_run_cells */
SELECT t.run_id, t.name, CASE WHEN t.state = 'failed' AND t.ignore_failure THEN 'ignored' ELSE t.state::text END,
    t.task_id, extract(epoch FROM t.finished_at - t.started_at)::float8
FROM mill.run_tasks t WHERE t.name = ANY ($2) AND t.run_id = ANY ($1)";

/// Which runs.
#[derive(Clone, Debug, Default)]
pub struct RunQuery {
    /// In this state.
    pub state: Option<RunState>,
    /// Of this job, maybe among others.
    pub job: Option<String>,
    /// Of this schedule.
    pub schedule: Option<String>,
    /// Older than this run.
    pub after: Option<i64>,
}

/// A run in a list.
#[derive(Clone, Debug, Serialize)]
pub struct RunSummary {
    /// Its id.
    pub id: RunId,
    /// What it is made of.
    pub jobs: Vec<String>,
    /// Which schedule fired it.
    pub schedule: Option<String>,
    /// Whether it goes on.
    pub state: RunState,
    /// It goes on, and somebody cancelled it.
    pub cancelling: bool,
    /// By the database's clock.
    pub started_at: Timestamp,
    /// Role.
    pub started_by: String,
    /// `None`: it goes on.
    pub finished_at: Option<Timestamp>,
    /// Until now, or until its end.
    pub duration_seconds: f64,
    /// How often it was restarted.
    pub restarts: i32,
    /// All of its tasks.
    pub tasks: i64,
    /// Those that have ended, as far as the run has been advanced.
    pub ended: i64,
    /// Those that failed; of a run that goes on up to [`COUNT_LIMIT`], with those that do not count.
    pub failed: i64,
}

/// A page, the newest first.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// What [`RunQuery::after`] is for the next page; `None`: this was the last.
    pub next: Option<i64>,
}

/// A run beside others of the same jobs.
#[derive(Clone, Debug, Serialize)]
pub struct Sibling {
    /// Its id.
    pub id: RunId,
    /// How it stands.
    pub state: RunState,
    /// When it began.
    pub started_at: Timestamp,
}

/// What a task was in one of these runs.
#[derive(Clone, Debug, Serialize)]
pub struct GridCell {
    /// The run.
    pub run: RunId,
    /// The task's name.
    pub name: String,
    /// As in `mill.run_tasks`; `ignored`: failed, which was said not to count.
    pub state: String,
    /// Once it got into the queue.
    pub task_id: Option<TaskId>,
    /// Of its last attempt.
    pub duration_seconds: Option<f64>,
}

/// A page of runs.
///
/// # Errors
/// Database trouble.
pub async fn page(
    client: &impl GenericClient,
    query: &RunQuery,
    most: i64,
) -> Result<RunPage, QueueError> {
    let newest = newest(client).await?;
    // Ids begin at 1, so that this is the last page, or there is another.
    let after = query.after.unwrap_or(i64::MAX).min(newest.saturating_add(1));
    let back = if query.state == Some(RunState::Running) { after } else { RUNS_SCANNED };
    let lowest = after.saturating_sub(back).max(0);
    let sql = format!(
        "/* queue.insight_runs */
         SELECT {COLUMNS} FROM mill.runs r LEFT JOIN mill.schedules s ON s.id = r.schedule_id
         WHERE r.id < $3 AND r.id >= $4 AND ($5::text IS NULL OR r.state = $5::text::mill.run_state)
             AND ($6::text IS NULL OR $6 = ANY (r.jobs))
             AND ($7::text IS NULL OR r.schedule_id = (SELECT o.id FROM mill.schedules o WHERE o.name = $7))
             AND ($5::text IS DISTINCT FROM 'running' OR r.state = 'running')
         ORDER BY r.id DESC LIMIT $1"
    );
    let wanted = most + 1;
    let params = [
        (&wanted as _, Type::INT8),
        (&COUNT_LIMIT as _, Type::INT8),
        (&after as _, Type::INT8),
        (&lowest as _, Type::INT8),
        (&query.state.map(RunState::as_str) as _, Type::TEXT),
        (&query.job as _, Type::TEXT),
        (&query.schedule as _, Type::TEXT),
    ];
    let rows = client.query_typed(&sql, &params).await?;
    let mut runs = rows.iter().map(run_from_row).collect::<Result<Vec<_>, _>>()?;
    let full = runs.len() > usize::try_from(most).unwrap_or(usize::MAX);
    runs.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    let next = match runs.last().filter(|_| full) {
        Some(last) => Some(last.id.0),
        None => Some(lowest).filter(|lowest| *lowest > 1),
    };
    Ok(RunPage { runs, next })
}

/// The highest id of a run; 0: there is none.
pub(super) async fn newest(client: &impl GenericClient) -> Result<i64, QueueError> {
    Ok(client.query_typed(NEWEST, &[]).await?[0].try_get(0)?)
}

/// Nodes of a run, at most so many: first what runs, failed or is in trouble.
///
/// # Errors
/// Database trouble.
pub async fn nodes(
    client: &impl GenericClient,
    run: RunId,
    most: i64,
) -> Result<Vec<i64>, QueueError> {
    let rows = client.query_typed(NODES, &[(&run.0, Type::INT8), (&most, Type::INT8)]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

/// A run and earlier ones of the same jobs, the newest first.
///
/// # Errors
/// Database trouble.
pub async fn siblings(
    client: &impl GenericClient,
    run: RunId,
    most: i64,
) -> Result<Vec<Sibling>, QueueError> {
    let params =
        [(&run.0 as _, Type::INT8), (&RUNS_SCANNED as _, Type::INT8), (&most as _, Type::INT8)];
    let sibling = |row: &Row| {
        Ok(Sibling {
            id: RunId(row.try_get(0)?),
            state: enum_column(row, 1, "state")?,
            started_at: row.try_get(2)?,
        })
    };
    client.query_typed(SIBLINGS, &params).await?.iter().map(sibling).collect()
}

/// What tasks of these names were in these runs.
///
/// # Errors
/// Database trouble.
pub async fn grid_cells(
    client: &impl GenericClient,
    runs: &[i64],
    names: &[&str],
) -> Result<Vec<GridCell>, QueueError> {
    let params = [(&runs as _, Type::INT8_ARRAY), (&names as _, Type::TEXT_ARRAY)];
    let cell = |row: &Row| {
        Ok(GridCell {
            run: RunId(row.try_get(0)?),
            name: row.try_get(1)?,
            state: row.try_get(2)?,
            task_id: row.try_get::<_, Option<i64>>(3)?.map(TaskId),
            duration_seconds: row.try_get(4)?,
        })
    };
    client.query_typed(CELLS, &params).await?.iter().map(cell).collect()
}

fn run_from_row(row: &Row) -> Result<RunSummary, QueueError> {
    let state = enum_column(row, 3, "state")?;
    Ok(RunSummary {
        id: RunId(row.try_get(0)?),
        jobs: row.try_get(1)?,
        schedule: row.try_get(2)?,
        state,
        cancelling: state == RunState::Running && row.try_get::<_, bool>(12)?,
        started_at: row.try_get(4)?,
        started_by: row.try_get(5)?,
        finished_at: row.try_get(6)?,
        duration_seconds: row.try_get(7)?,
        restarts: row.try_get(8)?,
        tasks: row.try_get(9)?,
        ended: row.try_get(10)?,
        failed: row.try_get(11)?,
    })
}
