//! running → pending | scheduled, with the attempt given back.
//!
//! For claims that were never started, that a graceful stop interrupted, or whose task said "later".
//! A task with a cancel request ends as cancelled instead.

use std::time::Duration;

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::error::QueueError;
use crate::task::{Claim, TaskId, Token, WorkerId};

const RELEASE: &str = "/* queue.release */
SELECT mill.release_claim($1, $2, make_interval(secs => $3))";

const CLAIMS_OF: &str = "/* queue.claims_of */
SELECT t.id, t.token FROM mill.tasks t WHERE t.state = 'running' AND t.claimed_by = $1";

/// Gives a task back, to run again after `wait`. `false`: it was not this worker's any more.
///
/// # Errors
/// Database trouble: it may be given back all the same. Then another try answers `false`.
pub async fn release(
    client: &impl GenericClient,
    claim: &Claim,
    wait: Duration,
) -> Result<bool, QueueError> {
    release_claim(client, claim.id, claim.token, wait).await
}

/// Gives back the claims that the database knows of and the worker does not: those of a claim
/// whose answer was lost on the way. Returns how many.
///
/// # Errors
/// Database trouble.
pub async fn release_unknown_claims(
    client: &impl GenericClient,
    worker: WorkerId,
    held: &[(TaskId, Token)],
) -> Result<u64, QueueError> {
    let mut released = 0;
    for row in client.query_typed(CLAIMS_OF, &[(&worker.0, Type::UUID)]).await? {
        let claim = (TaskId(row.try_get(0)?), Token(row.try_get(1)?));
        if !held.contains(&claim) {
            released += u64::from(release_claim(client, claim.0, claim.1, Duration::ZERO).await?);
        }
    }
    Ok(released)
}

async fn release_claim(
    client: &impl GenericClient,
    id: TaskId,
    token: Token,
    wait: Duration,
) -> Result<bool, QueueError> {
    let rows = client
        .query_typed(
            RELEASE,
            &[(&id.0, Type::INT8), (&token.0, Type::UUID), (&wait.as_secs_f64(), Type::FLOAT8)],
        )
        .await?;
    Ok(rows[0].try_get(0)?)
}
