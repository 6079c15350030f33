//! What an operator is told first, beside queues and workers: who holds up a task, and which schedules
//! nobody ticked in time.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};

use crate::error::QueueError;
use crate::task::TaskId;

/// What other logins' sessions do is shown only to who may see it.
const BACKENDS: &str = "/* queue.insight_backends */
SELECT a.pid, a.usename::text, a.application_name, a.state,
    extract(epoch FROM now() - a.xact_start)::float8, t.id, t.name
FROM pg_stat_activity a LEFT JOIN mill.tasks t ON t.state = 'running' AND t.session_pid = a.pid
    AND t.session_started_at = a.backend_start
WHERE a.pid = ANY ($1) ORDER BY a.pid";

/// The log has no index on time; its last rows are the last in time.
const MISSED: &str = "/* queue.insight_missed */
SELECT s.name, count(*), max(l.logged_at)
FROM (SELECT * FROM mill.shown_schedule_log ORDER BY id DESC LIMIT 2000) AS l
    JOIN mill.schedules s ON s.id = l.schedule_id
WHERE l.event = 'missed' AND l.logged_at > now() - interval '1 day'
GROUP BY s.name ORDER BY max(l.logged_at) DESC LIMIT 20";

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
pub struct Missed {
    /// Its name.
    pub schedule: String,
    /// How often that was said.
    pub times: i64,
    /// When last.
    pub last_at: Timestamp,
}

/// These backends, as far as they are still there.
///
/// # Errors
/// Database trouble.
pub async fn backends(
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
pub async fn missed(client: &impl GenericClient) -> Result<Vec<Missed>, QueueError> {
    let missed = |row: &Row| {
        Ok(Missed { schedule: row.try_get(0)?, times: row.try_get(1)?, last_at: row.try_get(2)? })
    };
    client.query_typed(MISSED, &[]).await?.iter().map(missed).collect()
}
