//! Jobs, page by page, each with its newest run.

pub mod versions;

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::Labels;
use serde::Serialize;

use crate::error::QueueError;
use crate::operator::job::{Dependency, Job};
use crate::row::{first, from_row, labels, rows};

/// Number of newest runs among which the newest run of a job is searched.
pub const RUNS_SCANNED: i64 = 5000;

/// Reads the runs once for the whole page, because no index covers the jobs of runs. An array of the names, because
/// with the statistics of an empty table, a join compares each run with each job.
const JOBS: &str = "WITH /* queue.insight_jobs */ page AS MATERIALIZED (
    SELECT j.name, j.description, j.frequency, j.disabled_at IS NULL AS enabled, j.version, j.changed_at, j.changed_by,
        j.tags, j.metadata
    FROM mill.jobs j WHERE lower(j.name) > $1 AND NOT j.of_schedule ORDER BY lower(j.name) LIMIT $2
), newest AS MATERIALIZED (
    SELECT DISTINCT ON (u.job) u.job, r.id, r.state, r.started_at
    FROM (SELECT x.id, x.state, x.started_at, x.jobs FROM mill.runs x ORDER BY x.id DESC LIMIT $3) AS r
        CROSS JOIN unnest(r.jobs) AS u(job)
    WHERE u.job = ANY (ARRAY(SELECT p.name FROM page p)) ORDER BY u.job, r.id DESC
), counted AS MATERIALIZED (
    SELECT t.job, count(*) AS tasks FROM mill.job_tasks t
    WHERE t.disabled_at IS NULL AND t.job = ANY (ARRAY(SELECT p.name FROM page p)) GROUP BY t.job
)
SELECT p.name, p.description, p.frequency, p.enabled, p.version, p.changed_at, p.changed_by,
    coalesce(c.tasks, 0) AS tasks, n.id AS last_run_id, n.state::text AS last_state, n.started_at AS last_started_at,
    p.tags, p.metadata
FROM page p LEFT JOIN newest n ON n.job = p.name LEFT JOIN counted c ON c.job = p.name ORDER BY lower(p.name)";

/// A page of jobs, by name.
#[derive(Clone, Debug, Default, Serialize, utoipa::ToSchema)]
pub struct JobPage {
    /// The jobs, without those that schedules created from a statement.
    pub jobs: Vec<Job>,
    /// The name after which the next page begins; `None` on the last page.
    pub next: Option<String>,
}

/// Returns the page of jobs after this name.
pub async fn page(
    client: &impl GenericClient,
    after: &str,
    limit: i64,
) -> Result<JobPage, QueueError> {
    let (after, wanted) = (after.to_lowercase(), limit + 1);
    let mut jobs: Vec<Job> =
        rows(client, JOBS, &[&after, /* limit */ &wanted, &RUNS_SCANNED]).await?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let full = jobs.len() > limit;
    jobs.truncate(limit);
    let next = jobs.last().filter(|_| full).map(|job| job.name.clone());
    Ok(JobPage { jobs, next })
}

const HEAD: &str = "SELECT /* queue.insight_job */ j.name, j.description, j.category, j.frequency, j.priority::text, j.disabled_at IS NULL AS enabled,
    (SELECT count(*) FROM mill.job_tasks t WHERE t.job = j.name AND t.disabled_at IS NULL) AS task_count,
    j.version, j.changed_at, j.changed_by, j.tags, j.metadata
FROM mill.jobs j WHERE lower(j.name) = lower($1)";

const TASKS: &str = "SELECT /* queue.insight_job_tasks */ t.name, t.description, t.statement, t.queue, t.priority::text, t.enabled FROM mill.visible_job_tasks t
WHERE t.job = $1 AND t.disabled_at IS NULL ORDER BY t.name LIMIT $2";

const PARAMS: &str = "SELECT /* queue.insight_job_params */ DISTINCT p.name #>> '{}' AS param FROM (SELECT t.params FROM mill.visible_job_tasks t
    WHERE t.job = $1 AND t.disabled_at IS NULL AND t.params IS NOT NULL LIMIT 10000) AS t
    CROSS JOIN LATERAL jsonb_path_query(t.params, '$.**.\"$param\"', '{}', true) AS p(name) ORDER BY 1";

const EDGES: &str = "SELECT /* queue.insight_job_edges */ l.child, l.parent, l.expected::text, l.job FROM (
    SELECT e.child, e.parent, e.expected, e.job FROM mill.job_edges e WHERE e.job = $1 AND e.disabled_at IS NULL
    UNION ALL SELECT d.child, d.parent, d.expected, NULL FROM mill.dependencies d WHERE d.disabled_at IS NULL) AS l
WHERE l.child = ANY ($2) AND l.parent = ANY ($2) ORDER BY l.parent, l.child LIMIT $3";

const OUTSIDE_EDGES: &str = "SELECT /* queue.insight_job_outside_edges */ d.child, d.parent, d.expected::text, NULL AS job FROM mill.dependencies d
WHERE d.disabled_at IS NULL AND (d.child = ANY ($1)) <> (d.parent = ANY ($1)) ORDER BY d.parent, d.child LIMIT $2";

/// A job with the details that its page shows.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct JobDetail {
    /// Name of the job.
    pub name: String,
    /// Free-text description.
    pub description: Option<String>,
    /// Free-text category.
    pub category: Option<String>,
    /// Free-text frequency.
    pub frequency: Option<String>,
    /// Default priority of its tasks.
    pub priority: Option<String>,
    /// Whether the job may be run.
    pub enabled: bool,
    /// Version number, from 1; increases with each change.
    pub version: i32,
    /// Time of the last change.
    pub changed_at: Timestamp,
    /// The role that last changed the job.
    pub changed_by: String,
    /// Number of its tasks.
    pub task_count: i64,
    /// The first tasks, by name.
    pub tasks: Vec<JobTask>,
    /// Parameters of a run of the job; empty if the role may not see statements.
    pub params: Vec<String>,
    /// Tags and metadata.
    #[serde(flatten)]
    pub labels: Labels,
}

from_row! {
    row => JobDetail {
        name, description, category, frequency, priority, enabled, version, changed_at, changed_by,
        task_count,
        tasks: Vec::new(), params: Vec::new(), labels: labels(row)?,
    }
}

/// A task of a job.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct JobTask {
    /// Name of the task.
    pub name: String,
    /// Free-text description.
    pub description: Option<String>,
    /// SQL of the task; `None` if the role may not see statements.
    pub statement: Option<String>,
    /// The task's queue.
    pub queue: String,
    /// Priority of the task; `None` means the job's priority.
    pub priority: Option<String>,
    /// Whether new runs include the task.
    pub enabled: bool,
}

from_row! { JobTask { name, description, statement, queue, priority, enabled } }

/// Returns a job with up to the given number of its tasks; `None` if it does not exist. The name
/// matches in any letter case.
pub async fn job_detail(
    client: &impl GenericClient,
    name: &str,
    limit: i64,
) -> Result<Option<JobDetail>, QueueError> {
    let head: Option<JobDetail> = first(client, HEAD, &[&name]).await?;
    let Some(mut job) = head else { return Ok(None) };
    job.tasks = rows(client, TASKS, &[&job.name, &limit]).await?;
    job.params = rows(client, PARAMS, &[&job.name]).await?;
    Ok(Some(job))
}

/// Returns the dependencies between these tasks in runs of this job, up to the given number.
pub async fn edges(
    client: &impl GenericClient,
    job: &str,
    tasks: &[&str],
    limit: i64,
) -> Result<Vec<Dependency>, QueueError> {
    rows(client, EDGES, &[&job, &tasks, &limit]).await
}

/// Returns the dependencies between these tasks and other tasks, up to the given number. They apply
/// in runs that have both tasks.
pub async fn outside_edges(
    client: &impl GenericClient,
    tasks: &[&str],
    limit: i64,
) -> Result<Vec<Dependency>, QueueError> {
    rows(client, OUTSIDE_EDGES, &[&tasks, &limit]).await
}
