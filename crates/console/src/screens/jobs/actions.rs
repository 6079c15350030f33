//! Actions on a job: start a run, enable and disable the job or one of its tasks.

use queue::job;
use queue::run::{self, RunOptions};

use super::job::{data, no_such_job};
use crate::screens::prelude::*;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/jobs/run", post(start_run))
        .route("/jobs/enable", post(enable_job))
        .route("/jobs/tasks/enable", post(enable_task))
}

async fn start_run(form: FormRequest) -> HandlerResult {
    form.change_and_open(async |tx| {
        let known = data(tx, form.field("name")).await?;
        let params = form.params(&known.shape.params);
        let started = run::start(tx, &[known.shape.name], &params, &RunOptions::default()).await?;
        Ok(format!("/runs/{}", started.run))
    })
    .await
}

async fn enable_job(form: FormRequest) -> HandlerResult {
    let (name, enabled) = (form.field("name"), form.parsed("enabled")?);
    form.change(&path(name), async |tx| {
        HttpError::unless(job::enable(tx, name, enabled).await?, || no_such_job(name))
    })
    .await
}

async fn enable_task(form: FormRequest) -> HandlerResult {
    let (name, task, enabled) = (form.field("name"), form.field("task"), form.parsed("enabled")?);
    let not_found = || HttpError::not_found(format!("job {name} has no task {task}"));
    form.change(&path(name), async |tx| {
        HttpError::unless(job::enable_task(tx, name, task, enabled).await?, not_found)
    })
    .await
}

fn path(name: &str) -> String {
    format!("/jobs/detail?name={}", format::url_encode(name))
}
