//! Actions on a job: start a run, enable and disable the job or one of its tasks.

use axum::Router;
use axum::response::Response;
use axum::routing::post;
use queue::job;
use queue::run::RunOptions;

use super::job::{data, no_such_job};
use crate::http::app::App;
use crate::http::error::HttpError;
use crate::http::request::FormRequest;
use crate::page::format;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/jobs/run", post(run))
        .route("/jobs/enable", post(enable))
        .route("/jobs/tasks/enable", post(enable_task))
}

async fn run(form: FormRequest) -> Result<Response, HttpError> {
    let name = form.field("name").to_owned();
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let known = data(tx.reading(), &name).await?;
    let params = form.params(&known.shape.params);
    let started =
        queue::run::start(&*tx, &[known.shape.name], &params, &RunOptions::default()).await?;
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/runs/{}", started.run)))
}

async fn enable(form: FormRequest) -> Result<Response, HttpError> {
    let name = form.field("name").to_owned();
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if !job::enable(&*tx, &name, form.parsed("enabled")?).await? {
        return Err(no_such_job(&name));
    }
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/jobs/detail?name={}", format::url_encode(&name))))
}

async fn enable_task(form: FormRequest) -> Result<Response, HttpError> {
    let (name, task) = (form.field("name").to_owned(), form.field("task").to_owned());
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if !job::enable_task(&*tx, &name, &task, form.parsed("enabled")?).await? {
        return Err(HttpError::not_found(format!("job {name} has no task {task}")));
    }
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/jobs/detail?name={}", format::url_encode(&name))))
}
