//! Asks a table whether a schedule is to fire: somebody's SQL, in a session of the tasks' login, in a
//! transaction that reads only, one statement, for a bounded time.

use std::time::Duration;

use queue::{chain, database_message};
use tokio_postgres::Client;

/// Rows that are pending and, if that was asked for, seconds since the oldest came in; or what went
/// wrong, in words. The session may be in any state afterwards: nobody is to use it again.
///
/// # Errors
/// A query that fails, takes too long, writes, or returns anything but one row that begins with a
/// number.
pub async fn run(
    client: &Client,
    query: &str,
    timeout: Duration,
) -> Result<(i64, Option<f64>), String> {
    let begin = format!(
        "/* schedule.probe */ BEGIN READ ONLY; SET LOCAL statement_timeout = {0}; SET LOCAL lock_timeout = {0}; \
         SET LOCAL idle_in_transaction_session_timeout = '60s'",
        timeout.as_millis().max(1)
    );
    let asked = async {
        client.batch_execute(&begin).await?;
        client.query_typed(query, &[]).await
    };
    // The server ends the statement; this is for a server that does not answer.
    let rows = tokio::time::timeout(timeout + Duration::from_secs(5), asked)
        .await
        .map_err(|_| "the server did not answer in time".to_owned())?
        .map_err(|error| database_message(&error))?;
    let nonsense = |found: &str| {
        Err(format!("the probe returned {found}, not one row of a number and an instant"))
    };
    match rows.as_slice() {
        [] => nonsense("no row"),
        [row] => {
            let shown = |error: tokio_postgres::Error| chain(&error);
            match row.try_get::<_, Option<i64>>(0).map_err(shown)? {
                Some(pending) => Ok((pending.max(0), row.try_get(1).map_err(shown)?)),
                None => nonsense("no number"),
            }
        }
        _ => nonsense("several rows"),
    }
}
