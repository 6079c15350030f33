//! running → finished or reclaimed, for tasks with a target.
//!
//! The backend of such a task is on another server, so the queue cannot see whether the attempt has
//! committed. A worker that can reach the target resolves the attempt there
//! ([`crate::receipt::resolve`]), and then records here what it found.

use conninfo::GenericClient;
use pgmill_client::{Mode, TaskId};
use uuid::Uuid;

use crate::error::QueueError;
use crate::id::Token;
use crate::receipt::{Done, Receipt};
use crate::row::{Param, column, execute, first, from_row, one, query, rows};
use crate::transition::claim::SessionIdentity;
use crate::transition::reclaim::{BATCH_SIZE, DeadWorker};

/// The claims of a dead worker in these targets. The epoch of each is higher than that of the claim,
/// because the claim was committed before.
const CLAIMS: &str = "SELECT /* queue.claims_to_resolve */ t.id, t.token, t.run_as AS target, t.receipt, nextval('mill.target_epochs') AS epoch,
    (mill.effective(t.options)).mode::text, t.session_pid, t.session_started_at
FROM mill.tasks t
WHERE t.state = 'running' AND t.claimed_by = $1 AND t.receipt IS NOT NULL AND t.run_as = ANY ($3)
    AND (SELECT w.heartbeat_at FROM mill.workers w WHERE w.id = $1) IS NOT DISTINCT FROM $2
ORDER BY t.id LIMIT 500";

const RECORD: &str = "SELECT /* queue.record_receipt */ mill.record_receipt($1, $2, $3, $4, $5)";

const RECLAIM: &str = "SELECT /* queue.reclaim_resolved */ r.task_id, r.released
FROM (SELECT WHERE (SELECT w.heartbeat_at FROM mill.workers w WHERE w.id = $1) IS NOT DISTINCT FROM $2) AS dead
CROSS JOIN LATERAL mill.reclaim($1, $3, $4) AS r";

const RAISE_EPOCH: &str = "SELECT /* queue.raise_target_epoch */ mill.raise_target_epoch($1)";

const NEXT_EPOCH: &str = "SELECT /* queue.next_target_epoch */ nextval('mill.target_epochs') AS next, t.epoch AS confirmed,
    extract(epoch FROM t.receipts_kept)::float8 AS kept
FROM mill.targets t WHERE t.name = $1";

const RECORD_EPOCH: &str =
    "SELECT /* queue.record_target_epoch */ mill.record_target_epoch($1, $2, $3, $4)";

const LIVE: &str = "SELECT /* queue.live_receipts */ coalesce(array_agg(t.receipt), '{}') FROM mill.tasks t WHERE t.receipt = ANY ($1)";

/// A claim of a dead worker whose task has a target.
#[derive(Clone, Debug)]
pub struct ClaimToResolve {
    /// The task's id.
    pub id: TaskId,
    /// The claim's token.
    pub token: Token,
    /// Name of the target.
    pub target: String,
    /// The receipt, with an epoch that is higher than that of the claim.
    pub receipt: Receipt,
    /// Mode of the task. Autocommit tasks have no receipt.
    pub mode: Mode,
    /// Backend that runs the task, in the target.
    pub session: SessionIdentity,
}

from_row! {
    row => ClaimToResolve {
        id, token, target,
        receipt: Receipt { id: column(row, "receipt")?, epoch: column(row, "epoch")? },
        mode,
        session: SessionIdentity {
            pid: column(row, "session_pid")?, started_at: column(row, "session_started_at")?,
        },
    }
}

/// What a worker needs to compare epochs with a target.
#[derive(Clone, Copy, Debug)]
pub struct TargetState {
    /// A new epoch.
    pub next: i64,
    /// Highest epoch that the target has stored, as far as the queue knows.
    pub confirmed: i64,
    /// Seconds for which the target keeps receipts.
    pub kept: f64,
}

from_row! { TargetState { next, confirmed, kept } }

/// Returns the claims of a dead worker in these targets. None if the worker has returned.
pub async fn claims_to_resolve(
    client: &impl GenericClient,
    dead: DeadWorker,
    targets: &[String],
) -> Result<Vec<ClaimToResolve>, QueueError> {
    rows(client, CLAIMS, &[&dead.worker.0, &dead.last_heartbeat, &targets]).await
}

/// Records the success of a task whose receipt was found. Returns `false` if the claim is lost.
///
/// # Errors
/// The success may have been recorded in spite of an error. Another call then returns `false`.
pub async fn record_receipt(
    client: &impl GenericClient,
    (id, token): (TaskId, Token),
    done: &Done,
) -> Result<bool, QueueError> {
    let params: [&dyn Param; 5] = [
        /* task_id */ &id.0,
        /* claim_token */ &token.0,
        /* row_count */ &done.rows,
        /* ran_seconds */ &done.ran.as_secs_f64(),
        &done.result,
    ];
    one(client, RECORD, &params).await
}

/// Reclaims resolved claims of a dead worker, at most [`BATCH_SIZE`] at once. Returns each task, and
/// whether it will be attempted again. None if the worker has returned.
pub async fn reclaim_resolved(
    client: &impl GenericClient,
    dead: DeadWorker,
    resolved: &[Token],
) -> Result<Vec<(TaskId, bool)>, QueueError> {
    let tokens: Vec<Uuid> = resolved.iter().map(|token| token.0).collect();
    let params: [&dyn Param; 4] = [
        &dead.worker.0,
        &dead.last_heartbeat,
        /* max_count */ &i32::from(BATCH_SIZE),
        /* resolved */ &tokens,
    ];
    let rows = query(client, RECLAIM, &params).await?;
    rows.iter().map(|row| Ok((column(row, "task_id")?, column(row, "released")?))).collect()
}

/// Makes all future epochs higher than this one. Returns whether they were lower.
pub async fn raise_epoch(client: &impl GenericClient, epoch: i64) -> Result<bool, QueueError> {
    one(client, RAISE_EPOCH, &[&epoch]).await
}

/// Returns a new epoch for the target, and what the queue knows of it; `None` if it is no target.
pub async fn next_epoch(
    client: &impl GenericClient,
    target: &str,
) -> Result<Option<TargetState>, QueueError> {
    first(client, NEXT_EPOCH, &[&target]).await
}

/// Records that the target has stored an epoch, and whether it has lost earlier ones.
pub async fn record_epoch(
    client: &impl GenericClient,
    target: &str,
    state: TargetState,
    before: i64,
) -> Result<(), QueueError> {
    execute(client, RECORD_EPOCH, &[&target, &state.confirmed, &before, &state.next]).await
}

/// Returns the receipts of this list that belong to live tasks.
pub async fn live_receipts(
    client: &impl GenericClient,
    receipts: &[Uuid],
) -> Result<Vec<Uuid>, QueueError> {
    one(client, LIVE, &[&receipts]).await
}
