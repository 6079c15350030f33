//! JSON API below `/api/v1` with the data of the screens. Times are RFC 3339 in UTC, durations are
//! in seconds.
//!
//! GET requests read, POST requests change something ([`write`]).

mod workflows;
mod write;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query};
use axum::routing::get;
use queue::group::Group;
use queue::insight::FailureGroup;
use queue::priority::Weight;
use queue::subscription::{self, Subscription};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::HandlerResult;
use crate::http::app::App;
use crate::http::json::json_response;
use crate::openapi;
use crate::page::plots::{PlotParams, ThroughputColumns};
use crate::page::read_request::ReadRequest;
use crate::screens::fleet::database::DatabaseDetail;
use crate::screens::fleet::limits::LimitsParams;
use crate::screens::fleet::queue_stats::{FleetSnapshot, PriorityStats, QueueStats};
use crate::screens::fleet::workers::WorkerStatus;
use crate::screens::history::audit::AuditParams;
use crate::screens::history::failures::FailuresParams;
use crate::screens::tasks::list::TasksParams;
use crate::screens::tasks::status::task_id;
use crate::screens::{fleet, history, tasks};

// Responses that wrap a list, because the screens have no type for them.

#[derive(Serialize, ToSchema)]
struct Failures {
    groups: Vec<FailureGroup>,
}

#[derive(Serialize, ToSchema)]
struct Workers {
    workers: Vec<WorkerStatus>,
}

#[derive(Serialize, ToSchema)]
struct Queues {
    queues: Vec<QueueStats>,
}

#[derive(Serialize, ToSchema)]
struct Priorities {
    priorities: Vec<PriorityStats>,
    weights: Vec<Weight>,
}

#[derive(Serialize, ToSchema)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Serialize, ToSchema)]
struct Subscriptions {
    subscriptions: Vec<Subscription>,
}

/// Returns the routes, and the route of their description.
pub(crate) fn routes() -> Router<App> {
    let described = OpenApiRouter::new()
        .routes(routes!(overview))
        .routes(routes!(tasks))
        .routes(routes!(task))
        .routes(routes!(failures))
        .routes(routes!(workers))
        .routes(routes!(queues))
        .routes(routes!(priorities))
        .routes(routes!(groups))
        .routes(routes!(limits))
        .routes(routes!(subscriptions))
        .routes(routes!(throughput))
        .routes(routes!(audit))
        .routes(routes!(database))
        .merge(workflows::routes())
        .merge(write::routes());
    let (router, api) = described.split_for_parts();
    let document = Arc::new(openapi::document(&api));
    router.route("/api/v1/openapi.json", get(async move || json_response(&*document)))
}

/// Problems, queues, readers, and the last hour
#[utoipa::path(get, path = "/api/v1/overview", responses((status = 200, body = fleet::overview::Overview)))]
async fn overview(mut request: ReadRequest) -> HandlerResult {
    let read = request.begin().await?;
    Ok(json_response(&fleet::overview::data(&read.context.app, &read.tx, &read.viewer).await?))
}

/// Tasks that match a filter, newest first, 50 per page
#[utoipa::path(get, path = "/api/v1/tasks", params(TasksParams), responses((status = 200, body = tasks::list::Listing)))]
async fn tasks(mut request: ReadRequest, Query(params): Query<TasksParams>) -> HandlerResult {
    let query = params.query()?;
    let mut tx = request.transaction().await?;
    Ok(json_response(&tasks::list::data(&mut tx, &query, &params).await?))
}

/// One task with its attempts, blockers, duration history and plan
#[utoipa::path(get, path = "/api/v1/tasks/{id}", params(("id" = i64, Path, minimum = 1)), responses((status = 200, body = tasks::task::TaskDetail)))]
async fn task(mut request: ReadRequest, Path(id): Path<String>) -> HandlerResult {
    let id = task_id(&id)?;
    let tx = request.transaction().await?;
    Ok(json_response(&tasks::task::data(&tx, id).await?))
}

/// Failures by cause, most frequent first
#[utoipa::path(get, path = "/api/v1/failures", params(FailuresParams), responses((status = 200, body = Failures)))]
async fn failures(mut request: ReadRequest, Query(params): Query<FailuresParams>) -> HandlerResult {
    let tx = request.transaction().await?;
    Ok(json_response(&Failures { groups: history::failures::groups(&tx, &params).await? }))
}

/// The server, checks of pgmill doctor, locks, connections, tables, retention
#[utoipa::path(get, path = "/api/v1/database", responses((status = 200, body = DatabaseDetail)))]
async fn database(mut request: ReadRequest) -> HandlerResult {
    let read = request.begin().await?;
    Ok(json_response(&DatabaseDetail::read(&read.tx, &read.viewer).await?))
}

/// Workers and their running tasks
#[utoipa::path(get, path = "/api/v1/workers", responses((status = 200, body = Workers)))]
async fn workers(mut request: ReadRequest) -> HandlerResult {
    let tx = request.transaction().await?;
    Ok(json_response(&Workers { workers: fleet::workers::data(&tx).await? }))
}

/// Queues; a count with `more` is a lower bound
#[utoipa::path(get, path = "/api/v1/queues", responses((status = 200, body = Queues)))]
async fn queues(mut request: ReadRequest) -> HandlerResult {
    let read = request.begin().await?;
    let fleet =
        FleetSnapshot::read_with_rates(&read.tx, &read.context.app.throughput, read.viewer.now)
            .await?;
    Ok(json_response(&Queues { queues: fleet.queues() }))
}

/// Priorities and their weights
#[utoipa::path(get, path = "/api/v1/priorities", responses((status = 200, body = Priorities)))]
async fn priorities(mut request: ReadRequest) -> HandlerResult {
    let read = request.begin().await?;
    let fleet =
        FleetSnapshot::read(&read.tx, &read.context.app.throughput, read.viewer.now).await?;
    let weights = queue::priority::weights(&*read.tx).await?;
    Ok(json_response(&Priorities { priorities: fleet.priorities(), weights }))
}

/// Groups; counts stop at 10,000
#[utoipa::path(get, path = "/api/v1/groups", responses((status = 200, body = Groups)))]
async fn groups(mut request: ReadRequest) -> HandlerResult {
    let tx = request.transaction().await?;
    Ok(json_response(&Groups { groups: fleet::groups::data(&tx).await? }))
}

/// Limits of queues, groups and concurrency keys with their use, 50 per page
///
/// A count with `_more` true is a lower bound.
#[utoipa::path(get, path = "/api/v1/limits", params(LimitsParams), responses((status = 200, body = fleet::limits::Listing)))]
async fn limits(mut request: ReadRequest, Query(params): Query<LimitsParams>) -> HandlerResult {
    let tx = request.transaction().await?;
    Ok(json_response(&fleet::limits::data(&tx, &params).await?))
}

/// Subscriptions with the state of their delivery
#[utoipa::path(get, path = "/api/v1/subscriptions", responses((status = 200, body = Subscriptions)))]
async fn subscriptions(mut request: ReadRequest) -> HandlerResult {
    let tx = request.transaction().await?;
    let subscriptions = subscription::subscriptions(&*tx).await?;
    Ok(json_response(&Subscriptions { subscriptions }))
}

/// Audit log, newest first, 50 per page
#[utoipa::path(get, path = "/api/v1/audit", params(AuditParams), responses((status = 200, body = history::audit::Listing)))]
async fn audit(mut request: ReadRequest, Query(params): Query<AuditParams>) -> HandlerResult {
    let tx = request.transaction().await?;
    Ok(json_response(&history::audit::listing(&tx, &params).await?))
}

/// Finished attempts, wait times, durations and waiting tasks of each minute of the last hours
///
/// A value that is not known is null.
#[utoipa::path(get, path = "/api/v1/throughput", params(PlotParams), responses((status = 200, body = ThroughputColumns)))]
async fn throughput(mut request: ReadRequest, Query(params): Query<PlotParams>) -> HandlerResult {
    let hours = params.hours()?;
    let read = request.begin().await?;
    Ok(json_response(&ThroughputColumns::of(
        &read.context.app.throughput,
        &params.queue,
        hours,
        read.viewer.now,
    )))
}
