//! Approval of a task of a run.

use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::post;
use queue::{run, run_queries};

use super::run::{no_such_run, run_id};
use crate::http::app::App;
use crate::http::error::HttpError;
use crate::http::request::FormRequest;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/runs/{id}/approve", post(approve))
        .route("/runs/{id}/reject", post(reject))
}

async fn approve(Path(id): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    decide(&id, &form, true).await
}

async fn reject(Path(id): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    decide(&id, &form, false).await
}

async fn decide(id: &str, form: &FormRequest, approve: bool) -> Result<Response, HttpError> {
    let id = run_id(id)?;
    let task = form.field("task");
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if run_queries::run(&*tx, id).await?.is_none() {
        return Err(no_such_run(id));
    }
    if approve {
        run::approve(&*tx, id, task).await?;
    } else {
        let reason = Some(form.field("reason").trim()).filter(|reason| !reason.is_empty());
        run::reject(&*tx, id, task, reason).await?;
    }
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/runs/{id}")))
}
