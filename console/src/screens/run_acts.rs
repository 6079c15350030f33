//! What is done to a run: cancelled, restarted, one of its tasks retried.

use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::post;
use queue::graph;
use queue::run::{self, Again};

use super::run::{no_such_run, run_id};
use crate::app::App;
use crate::trouble::Trouble;
use crate::visit::Act;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/runs/{id}/cancel", post(cancel))
        .route("/runs/{id}/restart", post(restart))
        .route("/runs/{id}/retry", post(retry))
}

async fn cancel(Path(id): Path<String>, act: Act) -> Result<Response, Trouble> {
    let id = run_id(&id)?;
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    let done = run::cancel(&*transaction, id, act.field("kill") == "true").await?;
    transaction.commit().await?;
    if done == "not found" {
        return Err(no_such_run(id));
    }
    session.ring().await;
    Ok(act.back(&format!("/runs/{id}")))
}

async fn restart(Path(id): Path<String>, act: Act) -> Result<Response, Trouble> {
    let id = run_id(&id)?;
    let again = match act.field("which") {
        "failed" => (true, false, false),
        "never_run" => (false, true, false),
        "downstream" => (false, false, true),
        "" | "both" => (true, true, false),
        other => return Err(Trouble::bad(format!("\"{other}\" is no choice of tasks"))),
    };
    let (failed, never_run, downstream) = again;
    let again = Again { failed, never_run, downstream, force: act.field("force") == "true" };
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    if graph::run(&*transaction, id).await?.is_none() {
        return Err(no_such_run(id));
    }
    run::restart(&*transaction, id, again).await?;
    transaction.commit().await?;
    session.ring().await;
    Ok(act.back(&format!("/runs/{id}")))
}

async fn retry(Path(id): Path<String>, act: Act) -> Result<Response, Trouble> {
    let id = run_id(&id)?;
    let task = act.field("task");
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    if graph::run(&*transaction, id).await?.is_none() {
        return Err(no_such_run(id));
    }
    if run::retry(&*transaction, id, task).await? == "not found" {
        return Err(Trouble::not_found(format!("run {id} has no task {task}")));
    }
    transaction.commit().await?;
    session.ring().await;
    Ok(act.back(&format!("/runs/{id}")))
}
