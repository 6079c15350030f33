//! Actions on a run: cancel, restart, rerun, retry of one task.

use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::post;
use queue::run::{self, RestartOptions};
use queue::run_queries;

use super::run::{no_such_run, run_id};
use crate::http::app::App;
use crate::http::error::HttpError;
use crate::http::request::FormRequest;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/runs/{id}/cancel", post(cancel))
        .route("/runs/{id}/restart", post(restart))
        .route("/runs/{id}/retry", post(retry))
}

/// The tasks that a restart runs again.
enum Selection {
    /// Tasks that did not succeed.
    Unsuccessful(RestartOptions),
    /// These tasks and all tasks after them, whatever their outcome was; all tasks if there is no
    /// name.
    Rerun(Vec<String>),
}

async fn cancel(Path(id): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let id = run_id(&id)?;
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let done = run::cancel(&*tx, id, form.field("kill") == "true").await?;
    tx.commit().await?;
    if done == "not found" {
        return Err(no_such_run(id));
    }
    Ok(form.redirect_back(&format!("/runs/{id}")))
}

async fn restart(Path(id): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let id = run_id(&id)?;
    let force = form.field("force") == "true";
    let unsuccessful = |failed, never_run, downstream| {
        Selection::Unsuccessful(RestartOptions { failed, never_run, downstream, force })
    };
    let again = match form.field("which") {
        "all" => Selection::Rerun(Vec::new()),
        "task" => Selection::Rerun(vec![form.field("task").to_owned()]),
        "failed" => unsuccessful(true, false, false),
        "never_run" => unsuccessful(false, true, false),
        "downstream" => unsuccessful(false, false, true),
        "" | "both" => unsuccessful(true, true, false),
        other => {
            return Err(HttpError::bad_request(format!("unknown choice of tasks \"{other}\"")));
        }
    };
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if run_queries::run(&*tx, id).await?.is_none() {
        return Err(no_such_run(id));
    }
    match again {
        Selection::Unsuccessful(options) => run::restart(&*tx, id, options).await?,
        Selection::Rerun(tasks) => run::rerun(&*tx, id, &tasks, true).await?,
    };
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/runs/{id}")))
}

async fn retry(Path(id): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let id = run_id(&id)?;
    let task = form.field("task");
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if run_queries::run(&*tx, id).await?.is_none() {
        return Err(no_such_run(id));
    }
    if run::retry(&*tx, id, task).await? == "not found" {
        return Err(HttpError::not_found(format!("run {id} has no task {task}")));
    }
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/runs/{id}")))
}
