//! The data of the screens as JSON, under `/api/v1`. Times are RFC 3339 in UTC, spans are seconds.
//!
//! It only looks. What acts is `pgmill`, SQL, or a form of the console.

mod flows;

use axum::Router;
use axum::extract::{Path, Query};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use queue::TaskId;
use serde::Serialize;
use serde_json::json;

use crate::app::App;
use crate::filter;
use crate::openapi;
use crate::plots::{Ask as PlotsAsk, Columns};
use crate::screens::{self, Ask, AuditAsk, FailuresAsk, Fleet, Shown};
use crate::trouble::Trouble;
use crate::visit::Visit;

/// The handler of a path of [`openapi::PATHS`], so that none is without a description.
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
        path => flows::handler(path).unwrap_or_else(|| get(crate::trouble::no_such_page)),
    }
}

pub(crate) fn routes() -> Router<App> {
    let described = openapi::PATHS
        .iter()
        .fold(Router::new(), |all, it| all.route(&format!("/api/v1{}", it.path), handler(it.path)));
    described.route("/api/v1/openapi.json", get(|| async { json_of(&openapi::document()) }))
}

fn json_of(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => Trouble::bad(error.to_string()).into_response(),
    }
}

async fn overview(visit: Visit) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    Ok(json_of(&screens::overview_data(&visit.app, &look, &viewer).await?))
}

async fn tasks(visit: Visit, Query(ask): Query<Ask>) -> Shown {
    let query = filter::parse(&ask.q).map_err(|it| Trouble::bad(it.message).hint(it.hint))?;
    let mut session = visit.session().await?;
    let look = session.look().await?;
    Ok(json_of(&screens::tasks_data(&look, &query, &ask).await?))
}

async fn task(visit: Visit, Path(id): Path<String>) -> Shown {
    let none = || Trouble::not_found(format!("there is no task {id}"));
    let number = TaskId(id.parse().map_err(|_| none())?);
    let mut session = visit.session().await?;
    let look = session.look().await?;
    Ok(json_of(&screens::task_data(&look, number).await?.ok_or_else(none)?))
}

async fn failures(visit: Visit, Query(ask): Query<FailuresAsk>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    Ok(json_of(&json!({ "groups": screens::failure_groups(&look, &ask).await? })))
}

async fn database(visit: Visit) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    Ok(json_of(&screens::DatabaseKnown::read(&look, &viewer).await?))
}

async fn workers(visit: Visit) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    Ok(json_of(&json!({ "workers": screens::workers_data(&look).await? })))
}

async fn queues(visit: Visit) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let fleet = Fleet::look(&look, &visit.app.tally, viewer.now).await?;
    Ok(json_of(&json!({ "queues": fleet.queues() })))
}

async fn priorities(visit: Visit) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let fleet = Fleet::look(&look, &visit.app.tally, viewer.now).await?;
    let weights = queue::priority::weights(&*look).await?;
    Ok(json_of(&json!({ "priorities": fleet.priorities(), "weights": weights })))
}

async fn groups(visit: Visit) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    Ok(json_of(&json!({ "groups": screens::groups_data(&look).await? })))
}

async fn audit(visit: Visit, Query(ask): Query<AuditAsk>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    Ok(json_of(&screens::audit_listing(&look, &ask).await?))
}

async fn throughput(visit: Visit, Query(ask): Query<PlotsAsk>) -> Shown {
    let hours = ask.hours()?;
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    Ok(json_of(&Columns::of(&visit.app.tally, &ask.queue, hours, viewer.now)))
}
