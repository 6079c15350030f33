//! Definitions of jobs, and of dependencies between tasks.

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::Labels;
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::types::Json;

use crate::error::QueueError;
use crate::operator::run::Expected;
use crate::row::{from_row, labels, one, rows};

const SET: &str = "SELECT /* queue.set_job */ mill.set_job($1->>'name', $1->'tasks', $1->>'description', $1->>'frequency',
    ($1->>'priority')::mill.priority, ($1->>'enabled')::boolean, $1->>'category',
    jsonb_build_object('tags', $1->'tags', 'metadata', $1->'metadata',
        'expected_duration', $1->'expected_duration', 'deadline', $1->'deadline',
        'run_timeout', $1->'run_timeout'))";

const DEFINITIONS: &str =
    "SELECT /* queue.job_definitions */ mill.job_definition(j.name) FROM mill.jobs j
WHERE NOT j.of_schedule ORDER BY j.name";

const DEFINITION: &str = "SELECT /* queue.job_definition */ mill.job_definition($1)";

/// The last runs are found in one pass over all runs: a search for each job took 914 ms instead of 18 ms
/// for 4,000 jobs and 8,000 runs, and grew with the product of both. A full join cannot be a nested loop,
/// which the planner would choose with the statistics of empty tables; the condition on the name keeps it
/// from becoming a left join.
const JOBS: &str = "SELECT /* queue.jobs */ j.name, j.description, j.frequency, j.disabled_at IS NULL AS enabled, j.version, j.changed_at,
    j.changed_by,
    coalesce(n.tasks, 0) AS tasks, last.id AS last_run_id, last.state::text AS last_state, last.started_at AS last_started_at, j.tags, j.metadata
FROM mill.jobs j FULL JOIN (SELECT t.job, count(*) AS tasks FROM mill.job_tasks t WHERE t.disabled_at IS NULL
    GROUP BY t.job) AS n ON n.job = j.name FULL JOIN (SELECT DISTINCT ON (u.job) u.job, r.id, r.state, r.started_at
    FROM mill.runs r CROSS JOIN unnest(r.jobs) AS u(job) ORDER BY u.job, r.id DESC) AS last ON last.job = j.name
WHERE coalesce(j.name, '') <> '' AND (NOT j.of_schedule OR j.disabled_at IS NULL
    OR j.name IN (SELECT u.job FROM mill.schedules s CROSS JOIN unnest(s.jobs) AS u(job) WHERE s.removed_at IS NULL))
ORDER BY lower(j.name)";

const UNKNOWN_TASKS: &str = "SELECT /* queue.unknown_job_tasks */ n FROM unnest($1::text[]) AS n WHERE NOT EXISTS (SELECT FROM mill.job_tasks t WHERE t.name = n)";

const SCHEDULES: &str = "SELECT /* queue.schedules_of_job */ s.name FROM mill.schedule_status s
WHERE lower($1) = ANY (SELECT lower(j) FROM unnest(s.jobs) AS j) AND s.status NOT IN ('removed', 'disabled')
ORDER BY s.name";

const ENABLE: &str = "SELECT /* queue.enable_job */ mill.enable_job($1, $2)";

const ENABLE_TASK: &str = "SELECT /* queue.enable_job_task */ mill.enable_job_task($1, $2, $3)";

const SET_DEPENDENCY: &str =
    "SELECT /* queue.set_dependency */ mill.set_dependency($1, $2, $3::text::mill.expected)";

const DROP_DEPENDENCY: &str = "SELECT /* queue.drop_dependency */ mill.drop_dependency($1, $2)";

const DEPENDENCIES: &str = "SELECT /* queue.dependencies */ d.child, d.parent, d.expected::text, NULL AS job FROM mill.dependencies d
WHERE d.disabled_at IS NULL
ORDER BY d.child, d.parent";

const LINEAGE: &str = "WITH /* queue.lineage */ around AS (
    SELECT u.task FROM mill.upstream($1) AS u WHERE $2
    UNION SELECT d.task FROM mill.downstream($1) AS d WHERE $3
    UNION SELECT $1
)
SELECT l.child, l.parent, l.expected::text, l.job FROM mill.lineage l
WHERE l.child IN (SELECT a.task FROM around a) AND l.parent IN (SELECT a.task FROM around a)
ORDER BY l.parent, l.child, l.job NULLS FIRST";

/// A job and its newest run.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Job {
    /// Name of the job.
    pub name: String,
    /// Free-text description.
    pub description: Option<String>,
    /// Free-text frequency.
    pub frequency: Option<String>,
    /// Whether the job may be run.
    pub enabled: bool,
    /// Version number, from 1; increases with each change.
    pub version: i32,
    /// Time of the last change.
    pub changed_at: Timestamp,
    /// The role that last changed the job.
    pub changed_by: String,
    /// Number of tasks.
    pub tasks: i64,
    /// The newest run; `None` if the job never ran or history no longer contains its runs.
    pub last_run_id: Option<i64>,
    /// State of that run.
    pub last_state: Option<String>,
    /// Start of that run.
    pub last_started_at: Option<Timestamp>,
    /// Tags and metadata.
    #[serde(flatten)]
    pub labels: Labels,
}

from_row! {
    row => Job {
        name, description, frequency, enabled, version, changed_at, changed_by, tasks, last_run_id,
        last_state, last_started_at, labels: labels(row)?,
    }
}

/// A dependency of one task on another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dependency {
    /// The task that waits.
    pub child: String,
    /// The task that the child waits for.
    pub parent: String,
    /// The outcome of the parent that the dependency requires.
    pub expected: Expected,
    /// The job to which the dependency belongs; `None` if it holds in every run.
    pub job: Option<String>,
}

from_row! { Dependency { child, parent, expected, job } }

/// Creates or changes a job. The document has the format of [`definition`]. Returns whether
/// anything changed.
///
/// Fails if the document is invalid. The table field of the error then names the job, and its
/// column field names the task.
pub async fn set(client: &impl GenericClient, job: &Value) -> Result<bool, QueueError> {
    one(client, SET, &[&Json(job)]).await
}

/// Returns every job as a document. Includes disabled jobs, but not the jobs that schedules created
/// from a statement.
pub async fn definitions(client: &impl GenericClient) -> Result<Vec<Value>, QueueError> {
    rows(client, DEFINITIONS, &[]).await
}

/// Returns a job as a document; `None` if it does not exist.
pub async fn definition(
    client: &impl GenericClient,
    job: &str,
) -> Result<Option<Value>, QueueError> {
    one(client, DEFINITION, &[&job]).await
}

/// Returns the jobs by name, without those of removed schedules.
pub async fn jobs(client: &impl GenericClient) -> Result<Vec<Job>, QueueError> {
    rows(client, JOBS, &[]).await
}

/// Returns the names of the enabled schedules that run this job.
pub async fn schedules(client: &impl GenericClient, job: &str) -> Result<Vec<String>, QueueError> {
    rows(client, SCHEDULES, &[&job]).await
}

/// Enables or disables a job. Returns `false` if it does not exist.
///
/// # Errors
/// Fails if the role lacks the privilege.
pub async fn enable(
    client: &impl GenericClient,
    job: &str,
    enabled: bool,
) -> Result<bool, QueueError> {
    one(client, ENABLE, &[&job, &enabled]).await
}

/// Enables or disables one task of a job: new runs omit a disabled task. Returns `false` if the job
/// or the task does not exist.
///
/// # Errors
/// Fails if another task uses its result, or the role lacks the privilege.
pub async fn enable_task(
    client: &impl GenericClient,
    job: &str,
    task: &str,
    enabled: bool,
) -> Result<bool, QueueError> {
    one(client, ENABLE_TASK, &[&job, &task, &enabled]).await
}

/// Returns those of the names that no task of any job has.
pub async fn unknown_tasks(
    client: &impl GenericClient,
    names: &[&str],
) -> Result<Vec<String>, QueueError> {
    rows(client, UNKNOWN_TASKS, &[&names]).await
}

/// Makes the child wait for the parent in every run that contains both. Returns whether this
/// changed anything.
///
/// # Errors
/// Fails if the tasks would wait for each other, or the role lacks the privilege.
pub async fn set_dependency(
    client: &impl GenericClient,
    child: &str,
    parent: &str,
    expected: Expected,
) -> Result<bool, QueueError> {
    let expected = expected.as_str();
    one(client, SET_DEPENDENCY, &[&child, &parent, &expected]).await
}

/// Disables a dependency. Returns `false` if it does not exist.
///
/// # Errors
/// Fails if the role lacks the privilege.
pub async fn drop_dependency(
    client: &impl GenericClient,
    child: &str,
    parent: &str,
) -> Result<bool, QueueError> {
    one(client, DROP_DEPENDENCY, &[&child, &parent]).await
}

/// Returns the dependencies that hold in every run.
pub async fn dependencies(client: &impl GenericClient) -> Result<Vec<Dependency>, QueueError> {
    rows(client, DEPENDENCIES, &[]).await
}

/// Returns the dependencies of a task: upstream if `up`, downstream if `down`.
pub async fn lineage(
    client: &impl GenericClient,
    task: &str,
    up: bool,
    down: bool,
) -> Result<Vec<Dependency>, QueueError> {
    rows(client, LINEAGE, &[&task, &up, &down]).await
}
