//! Form that changes a waiting task: priority, queue, group, due time, attempts and parameters.

use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::post;
use jiff::Timestamp;
use jiff::civil::DateTime;
use queue::change::{self, TaskChanges};
use serde_json::Value;

use super::status::{no_such_task, task_id};
use crate::http::app::App;
use crate::http::error::HttpError;
use crate::http::request::FormRequest;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/tasks/{id}/set", post(set))
}

/// Changes a waiting task. An empty field leaves its option unchanged.
async fn set(Path(id): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let id = task_id(&id)?;
    let changes = changes(&form)?;
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let done = change::change(&*tx, id, &changes).await?;
    tx.commit().await?;
    match done.as_str() {
        "not found" => Err(no_such_task(id)),
        "finished" => Err(HttpError::bad_request(format!("task {id} is finished"))
            .hint("Only a task that waits can be changed.")),
        _ => Ok(form.redirect_back(&format!("/tasks/{id}"))),
    }
}

fn changes(form: &FormRequest) -> Result<TaskChanges, HttpError> {
    let text = |name| Some(form.field(name).to_owned()).filter(|text| !text.is_empty());
    let group = if form.optional("no_group")?.unwrap_or(false) {
        Some(None)
    } else {
        text("group").map(Some)
    };
    Ok(TaskChanges {
        priority: form.optional("priority")?,
        queue: text("queue"),
        due_at: due_at(form)?.map(Some),
        params: text("params").map(|text| params(&text)).transpose()?.map(Some),
        max_attempts: form.optional("max_attempts")?,
        timeout: None,
        group,
    })
}

/// Reads the due time, which the form gives in the time zone of the browser.
fn due_at(form: &FormRequest) -> Result<Option<Timestamp>, HttpError> {
    let Some(local) = form.optional::<DateTime>("due_at")? else { return Ok(None) };
    let zoned = local.to_zoned(form.context.zone.clone());
    let zoned = zoned.map_err(|_| HttpError::bad_request("invalid time for due_at"))?;
    Ok(Some(zoned.timestamp()))
}

fn params(text: &str) -> Result<Vec<Value>, HttpError> {
    serde_json::from_str(text).map_err(|error| {
        HttpError::bad_request(format!("invalid parameters: {error}"))
            .hint("Parameters are a JSON array with the values of $1, $2, …")
    })
}
