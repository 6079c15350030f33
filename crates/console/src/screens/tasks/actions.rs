//! Actions on a task: cancel, retry, and the form that changes a waiting task.

use queue::cancel;
use queue::change::{self, TaskChanges};

use super::status::{no_such_task, task_id};
use crate::screens::prelude::*;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/tasks/{id}/cancel", post(cancel_task))
        .route("/tasks/{id}/retry", post(retry_task))
        .route("/tasks/{id}/set", post(change_task))
}

/// Returns the path of a task, unless it does not exist.
fn path(id: TaskId) -> String {
    format!("/tasks/{id}")
}

fn found(id: TaskId, result: &str) -> Result<(), HttpError> {
    HttpError::unless(result != "not found", || no_such_task(id))
}

async fn cancel_task(Path(id): Path<String>, form: FormRequest) -> HandlerResult {
    let id = task_id(&id)?;
    form.change(&path(id), async |tx| found(id, &cancel::cancel(tx, id).await?)).await
}

async fn retry_task(Path(id): Path<String>, form: FormRequest) -> HandlerResult {
    let id = task_id(&id)?;
    form.change(&path(id), async |tx| found(id, &cancel::retry(tx, id).await?)).await
}

/// Changes a waiting task. An empty field leaves its option unchanged.
async fn change_task(Path(id): Path<String>, form: FormRequest) -> HandlerResult {
    let id = task_id(&id)?;
    let changes = read_changes(&form)?;
    form.change(&path(id), async |tx| match change::change(tx, id, &changes).await?.as_str() {
        "finished" => Err(HttpError::bad_request(format!("task {id} is finished"))
            .hint("Only a task that waits can be changed.")),
        result => found(id, result),
    })
    .await
}

fn read_changes(form: &FormRequest) -> Result<TaskChanges, HttpError> {
    let no_group = form.optional("no_group")?.unwrap_or(false);
    let due_at = match form.field("due_at") {
        "" => None,
        _ => Some(Some(form.instant("due_at", &form.context.zone)?)),
    };
    Ok(TaskChanges {
        priority: form.optional("priority")?,
        queue: form.text("queue"),
        due_at,
        params: form.text("params").map(|text| read_params(&text)).transpose()?.map(Some),
        max_attempts: form.optional("max_attempts")?,
        timeout: None,
        group: if no_group { Some(None) } else { form.text("group").map(Some) },
    })
}

fn read_params(text: &str) -> Result<Vec<Value>, HttpError> {
    serde_json::from_str(text).map_err(|error| {
        HttpError::bad_request(format!("invalid parameters: {error}"))
            .hint("Parameters are a JSON array with the values of $1, $2, …")
    })
}
