//! Reclaims tasks of dead workers that ran in targets: resolves their attempts there, and then records
//! what was found.

use std::collections::HashSet;
use std::sync::Arc;

use queue::receipt::Receipt;
use queue::reclaim::{BATCH_SIZE, DeadWorker, Reclaimed};
use queue::resolve_receipt::{ClaimToResolve, claims_to_resolve, reclaim_resolved, record_receipt};
use queue::{Mode, QueueError, Token};

use crate::context::Context;
use crate::control::answered;
use crate::target::{Target, names, resolve};

/// Reclaims the tasks of dead workers in the targets that this worker reaches.
pub(crate) struct TargetReclaimer {
    targets: Vec<Target>,
    /// Targets in which the last attempt to resolve failed.
    failing: HashSet<Arc<str>>,
}

impl TargetReclaimer {
    pub(crate) fn new(targets: Vec<Target>) -> Self {
        Self { targets, failing: HashSet::new() }
    }

    /// Reclaims the tasks of a dead worker. A target that does not answer keeps its tasks claimed.
    /// Returns the tasks that were released or have ended without success.
    ///
    /// # Errors
    /// The queue is unreachable.
    pub(crate) async fn reclaim(
        &mut self,
        context: &Context,
        dead: DeadWorker,
    ) -> Result<Reclaimed, QueueError> {
        let mut reclaimed = Reclaimed::default();
        if self.targets.is_empty() {
            return Ok(reclaimed);
        }
        let names = names(&self.targets);
        let claims = answered(async {
            claims_to_resolve(&*context.control.get().await?, dead, &names).await
        })
        .await?;
        for target in &self.targets {
            let own = |claim: &&ClaimToResolve| *claim.target == *target.name;
            let claims: Vec<&ClaimToResolve> = claims.iter().filter(own).collect();
            for batch in claims.chunks(BATCH_SIZE.into()) {
                match resolve_batch(context, target, batch).await {
                    Ok(resolved) => {
                        self.failing.remove(&target.name);
                        record(context, dead, resolved, &mut reclaimed).await?;
                    }
                    Err(error) => {
                        if self.failing.insert(Arc::clone(&target.name)) {
                            tracing::warn!(
                                worker = %dead.worker, target = &*target.name, %error,
                                "could not resolve the tasks of a dead worker; they wait for the target"
                            );
                        }
                        break;
                    }
                }
            }
        }
        Ok(reclaimed)
    }
}

/// Resolves claims in the target, and completes the tasks that have succeeded there. Returns the
/// tokens of the others, which can no longer commit.
async fn resolve_batch(
    context: &Context,
    target: &Target,
    batch: &[&ClaimToResolve],
) -> Result<Vec<Token>, QueueError> {
    let mut resolved = Vec::new();
    let (in_transaction, autocommit): (Vec<&ClaimToResolve>, Vec<&ClaimToResolve>) =
        batch.iter().partition(|claim| claim.mode == Mode::Transaction);
    // An autocommit task has no receipt. Its backend has to end before the task runs again.
    for claim in autocommit {
        target.host.terminate(claim.session).await;
        if target.host.gone(claim.session).await? {
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
            // The statement may hold locks for a long time, although it can no longer commit.
            target.host.terminate(claim.session).await;
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
