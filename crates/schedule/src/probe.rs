//! Runs the probe of a triggered schedule. A probe is user-supplied SQL. It runs in a session of
//! the task login, as one statement in a read-only transaction, for a limited time.

use std::time::Duration;

use queue::{chain, database_message};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// Positions of the columns in the result of the probe. The columns may have any names.
const PENDING: usize = 0;
const OLDEST: usize = 1;

/// Returns the number of pending rows and, if requested, the age of the oldest row in seconds; or
/// the error as text. Afterwards the session may be in any state and must not be used again.
///
/// # Errors
/// Fails if the query fails, takes too long or writes, or if its result is not a single row that
/// begins with a number.
pub async fn run(
    client: &Client,
    query: &str,
    timeout: Duration,
) -> Result<(i64, Option<f64>), String> {
    let begin = format!(
        "BEGIN /* schedule.probe */ READ ONLY; SET LOCAL statement_timeout = {0}; SET LOCAL lock_timeout = {0}; \
         SET LOCAL idle_in_transaction_session_timeout = '60s'",
        timeout.as_millis().max(1)
    );
    let asked = async {
        client.batch_execute(&begin).await?;
        client.query_typed(query, &[]).await
    };
    // The server itself cancels the statement in time. This longer limit applies if the server does
    // not answer.
    let rows = tokio::time::timeout(timeout + Duration::from_secs(5), asked)
        .await
        .map_err(|_| "the server did not answer in time".to_owned())?
        .map_err(|error| match error.code() {
            Some(&SqlState::QUERY_CANCELED) => format!(
                "{}: the trigger allows its probe {:?} (timeout)",
                database_message(&error),
                timeout
            ),
            _ => database_message(&error),
        })?;
    let nonsense = |found: &str| {
        Err(format!("the probe returned {found}; expected one row with a number and a timestamp"))
    };
    match rows.as_slice() {
        [] => nonsense("no row"),
        [row] => {
            let shown = |error: tokio_postgres::Error| chain(&error);
            match row.try_get::<_, Option<i64>>(PENDING).map_err(shown)? {
                Some(pending) => Ok((pending.max(0), row.try_get(OLDEST).map_err(shown)?)),
                None => nonsense("no number"),
            }
        }
        _ => nonsense("several rows"),
    }
}
