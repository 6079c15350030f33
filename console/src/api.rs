//! JSON API below `/api/v1` with the data of the screens. Times are RFC 3339 in UTC, durations are
//! in seconds.
//!
//! The API is read-only. Actions require `pgmill`, SQL, or a form of the console.

mod workflows;

use axum::Router;
use axum::extract::{Path, Query};
use axum::routing::{MethodRouter, get};
use queue::TaskId;
use serde_json::json;

use crate::filter;
use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::json::json_response;
use crate::http::request::RequestContext;
use crate::openapi;
use crate::page::plots::{PlotParams, ThroughputColumns};
use crate::screens::fleet::database::DatabaseDetail;
use crate::screens::fleet::queue_stats::FleetSnapshot;
use crate::screens::history::audit::AuditParams;
use crate::screens::history::failures::FailuresParams;
use crate::screens::tasks::list::TasksParams;
use crate::screens::{fleet, history, tasks};

/// Returns the handler of a path. Routes are built from [`openapi::PATHS`], so that every path is
/// described.
fn handler(path: &str) -> MethodRouter<App> {
    match path {
        "/overview" => get(overview),
        "/tasks" => get(tasks),
        "/tasks/{id}" => get(task),
        "/failures" => get(failures),
        "/workers" => get(workers),
        "/queues" => get(queues),
        "/priorities" => get(priorities),
        "/groups" => get(groups),
        "/throughput" => get(throughput),
        "/audit" => get(audit),
        "/database" => get(database),
        path => workflows::handler(path)
            .unwrap_or_else(|| get(crate::http::error_response::page_not_found)),
    }
}

pub(crate) fn routes() -> Router<App> {
    let described = openapi::PATHS
        .iter()
        .fold(Router::new(), |all, it| all.route(&format!("/api/v1{}", it.path), handler(it.path)));
    described.route("/api/v1/openapi.json", get(|| async { json_response(&openapi::document()) }))
}

async fn overview(context: RequestContext) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    Ok(json_response(&fleet::overview::data(&context.app, &tx, &viewer).await?))
}

async fn tasks(context: RequestContext, Query(params): Query<TasksParams>) -> HandlerResult {
    let query =
        filter::parse(&params.q).map_err(|it| HttpError::bad_request(it.message).hint(it.hint))?;
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&tasks::list::data(&tx, &query, &params).await?))
}

async fn task(context: RequestContext, Path(id): Path<String>) -> HandlerResult {
    let none = || HttpError::not_found(format!("there is no task {id}"));
    let number = TaskId(id.parse().map_err(|_| none())?);
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&tasks::task::data(&tx, number).await?.ok_or_else(none)?))
}

async fn failures(context: RequestContext, Query(params): Query<FailuresParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&json!({ "groups": history::failures::groups(&tx, &params).await? })))
}

async fn database(context: RequestContext) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    Ok(json_response(&DatabaseDetail::read(&tx, &viewer).await?))
}

async fn workers(context: RequestContext) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&json!({ "workers": fleet::workers::data(&tx).await? })))
}

async fn queues(context: RequestContext) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let fleet = FleetSnapshot::read(&tx, &context.app.throughput, viewer.now).await?;
    Ok(json_response(&json!({ "queues": fleet.queues() })))
}

async fn priorities(context: RequestContext) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let fleet = FleetSnapshot::read(&tx, &context.app.throughput, viewer.now).await?;
    let weights = queue::priority::weights(&*tx).await?;
    Ok(json_response(&json!({ "priorities": fleet.priorities(), "weights": weights })))
}

async fn groups(context: RequestContext) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&json!({ "groups": fleet::groups::data(&tx).await? })))
}

async fn audit(context: RequestContext, Query(params): Query<AuditParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&history::audit::listing(&tx, &params).await?))
}

async fn throughput(context: RequestContext, Query(params): Query<PlotParams>) -> HandlerResult {
    let hours = params.hours()?;
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    Ok(json_response(&ThroughputColumns::of(
        &context.app.throughput,
        &params.queue,
        hours,
        viewer.now,
    )))
}
