//! API handlers that start, cancel and repeat runs, and that approve and reject tasks of runs.

use axum::extract::Path;
use queue::run::{self, RestartOptions, RunOptions, Started};
use queue::{Labels, Traceparent};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Done, done, found, seconds};
use crate::error::HandlerResult;
use crate::http::api_request::ApiRequest;
use crate::http::app::App;
use crate::options::rights::Scope;
use crate::screens::runs::actions::require_run;
use crate::screens::runs::run::{no_such_run, run_id};

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
    /// Trace context of the caller, for all tasks of the run.
    traceparent: Option<Traceparent>,
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

#[derive(Serialize, ToSchema)]
struct TasksOfRun {
    /// Names of the tasks that run again.
    tasks: Vec<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ApproveRequest {
    /// Name of the task.
    task: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RejectRequest {
    /// Name of the task.
    task: String,
    /// Shown as the message of the task.
    reason: Option<String>,
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(start_run))
        .routes(routes!(cancel_run))
        .routes(routes!(restart_run))
        .routes(routes!(rerun_run))
        .routes(routes!(approve_task))
        .routes(routes!(reject_task))
}

/// Starts one run of jobs
///
/// Requires the scope `run`.
#[utoipa::path(post, path = "/api/v1/runs", request_body = StartRunRequest, responses((status = 200, body = Started)))]
async fn start_run(call: ApiRequest<StartRunRequest>) -> HandlerResult {
    call.execute(Scope::Run, async |tx, body| {
        let labels = Labels { tags: body.tags, metadata: body.metadata };
        let run_timeout = seconds("run_timeout_seconds", body.run_timeout_seconds)?;
        let options = RunOptions { labels, run_timeout, traceparent: body.traceparent };
        Ok(run::start(tx, &body.jobs, &body.params, &options).await?)
    })
    .await
}

/// Cancels a run
///
/// The result is `cancelling`, or the state of a run that has ended.
#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", params(("id" = i64, Path, minimum = 1)), request_body = CancelRunRequest, responses((status = 200, body = Done)))]
async fn cancel_run(Path(id): Path<String>, call: ApiRequest<CancelRunRequest>) -> HandlerResult {
    let id = run_id(&id)?;
    call.execute(Scope::Operate, async |tx, body| {
        found(run::cancel(tx, id, body.kill).await?, || no_such_run(id))
    })
    .await
}

/// Runs those tasks of an ended run again that did not succeed
#[utoipa::path(post, path = "/api/v1/runs/{id}/restart", params(("id" = i64, Path, minimum = 1)), request_body = RestartRunRequest, responses((status = 200, body = TasksOfRun)))]
async fn restart_run(Path(id): Path<String>, call: ApiRequest<RestartRunRequest>) -> HandlerResult {
    let id = run_id(&id)?;
    call.execute(Scope::Operate, async |tx, body| {
        require_run(tx, id).await?;
        let RestartRunRequest { failed, never_run, downstream, force } = body;
        let unspecified = !(failed || never_run || downstream);
        let options = RestartOptions {
            failed: failed || unspecified,
            never_run: never_run || unspecified,
            downstream,
            force,
        };
        Ok(TasksOfRun { tasks: run::restart(tx, id, options).await? })
    })
    .await
}

/// Runs tasks of a run again, whatever their outcome was
#[utoipa::path(post, path = "/api/v1/runs/{id}/rerun", params(("id" = i64, Path, minimum = 1)), request_body = RerunRequest, responses((status = 200, body = TasksOfRun)))]
async fn rerun_run(Path(id): Path<String>, call: ApiRequest<RerunRequest>) -> HandlerResult {
    let id = run_id(&id)?;
    call.execute(Scope::Operate, async |tx, body| {
        require_run(tx, id).await?;
        Ok(TasksOfRun { tasks: run::rerun(tx, id, &body.tasks, !body.only).await? })
    })
    .await
}

/// Approves a task of a run that waits for approval
#[utoipa::path(post, path = "/api/v1/runs/{id}/approve", params(("id" = i64, Path, minimum = 1)), request_body = ApproveRequest, responses((status = 200, body = Done)))]
async fn approve_task(Path(id): Path<String>, call: ApiRequest<ApproveRequest>) -> HandlerResult {
    let id = run_id(&id)?;
    call.execute(Scope::Operate, async |tx, body| {
        require_run(tx, id).await?;
        run::approve(tx, id, &body.task).await?;
        Ok(done("approved"))
    })
    .await
}

/// Rejects a task of a run that waits for approval: it is cancelled
#[utoipa::path(post, path = "/api/v1/runs/{id}/reject", params(("id" = i64, Path, minimum = 1)), request_body = RejectRequest, responses((status = 200, body = Done)))]
async fn reject_task(Path(id): Path<String>, call: ApiRequest<RejectRequest>) -> HandlerResult {
    let id = run_id(&id)?;
    call.execute(Scope::Operate, async |tx, body| {
        require_run(tx, id).await?;
        run::reject(tx, id, &body.task, body.reason.as_deref()).await?;
        Ok(done("rejected"))
    })
    .await
}
