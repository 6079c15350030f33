//! API handlers that change something: enqueue tasks, start runs, and act on tasks, runs, schedules,
//! jobs, queues and workers.
//!
//! Each request is one transaction. The database checks the privileges of the user's role.

use std::time::Duration;

use axum::extract::Path;
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::enqueue::{self, Due, Enqueued, NewTask, TaskOptions};
use queue::run::{self, RestartOptions, Started};
use queue::{
    Backoff, Isolation, Labels, Mode, Priority, RunId, StoredOptions, TaskId, WorkerId, cancel,
    job, operate, run_queries,
};
use schedule::declare;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::api_request::ApiRequest;
use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::options::rights::Scope;
use crate::screens::runs::run::{no_such_run, run_id};

/// Tasks to enqueue, with common options. Durations are in seconds.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EnqueueRequest {
    /// At least one.
    #[schema(min_items = 1)]
    tasks: Vec<TaskRequest>,
    queue: Option<String>,
    priority: Option<Priority>,
    /// Earliest start; by default at once.
    due_at: Option<Timestamp>,
    max_attempts: Option<i32>,
    retry_interval_seconds: Option<f64>,
    backoff: Option<Backoff>,
    jitter: Option<bool>,
    timeout_seconds: Option<f64>,
    mode: Option<Mode>,
    isolation: Option<Isolation>,
    #[serde(default)]
    at_most_once: bool,
    #[serde(default)]
    external: bool,
    #[serde(default)]
    explain: bool,
    group: Option<String>,
    concurrency_key: Option<String>,
    concurrency: Option<i32>,
    run_as: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
    store_params: Option<bool>,
    store_output: Option<bool>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TaskRequest {
    /// The SQL.
    statement: String,
    /// Values of $1, $2, …
    #[schema(value_type = Option<Vec<Object>>)]
    params: Option<Vec<Value>>,
    name: Option<String>,
    /// Deduplication key: at most one live task has it. Only in a request with one task.
    key: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct EnqueuedTasks {
    /// The tasks, in the order of the request.
    tasks: Vec<Enqueued>,
}

/// Jobs to start as one run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StartRunRequest {
    #[schema(min_items = 1)]
    jobs: Vec<String>,
    /// Values of the parameters of the jobs.
    #[serde(default)]
    #[schema(value_type = Object)]
    params: Map<String, Value>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
    /// Time after which the run is cancelled, instead of that of the jobs.
    run_timeout_seconds: Option<f64>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct CancelRunRequest {
    /// Whether to cancel its running tasks, too.
    kill: bool,
}

/// Which tasks of a run to run again; without any of the first three, those that failed and those
/// that never ran.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct RestartRunRequest {
    failed: bool,
    never_run: bool,
    downstream: bool,
    /// Whether to restart even a run that was cancelled.
    force: bool,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct RerunRequest {
    /// The tasks; all tasks if empty.
    tasks: Vec<String>,
    /// Whether to run only these tasks, and not the tasks after them.
    only: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RunScheduleRequest {
    /// The schedule.
    name: String,
    /// Whether to start a run while another one is in progress, or again for the same instant.
    #[serde(default)]
    force: bool,
    /// Parameters, in addition to those of the schedule.
    #[serde(default)]
    #[schema(value_type = Object)]
    params: Map<String, Value>,
    /// Instant in the past for which the run is; by default the current time.
    fire_at: Option<Timestamp>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EnableRequest {
    /// The schedule or the job.
    name: String,
    enabled: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PauseRequest {
    /// The queue.
    queue: String,
    paused: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DrainRequest {
    draining: bool,
}

/// A request without fields.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EmptyRequest {}

/// What a request has changed, or the state that it has found.
#[derive(Serialize, ToSchema)]
pub(super) struct Done {
    pub(super) result: String,
}

#[derive(Serialize, ToSchema)]
struct TasksOfRun {
    /// Names of the tasks that run again.
    tasks: Vec<String>,
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(enqueue))
        .routes(routes!(cancel_task))
        .routes(routes!(retry_task))
        .routes(routes!(start_run))
        .routes(routes!(cancel_run))
        .routes(routes!(restart_run))
        .routes(routes!(rerun_run))
        .routes(routes!(run_schedule))
        .routes(routes!(enable_schedule))
        .routes(routes!(enable_job))
        .routes(routes!(pause_queue))
        .routes(routes!(drain_worker))
}

impl EnqueueRequest {
    fn split(self) -> Result<(Vec<TaskRequest>, TaskOptions), HttpError> {
        let labels = Labels { tags: self.tags, metadata: self.metadata };
        let options = TaskOptions {
            queue: self.queue,
            priority: self.priority,
            due: self.due_at.map_or(Due::Now, Due::At),
            max_attempts: self.max_attempts,
            retry_interval: seconds("retry_interval_seconds", self.retry_interval_seconds)?,
            backoff: self.backoff,
            jitter: self.jitter,
            timeout: seconds("timeout_seconds", self.timeout_seconds)?,
            mode: self.mode,
            at_most_once: self.at_most_once,
            external: self.external,
            group: self.group,
            concurrency_key: self.concurrency_key,
            concurrency: self.concurrency,
            run_as: self.run_as,
            // `run_as` names targets as well.
            target: None,
            explain: self.explain,
            stored: StoredOptions {
                labels,
                isolation: self.isolation,
                store_params: self.store_params,
                store_output: self.store_output,
            },
        };
        Ok((self.tasks, options))
    }
}

fn seconds(name: &str, value: Option<f64>) -> Result<Option<Duration>, HttpError> {
    let read = |value| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| HttpError::bad_request(format!("invalid {name}: {value}")))
    };
    value.map(read).transpose()
}

fn task_id(id: &str) -> Result<TaskId, HttpError> {
    id.parse().map(TaskId).map_err(|_| no_such_task(id))
}

fn no_such_task(id: impl std::fmt::Display) -> HttpError {
    HttpError::not_found(format!("there is no task {id}"))
}

fn no_such(kind: &str, name: &str) -> HttpError {
    HttpError::not_found(format!("there is no {kind} {name}"))
}

/// Enqueues tasks, all or none
///
/// Requires the scope `enqueue`, and the privileges of `mill_producer`.
#[utoipa::path(post, path = "/api/v1/tasks", request_body = EnqueueRequest, responses((status = 200, body = EnqueuedTasks)))]
async fn enqueue(request: ApiRequest<EnqueueRequest>) -> HandlerResult {
    request
        .execute(Scope::Enqueue, |tx, body| {
            Box::pin(async move {
                let (mut tasks, options) = body.split()?;
                let key = tasks.first_mut().and_then(|task| task.key.take());
                let several = tasks.len() > 1;
                if tasks.is_empty() || several && (key.is_some() || has_key(&tasks)) {
                    return Err(HttpError::bad_request(
                        "tasks must be one task, or several without a key",
                    ));
                }
                let tasks: Vec<NewTask> = tasks.into_iter().map(new_task).collect();
                let tasks = match tasks.as_slice() {
                    [task] => vec![enqueue::enqueue(&**tx, task, &options, key.as_deref()).await?],
                    tasks => {
                        let ids = enqueue::enqueue_many(&**tx, tasks, &options).await?;
                        ids.into_iter().map(|id| Enqueued { id, created: true }).collect()
                    }
                };
                Ok(EnqueuedTasks { tasks })
            })
        })
        .await
}

fn has_key(tasks: &[TaskRequest]) -> bool {
    tasks.iter().any(|task| task.key.is_some())
}

fn new_task(task: TaskRequest) -> NewTask {
    NewTask { statement: task.statement, params: task.params, name: task.name }
}

/// Cancels a task
///
/// The result is `cancelled`, `requested` for a running task, or `finished`.
#[utoipa::path(post, path = "/api/v1/tasks/{id}/cancel", params(("id" = i64, Path, minimum = 1)), request_body = EmptyRequest, responses((status = 200, body = Done)))]
async fn cancel_task(Path(id): Path<String>, request: ApiRequest<EmptyRequest>) -> HandlerResult {
    let id = task_id(&id)?;
    request
        .execute(Scope::Operate, move |tx, _| {
            Box::pin(async move { found(cancel::cancel(&**tx, id).await?, || no_such_task(id)) })
        })
        .await
}

/// Runs a finished task again, or a scheduled task now
///
/// The result is `retried`, `brought forward`, or the state of a task that cannot be retried.
#[utoipa::path(post, path = "/api/v1/tasks/{id}/retry", params(("id" = i64, Path, minimum = 1)), request_body = EmptyRequest, responses((status = 200, body = Done)))]
async fn retry_task(Path(id): Path<String>, request: ApiRequest<EmptyRequest>) -> HandlerResult {
    let id = task_id(&id)?;
    request
        .execute(Scope::Operate, move |tx, _| {
            Box::pin(async move { found(cancel::retry(&**tx, id).await?, || no_such_task(id)) })
        })
        .await
}

/// Starts one run of jobs
///
/// Requires the scope `run`.
#[utoipa::path(post, path = "/api/v1/runs", request_body = StartRunRequest, responses((status = 200, body = Started)))]
async fn start_run(request: ApiRequest<StartRunRequest>) -> HandlerResult {
    request
        .execute(Scope::Run, |tx, body| {
            Box::pin(async move {
                let labels = Labels { tags: body.tags, metadata: body.metadata };
                let timeout = seconds("run_timeout_seconds", body.run_timeout_seconds)?;
                Ok(run::start(&**tx, &body.jobs, &body.params, &labels, timeout).await?)
            })
        })
        .await
}

/// Cancels a run
///
/// The result is `cancelling`, or the state of a run that has ended.
#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", params(("id" = i64, Path, minimum = 1)), request_body = CancelRunRequest, responses((status = 200, body = Done)))]
async fn cancel_run(
    Path(id): Path<String>,
    request: ApiRequest<CancelRunRequest>,
) -> HandlerResult {
    let id = run_id(&id)?;
    request
        .execute(Scope::Operate, move |tx, body| {
            Box::pin(
                async move { found(run::cancel(&**tx, id, body.kill).await?, || no_such_run(id)) },
            )
        })
        .await
}

/// Runs those tasks of an ended run again that did not succeed
#[utoipa::path(post, path = "/api/v1/runs/{id}/restart", params(("id" = i64, Path, minimum = 1)), request_body = RestartRunRequest, responses((status = 200, body = TasksOfRun)))]
async fn restart_run(
    Path(id): Path<String>,
    request: ApiRequest<RestartRunRequest>,
) -> HandlerResult {
    let id = run_id(&id)?;
    request
        .execute(Scope::Operate, move |tx, body| {
            Box::pin(async move {
                check_run(tx, id).await?;
                let RestartRunRequest { failed, never_run, downstream, force } = body;
                let unspecified = !(failed || never_run || downstream);
                let options = RestartOptions {
                    failed: failed || unspecified,
                    never_run: never_run || unspecified,
                    downstream,
                    force,
                };
                Ok(TasksOfRun { tasks: run::restart(&**tx, id, options).await? })
            })
        })
        .await
}

/// Runs tasks of a run again, whatever their outcome was
#[utoipa::path(post, path = "/api/v1/runs/{id}/rerun", params(("id" = i64, Path, minimum = 1)), request_body = RerunRequest, responses((status = 200, body = TasksOfRun)))]
async fn rerun_run(Path(id): Path<String>, request: ApiRequest<RerunRequest>) -> HandlerResult {
    let id = run_id(&id)?;
    request
        .execute(Scope::Operate, move |tx, body| {
            Box::pin(async move {
                check_run(tx, id).await?;
                Ok(TasksOfRun { tasks: run::rerun(&**tx, id, &body.tasks, !body.only).await? })
            })
        })
        .await
}

async fn check_run(tx: &Transaction<'_>, id: RunId) -> Result<(), HttpError> {
    run_queries::run(&**tx, id).await?.map(drop).ok_or_else(|| no_such_run(id))
}

/// Starts a run of a schedule now
///
/// Requires the scope `run`.
#[utoipa::path(post, path = "/api/v1/schedules/run", request_body = RunScheduleRequest, responses((status = 200, body = Started)))]
async fn run_schedule(request: ApiRequest<RunScheduleRequest>) -> HandlerResult {
    request
        .execute(Scope::Run, |tx, body| {
            Box::pin(async move {
                let RunScheduleRequest { name, force, params, fire_at } = body;
                let run = declare::run_now(&**tx, &name, force, &params, fire_at).await?;
                let run = run.ok_or_else(|| no_such("schedule", &name))?;
                Ok(Started { run, dropped: Vec::new() })
            })
        })
        .await
}

/// Enables or disables a schedule
#[utoipa::path(post, path = "/api/v1/schedules/enable", request_body = EnableRequest, responses((status = 200, body = Done)))]
async fn enable_schedule(request: ApiRequest<EnableRequest>) -> HandlerResult {
    request
        .execute(Scope::Operate, |tx, body| {
            Box::pin(async move {
                let known = declare::enable(&**tx, &body.name, body.enabled).await?;
                enabled(known, &body, "schedule")
            })
        })
        .await
}

/// Enables or disables a job
#[utoipa::path(post, path = "/api/v1/jobs/enable", request_body = EnableRequest, responses((status = 200, body = Done)))]
async fn enable_job(request: ApiRequest<EnableRequest>) -> HandlerResult {
    request
        .execute(Scope::Operate, |tx, body| {
            Box::pin(async move {
                let known = job::enable(&**tx, &body.name, body.enabled).await?;
                enabled(known, &body, "job")
            })
        })
        .await
}

/// Pauses or resumes a queue
#[utoipa::path(post, path = "/api/v1/queues/pause", request_body = PauseRequest, responses((status = 200, body = Done)))]
async fn pause_queue(request: ApiRequest<PauseRequest>) -> HandlerResult {
    request
        .execute(Scope::Operate, |tx, body| {
            Box::pin(async move {
                if !operate::queue_is_known(&**tx, &body.queue).await? {
                    return Err(no_such("queue", &body.queue));
                }
                if body.paused {
                    operate::pause(&**tx, &body.queue).await?;
                } else {
                    operate::resume(&**tx, &body.queue).await?;
                }
                Ok(done(if body.paused { "paused" } else { "resumed" }))
            })
        })
        .await
}

/// Makes a worker stop claiming, or resume
#[utoipa::path(post, path = "/api/v1/workers/{id}/drain", params(("id" = uuid::Uuid, Path)), request_body = DrainRequest, responses((status = 200, body = Done)))]
async fn drain_worker(Path(id): Path<String>, request: ApiRequest<DrainRequest>) -> HandlerResult {
    let worker = WorkerId(id.parse().map_err(|_| no_such("worker", &id))?);
    request
        .execute(Scope::Operate, move |tx, body| {
            Box::pin(async move {
                if !operate::drain(&**tx, worker, body.draining).await? {
                    return Err(no_such("worker", &id));
                }
                Ok(done(if body.draining { "draining" } else { "resumed" }))
            })
        })
        .await
}

fn done(result: &str) -> Done {
    Done { result: result.to_owned() }
}

fn found(result: String, none: impl FnOnce() -> HttpError) -> Result<Done, HttpError> {
    if result == "not found" { Err(none()) } else { Ok(Done { result }) }
}

fn enabled(known: bool, body: &EnableRequest, kind: &str) -> Result<Done, HttpError> {
    if !known {
        return Err(no_such(kind, &body.name));
    }
    Ok(done(if body.enabled { "enabled" } else { "disabled" }))
}
