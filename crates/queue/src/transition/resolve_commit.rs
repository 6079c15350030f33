//! Resolves an in-doubt commit, which is a COMMIT whose response was lost.
//!
//! Locks the task's row. The lock waits for the old transaction to end, and the content of the row
//! then shows whether that transaction was committed.

use conninfo::GenericClient;

use crate::error::QueueError;
use crate::row::{Param, execute, first, query};
use crate::task::Claim;

/// Terminates the old backend, which otherwise keeps its transaction open for as long as the
/// network failure hides the disconnect.
const END_SESSION: &str = "SELECT /* queue.end_claimed_session */ pg_terminate_backend(a.pid) FROM mill.tasks t JOIN pg_stat_activity a
    ON a.pid = t.session_pid AND a.backend_start = t.session_started_at
WHERE t.id = $1 AND t.token = $2";

const LOCK: &str = "SELECT /* queue.resolve_commit */ t.token = $2 IS TRUE AS still_claimed FROM mill.tasks t WHERE t.id = $1 FOR NO KEY UPDATE";

const RECORDED: &str = "SELECT /* queue.recorded_success */ FROM mill.attempts a WHERE a.task_id = $1 AND a.token = $2 AND a.outcome = 'succeeded'";

/// Outcome of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitResolution {
    /// Committed: the attempt is in history as succeeded.
    Committed,
    /// Not committed, and the claim is still valid.
    RolledBack,
    /// Not committed, and the claim is gone.
    Lost,
}

/// Determines on a control session whether the completion of the claim was committed. Waits for the
/// old transaction to end.
///
/// # Errors
/// Also fails if the old transaction does not end within the session's `lock_timeout`.
pub async fn resolve_commit(
    client: &impl GenericClient,
    claim: &Claim,
) -> Result<CommitResolution, QueueError> {
    let claim_params = params(claim);
    // Without the privilege to terminate the old backend, the lock below waits until it ends.
    if let Err(error) = execute(client, END_SESSION, &claim_params).await
        && error.sqlstate() != Some(&tokio_postgres::error::SqlState::INSUFFICIENT_PRIVILEGE)
    {
        return Err(error);
    }
    if first(client, LOCK, &claim_params).await? == Some(true) {
        return Ok(CommitResolution::RolledBack);
    }
    Ok(match committed(client, claim).await? {
        true => CommitResolution::Committed,
        false => CommitResolution::Lost,
    })
}

/// Returns whether the success of the claim is in the history. Waits for nothing: `false` also
/// means that the transaction may still commit.
///
/// # Errors
/// As every statement on a control session.
pub async fn committed(client: &impl GenericClient, claim: &Claim) -> Result<bool, QueueError> {
    Ok(!query(client, RECORDED, &params(claim)).await?.is_empty())
}

fn params(claim: &Claim) -> [&dyn Param; 2] {
    [&claim.id.0, &claim.token.0]
}
