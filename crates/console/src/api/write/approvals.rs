//! API handlers that approve and reject tasks of runs.

use axum::extract::Path;
use queue::{run, run_queries};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Done, done};
use crate::http::api_request::ApiRequest;
use crate::http::app::App;
use crate::http::error::HandlerResult;
use crate::options::rights::Scope;
use crate::screens::runs::run::{no_such_run, run_id};

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
    OpenApiRouter::new().routes(routes!(approve_task)).routes(routes!(reject_task))
}

/// Approves a task of a run that waits for approval
#[utoipa::path(post, path = "/api/v1/runs/{id}/approve", params(("id" = i64, Path, minimum = 1)), request_body = ApproveRequest, responses((status = 200, body = Done)))]
async fn approve_task(
    Path(id): Path<String>,
    request: ApiRequest<ApproveRequest>,
) -> HandlerResult {
    let id = run_id(&id)?;
    request
        .execute(Scope::Operate, move |tx, body| {
            Box::pin(async move {
                run_queries::run(&**tx, id).await?.ok_or_else(|| no_such_run(id))?;
                run::approve(&**tx, id, &body.task).await?;
                Ok(done("approved"))
            })
        })
        .await
}

/// Rejects a task of a run that waits for approval: it is cancelled
#[utoipa::path(post, path = "/api/v1/runs/{id}/reject", params(("id" = i64, Path, minimum = 1)), request_body = RejectRequest, responses((status = 200, body = Done)))]
async fn reject_task(Path(id): Path<String>, request: ApiRequest<RejectRequest>) -> HandlerResult {
    let id = run_id(&id)?;
    request
        .execute(Scope::Operate, move |tx, body| {
            Box::pin(async move {
                run_queries::run(&**tx, id).await?.ok_or_else(|| no_such_run(id))?;
                run::reject(&**tx, id, &body.task, body.reason.as_deref()).await?;
                Ok(done("rejected"))
            })
        })
        .await
}
