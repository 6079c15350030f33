//! running → scheduled | blocked | pending, when an attempt is interrupted and does not count.
//!
//! Applies to claims that were never started, claims that a graceful stop interrupted, and claims
//! whose task snoozed. A task with a cancel request ends as cancelled instead.

use std::time::Duration;

use conninfo::GenericClient;
use pgmill_client::TaskId;
use uuid::Uuid;

use crate::error::QueueError;
use crate::id::{Token, WorkerId};
use crate::row::{Param, column, one, query};
use crate::task::{Claim, Disposition};

const RELEASE: &str =
    "SELECT /* queue.release */ mill.release_claim($1, $2, make_interval(secs => $3))";

/// Leaves out a task whose run another session changes, because its release would have to wait. A task
/// that runs at most once may have been started if its session is gone: after a failover to a standby
/// that has the claim but not the end of the attempt, the worker no longer knows the claim either.
const UNKNOWN_CLAIMS: &str = "SELECT /* queue.unknown_claims */ t.id, t.token,
    (mill.effective(t.options)).at_most_once AND t.receipt IS NULL AND NOT EXISTS (
        SELECT FROM mill.live_backends() b WHERE b.pid = t.session_pid
            AND coalesce(b.started_at = t.session_started_at, true)) AS maybe_started
FROM mill.tasks t WHERE t.state = 'running' AND t.claimed_by = $1
    AND t.token <> ALL ($2) AND (t.node IS NULL OR mill.lock_run(t.run_id))";

const END_AS_UNKNOWN: &str = "SELECT /* queue.end_unknown_claim */ mill.fail($1, $2, 'unknown', 'final', '0', jsonb_build_object(
    'message', 'the session is gone, and it is unknown whether the statement was started')) <> 'lost'";

/// Releases a task, so that it runs again after `wait`. Returns [`Disposition::Released`], even if
/// the task ended as cancelled, or [`Disposition::Lost`].
///
/// # Errors
/// The task may have been released in spite of an error. Another call then returns
/// [`Disposition::Lost`].
pub async fn release(
    client: &impl GenericClient,
    claim: &Claim,
    wait: Duration,
) -> Result<Disposition, QueueError> {
    let released = release_claim(client, claim.id, claim.token, wait).await?;
    Ok(if released { Disposition::Released } else { Disposition::Lost })
}

/// Releases claims that are in the database but that the worker does not know, because the response
/// to a claim statement was lost, or because the server has lost its end. Returns the number of released
/// or ended claims. A claim whose run another session changes is left to the next call.
pub async fn release_unknown_claims(
    client: &impl GenericClient,
    worker: WorkerId,
    known_claims: &[(TaskId, Token)],
) -> Result<u64, QueueError> {
    let known: Vec<Uuid> = known_claims.iter().map(|(_, token)| token.0).collect();
    let mut released = 0;
    for row in query(client, UNKNOWN_CLAIMS, &[&worker.0, &known]).await? {
        let (id, token): (TaskId, Token) = (column(&row, "id")?, column(&row, "token")?);
        released += u64::from(if column(&row, "maybe_started")? {
            one(client, END_AS_UNKNOWN, &[&id.0, &token.0]).await?
        } else {
            release_claim(client, id, token, Duration::ZERO).await?
        });
    }
    Ok(released)
}

async fn release_claim(
    client: &impl GenericClient,
    id: TaskId,
    token: Token,
    wait: Duration,
) -> Result<bool, QueueError> {
    let params: [&dyn Param; 3] = [
        /* task_id */ &id.0,
        /* claim_token */ &token.0,
        /* delay */ &wait.as_secs_f64(),
    ];
    one(client, RELEASE, &params).await
}
