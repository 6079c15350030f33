//! API handlers for runs, schedules, jobs and lineage.

use axum::extract::{Path, Query};
use axum::routing::{MethodRouter, get};
use serde::Deserialize;
use serde_json::json;

use super::json_response;
use crate::app::App;
use crate::http_error::HttpError;
use crate::request::RequestContext;
use crate::screens::{HandlerResult, workflows};

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

async fn runs(
    context: RequestContext,
    Query(params): Query<workflows::RunsParams>,
) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&workflows::runs(&tx, &params).await?))
}

async fn read_run(context: &RequestContext, id: &str) -> Result<workflows::RunDetail, HttpError> {
    let id = workflows::run_id(id)?;
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    workflows::run(&tx, id).await?.ok_or_else(|| workflows::no_such_run(id))
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
    Ok(json_response(&workflows::schedules(&tx, &params.after).await?))
}

async fn schedule(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&workflows::schedule(&tx, &params.name).await?))
}

async fn jobs(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&workflows::jobs(&tx, &params.after).await?))
}

async fn job(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let job = workflows::job(&tx, &params.name).await?;
    Ok(json_response(&json!({ "job": job.shape, "edges": job.links })))
}

async fn job_graph(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    Ok(json_response(&workflows::job(&tx, &params.name).await?.graph_data()))
}

/// Reads the lineage of a task. Unlike the screen, the API requires a name.
async fn read_lineage(
    context: &RequestContext,
    name: &str,
) -> Result<workflows::LineageDetail, HttpError> {
    if name.is_empty() {
        return Err(HttpError::bad_request("parameter name is missing").hint("lineage?name=TASK"));
    }
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    workflows::lineage(&tx, name).await
}

async fn lineage(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    let known = read_lineage(&context, &params.name).await?;
    Ok(json_response(&json!({ "task": known.name, "tasks": known.names(), "edges": known.links })))
}

async fn lineage_graph(context: RequestContext, Query(params): Query<NameParams>) -> HandlerResult {
    Ok(json_response(&read_lineage(&context, &params.name).await?.graph_data()))
}
