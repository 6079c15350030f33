//! Purge of a queue: cancels the tasks that wait in it.

use axum::extract::Path;
use axum::response::Response;
use queue::TaskId;
use queue::purge;

use crate::http::error::HttpError;
use crate::http::request::FormRequest;

/// Maximum number of transactions of one submission, with 500 tasks each. The screen shows the tasks
/// that are left, and the purge can be repeated.
const MAX_CHUNKS: usize = 100;

/// Cancels the tasks that wait in the queue when the form is submitted. Each chunk is a transaction,
/// as in `pgmill queue purge`.
pub(super) async fn purge(
    Path(queue): Path<String>,
    form: FormRequest,
) -> Result<Response, HttpError> {
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let up_to = purge::waiting_tasks(&*tx, &queue).await?.last_id;
    tx.commit().await?;
    let mut after = TaskId(0);
    for _ in 0..MAX_CHUNKS {
        let Some(up_to) = up_to.filter(|up_to| after < *up_to) else { break };
        let tx = form.begin(&mut session).await?;
        let chunk = purge::purge_chunk(&*tx, &queue, after, up_to).await?;
        tx.commit().await?;
        let Some(last) = chunk.last_id else { break };
        after = last;
    }
    Ok(form.redirect_back("/queues"))
}
