//! Cancels and retries many tasks, in chunks. Each chunk is one transaction, and checks each task
//! again.
//!
//! The list of ids is a snapshot, which is out of date by the time an operator confirms it.
//! Therefore each statement checks again that a task still has the state or outcome of the filter,
//! and the function that it calls locks the row.

use serde::{Serialize, Serializer};
use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Transaction};

use crate::error::QueueError;
use crate::id::TaskId;
use crate::row::{FromRow, from_row};
use crate::task::{Outcome, State};

/// Maximum number of tasks per chunk. The row locks of a chunk last until its commit, and a locked
/// task cannot finish until then.
pub const CHUNK: usize = 500;

const CANCEL_MANY: &str = "/* queue.cancel_many */
SELECT c.id, c.result FROM mill.cancel_many($1, $2::text::mill.state) AS c";

const RETRY_MANY: &str = "/* queue.retry_many */
SELECT r.id, r.result FROM mill.retry_many($1, $2::text::mill.outcome) AS r";

/// Result for one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BulkResult {
    /// The task.
    pub id: TaskId,
    /// The result of [`cancel`](crate::transition::cancel::cancel) or
    /// [`retry`](crate::transition::cancel::retry). Two more results are possible. `changed`: the
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

/// Cancels these tasks in one transaction. With a state, leaves tasks alone that are no longer in
/// it.
///
/// # Errors
/// If the statement fails, none of the tasks is cancelled.
pub async fn cancel_chunk(
    client: &impl GenericClient,
    ids: &[TaskId],
    state: Option<State>,
) -> Result<Vec<BulkResult>, QueueError> {
    run_chunk(client, CANCEL_MANY, ids, state.map(State::as_str)).await
}

/// Retries these tasks in one transaction, or in a savepoint of the caller's transaction. With an
/// outcome, leaves tasks alone that no longer are finished with it. If the database refuses a task,
/// for example because another live task has its key, the tasks are retried one by one.
///
/// # Errors
/// After an error, none of the tasks is retried.
pub async fn retry_chunk(
    client: &mut impl GenericClient,
    ids: &[TaskId],
    outcome: Option<Outcome>,
) -> Result<Vec<BulkResult>, QueueError> {
    let mut transaction = client.transaction().await?;
    let answers = match retry_all_or_none(&mut transaction, ids, outcome).await {
        Err(error) if error.refused() => {
            let mut answers = Vec::with_capacity(ids.len());
            for id in ids {
                match retry_all_or_none(&mut transaction, &[*id], outcome).await {
                    Ok(answer) => answers.extend(answer),
                    Err(error) if error.refused() => answers.push(BulkResult::refused(*id, &error)),
                    Err(error) => return Err(error),
                }
            }
            answers
        }
        answered => answered?,
    };
    transaction.commit().await?;
    Ok(answers)
}

/// Returns the results that [`cancel_chunk`] would have: it runs in a transaction that is rolled
/// back.
///
/// # Errors
/// As [`cancel_chunk`].
pub async fn predict_cancel(
    client: &mut impl GenericClient,
    ids: &[TaskId],
    state: Option<State>,
) -> Result<Vec<BulkResult>, QueueError> {
    let transaction = client.transaction().await?;
    let answers = cancel_chunk(&transaction, ids, state).await?;
    transaction.rollback().await?;
    Ok(answers)
}

/// Returns the results that [`retry_chunk`] would have. The tasks are retried in a transaction that
/// is rolled back, because only [`retry_chunk`] itself knows every reason for a refusal, such as the
/// run of a task.
///
/// # Errors
/// As [`retry_chunk`].
pub async fn predict_retry(
    client: &mut impl GenericClient,
    ids: &[TaskId],
    outcome: Option<Outcome>,
) -> Result<Vec<BulkResult>, QueueError> {
    let mut transaction = client.transaction().await?;
    let answers = retry_chunk(&mut transaction, ids, outcome).await?;
    transaction.rollback().await?;
    Ok(answers)
}

/// Retries all of these tasks or none, in a savepoint, so that a refusal does not abort the
/// transaction.
async fn retry_all_or_none(
    transaction: &mut Transaction<'_>,
    ids: &[TaskId],
    outcome: Option<Outcome>,
) -> Result<Vec<BulkResult>, QueueError> {
    let savepoint = transaction.transaction().await?;
    let answers = run_chunk(&savepoint, RETRY_MANY, ids, outcome.map(Outcome::as_str)).await;
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

async fn run_chunk(
    client: &impl GenericClient,
    statement: &str,
    ids: &[TaskId],
    still: Option<&str>,
) -> Result<Vec<BulkResult>, QueueError> {
    let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
    let rows =
        client.query_typed(statement, &[(&ids, Type::INT8_ARRAY), (&still, Type::TEXT)]).await?;
    rows.iter().map(BulkResult::from_row).collect()
}
