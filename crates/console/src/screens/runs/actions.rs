//! Actions on a run: cancel, restart, rerun; retry, approval and rejection of one task.

use queue::run::{self, RestartOptions};
use queue::run_queries;

use super::run::{no_such_run, run_id};
use crate::screens::prelude::*;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/runs/{id}/cancel", post(cancel_run))
        .route("/runs/{id}/restart", post(restart_run))
        .route("/runs/{id}/retry", post(retry_task))
        .route("/runs/{id}/approve", post(approve_task))
        .route("/runs/{id}/reject", post(reject_task))
}

/// The tasks that a restart runs again.
enum Selection {
    /// Tasks that did not succeed.
    Unsuccessful(RestartOptions),
    /// These tasks and all tasks after them, whatever their outcome was; all tasks if there is no
    /// name.
    Rerun(Vec<String>),
}

/// Makes a change of a run that exists, and returns to the run.
async fn change_run<R>(
    id: &str,
    form: &FormRequest,
    change: impl AsyncFnOnce(&Transaction<'_>, RunId) -> Result<R, HttpError>,
) -> HandlerResult {
    let id = run_id(id)?;
    form.change(&format!("/runs/{id}"), async |tx| {
        require_run(tx, id).await?;
        change(tx, id).await
    })
    .await
}

/// Checks that a run exists.
pub(crate) async fn require_run(tx: &Transaction<'_>, id: RunId) -> Result<(), HttpError> {
    run_queries::run(tx, id).await?.map(drop).ok_or_else(|| no_such_run(id))
}

async fn cancel_run(Path(id): Path<String>, form: FormRequest) -> HandlerResult {
    change_run(&id, &form, async |tx, id| Ok(run::cancel(tx, id, form.flag("kill")).await?)).await
}

async fn restart_run(Path(id): Path<String>, form: FormRequest) -> HandlerResult {
    let unsuccessful = |failed, never_run, downstream| {
        let force = form.flag("force");
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
    change_run(&id, &form, async |tx, id| {
        Ok(match again {
            Selection::Unsuccessful(options) => run::restart(tx, id, options).await?,
            Selection::Rerun(tasks) => run::rerun(tx, id, &tasks, true).await?,
        })
    })
    .await
}

async fn retry_task(Path(id): Path<String>, form: FormRequest) -> HandlerResult {
    let task = form.field("task");
    change_run(&id, &form, async |tx, id| match run::retry(tx, id, task).await?.as_str() {
        "not found" => Err(HttpError::not_found(format!("run {id} has no task {task}"))),
        _ => Ok(()),
    })
    .await
}

async fn approve_task(Path(id): Path<String>, form: FormRequest) -> HandlerResult {
    change_run(&id, &form, async |tx, id| Ok(run::approve(tx, id, form.field("task")).await?)).await
}

async fn reject_task(Path(id): Path<String>, form: FormRequest) -> HandlerResult {
    let reason = form.text("reason");
    change_run(&id, &form, async |tx, id| {
        Ok(run::reject(tx, id, form.field("task"), reason.as_deref()).await?)
    })
    .await
}
