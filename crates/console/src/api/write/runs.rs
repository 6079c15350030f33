//! API handlers that start, cancel and repeat runs.

use axum::extract::Path;
use deadpool_postgres::Transaction;
use queue::run::{self, RestartOptions, RunOptions, Started};
use queue::{Labels, RunId, Traceparent, run_queries};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Done, found, seconds};
use crate::http::api_request::ApiRequest;
use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::options::rights::Scope;
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

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(start_run))
        .routes(routes!(cancel_run))
        .routes(routes!(restart_run))
        .routes(routes!(rerun_run))
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
                let run_timeout = seconds("run_timeout_seconds", body.run_timeout_seconds)?;
                let options = RunOptions { labels, run_timeout, traceparent: body.traceparent };
                Ok(run::start(&**tx, &body.jobs, &body.params, &options).await?)
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
