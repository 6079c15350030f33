//! Reclaims tasks of dead workers that ran in targets: resolves their attempts there, and then records
//! what was found.

use std::sync::Arc;
use std::time::Duration;
use std::vec::IntoIter;

use queue::receipt::Receipt;
use queue::reclaim::{BATCH_SIZE, DeadWorker, Reclaimed};
use queue::resolve_receipt::{ClaimToResolve, claims_to_resolve, reclaim_resolved, record_receipt};
use queue::{Mode, QueueError, Token};
use tokio::sync::watch;

use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::Duty;
use crate::duties::reclaimer::report;
use crate::target::{Target, resolve};

/// Reclaims the tasks of dead workers in one target. Each target has its own duty, because a target
/// that does not answer must delay neither the reclaimer nor the other targets.
pub(crate) struct TargetReclaimer {
    context: Arc<Context>,
    target: Target,
    /// Set by the reclaimer: the workers that are dead according to its last snapshot.
    dead_workers: watch::Receiver<Vec<DeadWorker>>,
    /// Those of them that are still to be processed.
    dead: IntoIter<DeadWorker>,
    /// Whether the last attempt to resolve failed.
    failing: bool,
}

impl TargetReclaimer {
    pub(crate) fn new(
        context: Arc<Context>,
        target: Target,
        dead_workers: watch::Receiver<Vec<DeadWorker>>,
    ) -> Self {
        Self { context, target, dead_workers, dead: Vec::new().into_iter(), failing: false }
    }

    /// Reclaims the tasks of a dead worker. If the target does not answer, its tasks stay claimed.
    ///
    /// # Errors
    /// The queue is unreachable.
    async fn reclaim(&mut self, dead: DeadWorker) -> Result<Reclaimed, QueueError> {
        let Self { context, target, .. } = &*self;
        let mut reclaimed = Reclaimed::default();
        let names = [target.name.to_string()];
        let claims = answered(async {
            claims_to_resolve(&*context.control.get().await?, dead, &names).await
        })
        .await?;
        let mut failed = None;
        for batch in claims.chunks(BATCH_SIZE.into()) {
            match resolve_batch(context, target, batch).await {
                Ok(resolved) => record(context, dead, resolved, &mut reclaimed).await?,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        match failed {
            Some(error) if !self.failing => {
                tracing::warn!(
                    worker = %dead.worker, target = &*self.target.name, %error,
                    "could not resolve the tasks of a dead worker; they wait for the target"
                );
                self.failing = true;
            }
            None if !claims.is_empty() => self.failing = false,
            _ => {}
        }
        Ok(reclaimed)
    }
}

impl Duty for TargetReclaimer {
    const NAME: &'static str = "reclaim_in_targets";
    /// Zero, as for the reclaimer.
    const MAX_BACKOFF: Duration = Duration::ZERO;
    type Cause = DeadWorker;

    async fn next(&mut self) -> Option<DeadWorker> {
        loop {
            if let Some(dead) = self.dead.next() {
                return Some(dead);
            }
            self.dead_workers.changed().await.ok()?;
            self.dead = self.dead_workers.borrow_and_update().clone().into_iter();
        }
    }

    async fn run_once(&mut self, dead: DeadWorker) -> Result<u64, QueueError> {
        let reclaimed = self.reclaim(dead).await?;
        Ok(report(&self.context, dead, &reclaimed).await as u64)
    }
}

/// Resolves claims in the target, and completes the tasks that have succeeded there. Returns the
/// tokens of the others, which can no longer commit.
async fn resolve_batch(
    context: &Context,
    target: &Target,
    batch: &[ClaimToResolve],
) -> Result<Vec<Token>, QueueError> {
    // The resolution waits for each COMMIT under way, which may take long. Besides, a statement may
    // hold locks for a long time, although it can no longer commit. If one backend cannot be
    // terminated, the others cannot either.
    for claim in batch {
        if !target.host.terminate(claim.session).await {
            break;
        }
    }
    let mut resolved = Vec::new();
    let (in_transaction, autocommit): (Vec<&ClaimToResolve>, Vec<&ClaimToResolve>) =
        batch.iter().partition(|claim| claim.mode == Mode::Transaction);
    // An autocommit task has no receipt. Its backend has to end before the task runs again.
    for claim in autocommit {
        if target.host.gone(claim.session, None).await? {
            resolved.push(claim.token);
        }
    }
    if in_transaction.is_empty() {
        return Ok(resolved);
    }
    let receipts: Vec<Receipt> = in_transaction.iter().map(|claim| claim.receipt).collect();
    let found = resolve(&target.host, &receipts).await?;
    for (claim, found) in in_transaction.iter().zip(found) {
        let Some(done) = found.done else {
            resolved.push(claim.token);
            continue;
        };
        let recorded = answered(async {
            let client = context.control.get().await?;
            record_receipt(&*client, (claim.id, claim.token), &done).await
        });
        if recorded.await? {
            tracing::info!(
                task = %claim.id, target = &*target.name,
                "a task of a dead worker has succeeded in its target"
            );
        }
    }
    Ok(resolved)
}

/// Reclaims the claims that were resolved.
async fn record(
    context: &Context,
    dead: DeadWorker,
    resolved: Vec<Token>,
    reclaimed: &mut Reclaimed,
) -> Result<(), QueueError> {
    if resolved.is_empty() {
        return Ok(());
    }
    let tasks =
        answered(async { reclaim_resolved(&*context.control.get().await?, dead, &resolved).await });
    for (task, released) in tasks.await? {
        if released { &mut reclaimed.released } else { &mut reclaimed.ended }.push(task);
    }
    Ok(())
}
