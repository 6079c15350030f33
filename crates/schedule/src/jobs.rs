//! The jobs that a schedule runs, and the statement of a schedule that has one.

use conninfo::GenericClient;
use queue::QueueError;
use queue::row::{column, from_row, rows};
use serde::Serialize;
use serde_json::Value;

const JOBS: &str = "SELECT /* schedule.jobs */ j.name, j.description, j.category, t.name IS NOT NULL AS has_task, t.statement, t.params, t.mode::text, t.queue,
    t.max_attempts::integer, extract(epoch FROM t.retry_interval)::float8 AS retry_interval_seconds,
    t.backoff::text, extract(epoch FROM t.timeout)::float8 AS timeout_seconds, t.run_as
FROM mill.schedules s CROSS JOIN LATERAL unnest(s.jobs) WITH ORDINALITY AS w(job, place)
    JOIN mill.jobs j ON lower(j.name) = lower(w.job)
    LEFT JOIN mill.visible_job_tasks t ON s.own_job AND t.job = j.name AND t.disabled_at IS NULL
WHERE s.name = $1 ORDER BY w.place";

const PARAMS: &str = "SELECT /* schedule.params */ DISTINCT p.name #>> '{}' AS param FROM (SELECT t.params FROM mill.schedules s
        JOIN mill.visible_job_tasks t ON lower(t.job) = ANY (SELECT lower(j) FROM unnest(s.jobs) AS j)
    WHERE s.name = $1 AND t.disabled_at IS NULL AND t.params IS NOT NULL LIMIT 10000) AS t
    CROSS JOIN LATERAL jsonb_path_query(t.params, '$.**.\"$param\"', '{}', true) AS p(name)
WHERE p.name #>> '{}' NOT IN ('fire_at', 'schedule', 'reason') ORDER BY 1";

/// A job that a schedule runs.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ScheduledJob {
    /// Name of the job.
    pub name: String,
    /// Description; for a schedule in a comment, the title of `@job` and the text of the comment.
    pub description: Option<String>,
    /// Category.
    pub category: Option<String>,
    /// The statement, if the job was created for the schedule from a single statement.
    pub task: Option<ScheduledTask>,
}

/// The statement of a schedule, with its declared options.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ScheduledTask {
    /// The statement; `None` if the role may not see statements.
    pub statement: Option<String>,
    /// Values of `$1`, `$2`, …; `None` if there are none, or if the role may not see them.
    pub params: Option<Value>,
    /// Mode of the statement.
    pub mode: String,
    /// Queue.
    pub queue: String,
    /// Declared maximum number of failed attempts.
    pub max_attempts: i32,
    /// Declared wait before a retry, in seconds.
    pub retry_interval_seconds: f64,
    /// Declared backoff.
    pub backoff: String,
    /// Maximum duration of an attempt, in seconds.
    pub timeout_seconds: Option<f64>,
    /// Profile; empty for the login of tasks.
    pub run_as: String,
}

from_row! {
    ScheduledTask {
        statement, params, mode, queue, max_attempts, retry_interval_seconds, backoff,
        timeout_seconds, run_as,
    }
}

from_row! {
    row => ScheduledJob {
        name, description, category,
        task: if column(row, "has_task")? { Some(ScheduledTask::from_row(row)?) } else { None },
    }
}

/// Returns the jobs that a schedule runs, in their order.
pub async fn jobs(
    client: &impl GenericClient,
    schedule: &str,
) -> Result<Vec<ScheduledJob>, QueueError> {
    rows(client, JOBS, &[&schedule]).await
}

/// Returns the names of the parameters that the jobs of a schedule take, except for the values of
/// the fire.
pub async fn param_names(
    client: &impl GenericClient,
    schedule: &str,
) -> Result<Vec<String>, QueueError> {
    rows(client, PARAMS, &[&schedule]).await
}
