//! Cancels, retries and changes many tasks, in chunks. Each chunk is one transaction of the caller, and
//! checks each task again.
//!
//! The list of ids is a snapshot, which is out of date by the time an operator confirms it.
//! Therefore each statement checks again that a task still has the state or outcome of the filter,
//! and the function that it calls locks the row.

use conninfo::GenericClient;
use pgmill_client::{Outcome, State, TaskId};
use serde::{Serialize, Serializer};
use serde_json::Value;
use tokio_postgres::Transaction;

use crate::error::QueueError;
use crate::row::{Param, from_row, rows};
use crate::transition::change::TaskChanges;

/// Maximum number of tasks per chunk. The row locks of a chunk last until its commit, and a locked
/// task cannot finish until then.
pub const CHUNK: usize = 500;

const CANCEL_MANY: &str = "SELECT /* queue.cancel_many */ c.id, c.result FROM mill.cancel_many($1, $2::text::mill.state) AS c";

const RETRY_MANY: &str = "SELECT /* queue.retry_many */ r.id, r.result FROM mill.retry_many($1, $2::text::mill.outcome) AS r";

const CHANGE_MANY: &str = "SELECT /* queue.change_tasks */ c.id, c.result FROM mill.change_tasks($1, $3, $2::text::mill.state) AS c";

/// Result for one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BulkResult {
    /// The task.
    pub id: TaskId,
    /// The result of [`cancel`](crate::transition::cancel::cancel),
    /// [`retry`](crate::transition::cancel::retry) or
    /// [`change`](crate::transition::change::change). Two more results are possible. `changed`: the
    /// task no longer matches the filter and was left alone. `refused`: see `message`.
    #[serde(serialize_with = "as_json_word")]
    pub result: String,
    /// Reason for the refusal.
    pub message: Option<String>,
}

from_row! { row => BulkResult { id, result, message: None } }

/// Returns a result as one word for JSON: `not_found`.
#[must_use]
pub fn json_word(result: &str) -> String {
    result.replace(' ', "_")
}

fn as_json_word<S: Serializer>(result: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&json_word(result))
}

/// Cancels these tasks. With a state, leaves tasks alone that are no longer in it. A transaction has to be
/// READ COMMITTED, also for the other functions, so that they see a change for whose end they have waited.
///
/// # Errors
/// After an error, none of the tasks is cancelled, unless [`QueueError::commit_in_doubt`].
pub async fn cancel_chunk(
    client: &impl GenericClient,
    ids: &[TaskId],
    state: Option<State>,
) -> Result<Vec<BulkResult>, QueueError> {
    run_chunk(client, ids, ChunkAction::Cancel(state)).await
}

/// Retries these tasks. With an outcome, leaves tasks alone that no longer are finished with it. If the
/// database refuses a task, for example because another live task has its key, the tasks are retried
/// one by one.
///
/// # Errors
/// After an error, the transaction cannot be committed.
pub async fn retry_chunk(
    transaction: &mut Transaction<'_>,
    ids: &[TaskId],
    outcome: Option<Outcome>,
) -> Result<Vec<BulkResult>, QueueError> {
    chunk_or_each(transaction, ids, ChunkAction::Retry(outcome)).await
}

/// Changes these waiting tasks as [`retry_chunk`] retries tasks. With a state, leaves tasks alone
/// that are no longer in it.
///
/// # Errors
/// After an error, the transaction cannot be committed.
pub async fn change_chunk(
    transaction: &mut Transaction<'_>,
    ids: &[TaskId],
    changes: &TaskChanges,
    state: Option<State>,
) -> Result<Vec<BulkResult>, QueueError> {
    let document = changes.document();
    let mut answers =
        chunk_or_each(transaction, ids, ChunkAction::Change(&document, state)).await?;
    for answer in answers.iter_mut().filter(|answer| answer.result == "running") {
        answer.result = "refused".to_owned();
        answer.message =
            Some("the task is running, and only a task that waits can be changed".into());
    }
    Ok(answers)
}

async fn chunk_or_each(
    transaction: &mut Transaction<'_>,
    ids: &[TaskId],
    action: ChunkAction<'_>,
) -> Result<Vec<BulkResult>, QueueError> {
    match all_or_none(transaction, ids, action).await {
        Err(error) if error.refused() => {
            let mut answers = Vec::with_capacity(ids.len());
            for id in ids {
                match all_or_none(transaction, &[*id], action).await {
                    Ok(answer) => answers.extend(answer),
                    Err(error) if error.refused() => answers.push(BulkResult::refused(*id, &error)),
                    Err(error) => return Err(error),
                }
            }
            Ok(answers)
        }
        answered => answered,
    }
}

/// Acts on all of these tasks or none, in a savepoint, so that a refusal does not abort the
/// transaction.
async fn all_or_none(
    transaction: &mut Transaction<'_>,
    ids: &[TaskId],
    action: ChunkAction<'_>,
) -> Result<Vec<BulkResult>, QueueError> {
    let savepoint = transaction.transaction().await?;
    let answers = run_chunk(&savepoint, ids, action).await;
    match &answers {
        Ok(_) => savepoint.commit().await?,
        Err(_) => savepoint.rollback().await?,
    }
    answers
}

impl BulkResult {
    /// The result for a refused task.
    fn refused(id: TaskId, error: &QueueError) -> Self {
        Self { id, result: "refused".to_owned(), message: Some(error.to_string()) }
    }
}

/// What to do with the tasks of a chunk. The state or outcome, if given, is checked for each task.
#[derive(Clone, Copy)]
enum ChunkAction<'a> {
    Cancel(Option<State>),
    Retry(Option<Outcome>),
    Change(&'a Value, Option<State>),
}

async fn run_chunk(
    client: &impl GenericClient,
    ids: &[TaskId],
    action: ChunkAction<'_>,
) -> Result<Vec<BulkResult>, QueueError> {
    let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
    let (statement, still, changes) = match action {
        ChunkAction::Cancel(state) => (CANCEL_MANY, state.map(State::as_str), None),
        ChunkAction::Retry(outcome) => (RETRY_MANY, outcome.map(Outcome::as_str), None),
        ChunkAction::Change(changes, state) => {
            (CHANGE_MANY, state.map(State::as_str), Some(changes))
        }
    };
    let params: [&dyn Param; 3] = [&ids, &still, &changes];
    let given = if changes.is_some() { &params[..] } else { &params[..2] };
    rows(client, statement, given).await
}
