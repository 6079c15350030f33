//! What an operator is told first, beside queues and workers: who holds up a task, which schedules
//! nobody ticked in time, and which runs failed.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};

use super::runs::newest;
use crate::error::QueueError;
use crate::run::RunId;
use crate::task::TaskId;

/// What other logins' sessions do is shown only to who may see it.
const BACKENDS: &str = "/* queue.insight_blockers */
SELECT a.pid, a.usename::text, a.application_name, a.state,
    extract(epoch FROM now() - a.xact_start)::float8, t.id, t.name
FROM pg_stat_activity a LEFT JOIN mill.tasks t ON t.state = 'running' AND t.session_pid = a.pid
    AND t.session_started_at = a.backend_start
WHERE a.pid = ANY ($1) ORDER BY a.pid";

/// The log has no index on time; its last rows are the last in time.
const MISSED: &str = "/* queue.insight_missed_fires */
SELECT s.name, count(*), max(l.logged_at)
FROM (SELECT * FROM mill.visible_schedule_log ORDER BY id DESC LIMIT 2000) AS l
    JOIN mill.schedules s ON s.id = l.schedule_id
WHERE l.event = 'missed' AND l.logged_at > now() - interval '1 day'
GROUP BY s.name ORDER BY max(l.logged_at) DESC LIMIT 20";

/// Runs that one look goes back over.
const RUNS_SCANNED: i64 = 1000;

/// Nothing is indexed by the state of a run that has ended: the newest ones are looked at, by their
/// primary key. What failed and was done since, by another run of the same jobs with the same
/// parameters, is no trouble any more; to who may not see parameters, all of them are the same. The view
/// counts the tasks of runs that go on, and of no others.
const FAILED_RUNS: &str = "/* queue.insight_failed_runs */
WITH newest AS MATERIALIZED (
    SELECT r.id, r.jobs, r.params, r.state, r.failed, r.tasks, r.finished_at
    FROM mill.run_status r WHERE r.id > $1 AND r.state <> 'running'
)
SELECT r.jobs, count(*), max(r.id), (array_agg(r.failed ORDER BY r.id DESC))[1]::bigint,
    (array_agg(r.tasks ORDER BY r.id DESC))[1]::bigint, max(r.finished_at)
FROM newest r WHERE r.state = 'failed' AND r.finished_at > now() - interval '1 day'
    AND NOT EXISTS (SELECT FROM newest o WHERE o.jobs = r.jobs
        AND o.params IS NOT DISTINCT FROM r.params AND o.state = 'succeeded' AND o.id > r.id)
GROUP BY r.jobs ORDER BY max(r.finished_at) DESC LIMIT 20";

/// The order makes the planner walk the index of runs that go on, which is small.
const FAILING_RUNS: &str = "/* queue.insight_failing_runs */
SELECT r.jobs, 1::bigint, r.id, f.failed, r.tasks::bigint, f.first_at
FROM (SELECT g.id, g.jobs, g.tasks, g.cancelled_at FROM mill.runs g WHERE g.state = 'running'
    ORDER BY g.schedule_id LIMIT 500) AS r
    CROSS JOIN LATERAL (SELECT count(*) AS failed, min(few.finished_at) AS first_at FROM (
        SELECT t.finished_at FROM mill.run_tasks t WHERE t.state = 'failed' AND t.run_id = r.id
            AND NOT t.ignore_failure AND t.finished_at IS NOT NULL LIMIT 1000) AS few) AS f
WHERE f.failed > 0 AND r.cancelled_at IS NULL
ORDER BY r.id DESC LIMIT 20";

/// A backend that holds a lock that a task waits for.
#[derive(Clone, Debug, Serialize)]
pub struct Blocker {
    /// Its process.
    pub pid: i32,
    /// Whose session it is.
    pub user: Option<String>,
    /// What the session calls itself.
    pub application: Option<String>,
    /// As in `pg_stat_activity`.
    pub state: Option<String>,
    /// Since when its transaction is open.
    pub transaction_seconds: Option<f64>,
    /// The task that it runs, if it runs one.
    pub task: Option<TaskId>,
    /// That task's name.
    pub task_name: Option<String>,
}

/// A schedule whose fires were missed within a day.
#[derive(Clone, Debug, Serialize)]
pub struct MissedFires {
    /// Its name.
    pub schedule: String,
    /// How often that was said.
    pub times: i64,
    /// When last.
    pub last_at: Timestamp,
}

/// Runs of the same jobs that failed within a day, or one that goes on with tasks that failed.
#[derive(Clone, Debug, Serialize)]
pub struct FailedRuns {
    /// What they are made of.
    pub jobs: Vec<String>,
    /// How many there are.
    pub runs: i64,
    /// The newest of them.
    pub run: RunId,
    /// It goes on.
    pub in_progress: bool,
    /// Tasks of the newest that failed and count.
    pub failed: i64,
    /// All tasks of the newest.
    pub tasks: i64,
    /// When the last of them ended; of one that goes on: when the first task failed.
    pub at: Timestamp,
}

/// These backends, as far as they are still there.
///
/// # Errors
/// Database trouble.
pub async fn blockers(
    client: &impl GenericClient,
    pids: &[i32],
) -> Result<Vec<Blocker>, QueueError> {
    let blocker = |row: &Row| {
        Ok(Blocker {
            pid: row.try_get(0)?,
            user: row.try_get(1)?,
            application: row.try_get(2)?,
            state: row.try_get(3)?,
            transaction_seconds: row.try_get(4)?,
            task: row.try_get::<_, Option<i64>>(5)?.map(TaskId),
            task_name: row.try_get(6)?,
        })
    };
    client.query_typed(BACKENDS, &[(&pids, Type::INT4_ARRAY)]).await?.iter().map(blocker).collect()
}

/// Schedules whose fires were missed, among the last 2,000 lines of the log.
///
/// # Errors
/// Database trouble.
pub async fn missed_fires(client: &impl GenericClient) -> Result<Vec<MissedFires>, QueueError> {
    let missed = |row: &Row| {
        Ok(MissedFires {
            schedule: row.try_get(0)?,
            times: row.try_get(1)?,
            last_at: row.try_get(2)?,
        })
    };
    client.query_typed(MISSED, &[]).await?.iter().map(missed).collect()
}

/// Runs that failed within a day, among the newest 1,000, and that no later one has made up for; and,
/// of 500 that go on, those with failed tasks. At most 20 of each.
///
/// # Errors
/// Database trouble.
pub async fn failed_runs(client: &impl GenericClient) -> Result<Vec<FailedRuns>, QueueError> {
    let behind = newest(client).await?.saturating_sub(RUNS_SCANNED);
    let ended = client.query_typed(FAILED_RUNS, &[(&behind, Type::INT8)]).await?;
    let going_on = client.query_typed(FAILING_RUNS, &[]).await?;
    let mut failed = Vec::new();
    for (rows, in_progress) in [(ended, false), (going_on, true)] {
        for row in rows {
            failed.push(FailedRuns {
                jobs: row.try_get(0)?,
                runs: row.try_get(1)?,
                run: RunId(row.try_get(2)?),
                in_progress,
                failed: row.try_get(3)?,
                tasks: row.try_get(4)?,
                at: row.try_get(5)?,
            });
        }
    }
    Ok(failed)
}
