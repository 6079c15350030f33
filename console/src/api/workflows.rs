//! API handlers for runs, schedules, jobs and lineage.

use axum::extract::{Path, Query};
use axum::routing::{MethodRouter, get};
use serde::Deserialize;
use serde_json::json;

use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::json::json_response;
use crate::http::request::RequestContext;
use crate::screens::jobs::lineage::LineageDetail;
use crate::screens::runs::list::RunsParams;
use crate::screens::runs::run::{RunDetail, no_such_run, run_id};
use crate::screens::{jobs, runs, schedules};

/// Returns the handler of a path, or `None` if the path is not one of these.
pub(super) fn handler(path: &str) -> Option<MethodRouter<App>> {
    Some(match path {
        "/runs" => get(runs),
        "/runs/{id}" => get(run),
        "/runs/{id}/graph" => get(run_graph),
        "/schedules" => get(schedules),
        "/schedules/detail" => get(schedule),
        "/jobs" => get(jobs),
        "/jobs/detail" => get(job),
        "/jobs/graph" => get(job_graph),
        "/lineage" => get(lineage),
        "/lineage/graph" => get(lineage_graph),
        _ => return None,
    })
}

/// Query parameters: object name, page cursor.
#[derive(Debug, Default, Deserialize)]
struct NameParams {
    #[serde(default)]
    name: String,
    #[serde(default)]
    after: String,
}

async fn runs(context: RequestContext, Query(params): Query<RunsParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&runs::list::data(&tx, &params).await?))
}

async fn read_run(context: &RequestContext, id: &str) -> Result<RunDetail, HttpError> {
    let id = run_id(id)?;
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    runs::run::data(&tx, id).await?.ok_or_else(|| no_such_run(id))
}

async fn run(context: RequestContext, Path(id): Path<String>) -> HandlerResult {
    Ok(json_response(&read_run(&context, &id).await?))
}

async fn run_graph(context: RequestContext, Path(id): Path<String>) -> HandlerResult {
    Ok(json_response(&read_run(&context, &id).await?.graph_data()))
}

async fn schedules(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&schedules::list::data(&tx, &params.after).await?))
}

async fn schedule(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&schedules::schedule::data(&tx, &params.name).await?))
}

async fn jobs(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&jobs::list::data(&tx, &params.after).await?))
}

async fn job(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let job = jobs::job::data(&tx, &params.name).await?;
    Ok(json_response(&json!({ "job": job.shape, "edges": job.links })))
}

async fn job_graph(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&jobs::job::data(&tx, &params.name).await?.graph_data()))
}

/// Reads the lineage of a task. Unlike the screen, the API requires a name.
async fn read_lineage(context: &RequestContext, name: &str) -> Result<LineageDetail, HttpError> {
    if name.is_empty() {
        return Err(HttpError::bad_request("parameter name is missing").hint("lineage?name=TASK"));
    }
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    jobs::lineage::data(&tx, name).await
}

async fn lineage(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    let known = read_lineage(&context, &params.name).await?;
    Ok(json_response(&json!({ "task": known.name, "tasks": known.names(), "edges": known.links })))
}

async fn lineage_graph(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    Ok(json_response(&read_lineage(&context, &params.name).await?.graph_data()))
}
