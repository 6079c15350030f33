//! API handlers for runs, schedules, jobs and lineage.

use axum::extract::{Path, Query};
use queue::insight::jobs::versions::JobVersion;
use queue::lineage::LineageEdge;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::{HandlerResult, HttpError};
use crate::http::app::App;
use crate::http::json::json_response;
use crate::page::graph::GraphData;
use crate::page::read_request::ReadRequest;
use crate::screens::jobs::lineage::LineageDetail;
use crate::screens::runs::list::RunsParams;
use crate::screens::runs::run::{RunDetail, run_id};
use crate::screens::{jobs, runs, schedules};

/// Parameter of one object.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
struct NameParams {
    /// name of the object
    #[param(required = true, min_length = 1, example = "nightly")]
    name: String,
}

/// Parameter of a list.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
struct PageParams {
    /// `next` of the previous page
    after: String,
}

/// Parameters of the list of schedules.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
struct SchedulesParams {
    /// `next` of the previous page
    after: String,
    /// Whether the list contains schedules whose declaration was removed
    removed: bool,
}

/// A task with its upstream and downstream tasks.
#[derive(Serialize, ToSchema)]
struct Lineage {
    task: String,
    tasks: Vec<String>,
    edges: Vec<LineageEdge>,
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(runs))
        .routes(routes!(run))
        .routes(routes!(run_graph))
        .routes(routes!(schedules))
        .routes(routes!(schedule))
        .routes(routes!(jobs))
        .routes(routes!(job))
        .routes(routes!(job_graph))
        .routes(routes!(versions))
        .routes(routes!(lineage))
        .routes(routes!(lineage_graph))
}

/// Runs, newest first, 50 per page; a page searches up to 10,000 runs
#[utoipa::path(get, path = "/api/v1/runs", params(RunsParams), responses((status = 200, body = queue::insight::runs::RunPage)))]
async fn runs(mut request: ReadRequest, Query(params): Query<RunsParams>) -> HandlerResult {
    let tx = request.transaction().await?;
    Ok(json_response(&runs::list::data(&tx, &params).await?))
}

async fn read_run(mut request: ReadRequest, id: &str) -> Result<RunDetail, HttpError> {
    let id = run_id(id)?;
    let tx = request.transaction().await?;
    runs::run::data(&tx, id).await
}

/// One run with up to 500 of its tasks
///
/// Of a larger run, running, failed and upstream_failed tasks come first.
#[utoipa::path(get, path = "/api/v1/runs/{id}", params(("id" = i64, Path, minimum = 1)), responses((status = 200, body = RunDetail)))]
async fn run(request: ReadRequest, Path(id): Path<String>) -> HandlerResult {
    Ok(json_response(&read_run(request, &id).await?))
}

/// Graph of a run
#[utoipa::path(get, path = "/api/v1/runs/{id}/graph", params(("id" = i64, Path, minimum = 1)), responses((status = 200, body = GraphData)))]
async fn run_graph(request: ReadRequest, Path(id): Path<String>) -> HandlerResult {
    Ok(json_response(&read_run(request, &id).await?.graph_data()))
}

/// Schedules by name, each with its recent runs, 100 per page
#[utoipa::path(get, path = "/api/v1/schedules", params(SchedulesParams), responses((status = 200, body = schedules::list::Listing)))]
async fn schedules(
    mut request: ReadRequest,
    Query(params): Query<SchedulesParams>,
) -> HandlerResult {
    let tx = request.transaction().await?;
    Ok(json_response(&schedules::list::data(&tx, &params.after, params.removed).await?))
}

/// One schedule with its next fires, runs and log
#[utoipa::path(get, path = "/api/v1/schedules/detail", params(NameParams), responses((status = 200, body = schedules::schedule::ScheduleDetail)))]
async fn schedule(mut request: ReadRequest, Query(params): Query<NameParams>) -> HandlerResult {
    let tx = request.transaction().await?;
    Ok(json_response(&schedules::schedule::data(&tx, &params.name).await?))
}

/// Jobs by name, each with its newest run, 100 per page
#[utoipa::path(get, path = "/api/v1/jobs", params(PageParams), responses((status = 200, body = queue::insight::jobs::JobPage)))]
async fn jobs(mut request: ReadRequest, Query(params): Query<PageParams>) -> HandlerResult {
    let tx = request.transaction().await?;
    Ok(json_response(&jobs::list::data(&tx, &params.after).await?))
}

/// One job with up to 500 of its tasks and the dependencies between them
#[utoipa::path(get, path = "/api/v1/jobs/detail", params(NameParams), responses((status = 200, body = jobs::job::JobPageData)))]
async fn job(mut request: ReadRequest, Query(params): Query<NameParams>) -> HandlerResult {
    let tx = request.transaction().await?;
    Ok(json_response(&jobs::job::data(&tx, &params.name).await?))
}

/// Graph of a job
#[utoipa::path(get, path = "/api/v1/jobs/graph", params(NameParams), responses((status = 200, body = GraphData)))]
async fn job_graph(mut request: ReadRequest, Query(params): Query<NameParams>) -> HandlerResult {
    let tx = request.transaction().await?;
    Ok(json_response(&jobs::job::data(&tx, &params.name).await?.graph_data()))
}

/// Versions of a job with their definitions, newest first, up to 50
#[utoipa::path(get, path = "/api/v1/jobs/versions", params(NameParams), responses((status = 200, body = Vec<JobVersion>)))]
async fn versions(mut request: ReadRequest, Query(params): Query<NameParams>) -> HandlerResult {
    let tx = request.transaction().await?;
    Ok(json_response(&jobs::versions::data(&tx, &params.name).await?))
}

/// Reads the lineage of a task. Unlike the screen, the API requires a name.
async fn read_lineage(mut request: ReadRequest, name: &str) -> Result<LineageDetail, HttpError> {
    if name.is_empty() {
        return Err(HttpError::bad_request("parameter name is missing").hint("lineage?name=TASK"));
    }
    let tx = request.transaction().await?;
    jobs::lineage::data(&tx, name).await
}

/// Upstream and downstream tasks of a task, across all jobs
#[utoipa::path(get, path = "/api/v1/lineage", params(NameParams), responses((status = 200, body = Lineage)))]
async fn lineage(request: ReadRequest, Query(params): Query<NameParams>) -> HandlerResult {
    let known = read_lineage(request, &params.name).await?;
    let tasks = known.names().into_iter().map(str::to_owned).collect();
    Ok(json_response(&Lineage { tasks, task: known.name, edges: known.links }))
}

/// Graph of the upstream and downstream tasks of a task
#[utoipa::path(get, path = "/api/v1/lineage/graph", params(NameParams), responses((status = 200, body = GraphData)))]
async fn lineage_graph(request: ReadRequest, Query(params): Query<NameParams>) -> HandlerResult {
    Ok(json_response(&read_lineage(request, &params.name).await?.graph_data()))
}
