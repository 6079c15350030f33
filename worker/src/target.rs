//! Tasks that run in targets, which are other databases than the queue's.
//!
//! | step | file |
//! |---|---|
//! | tasks of dead workers: resolved in the target, then reclaimed | `reclaim` |
//! | conditions of targets: standby lag, old snapshots, active sessions | `conditions` |
//! | comparison of epochs, which shows a restore; deletion of old receipts | `upkeep` |
//!
//! A reader of a target runs the task in its session there. Instead of the completion, the task's
//! transaction contains the receipt (`crates/queue/src/receipt/schema.sql`). After COMMIT, the
//! worker records the success in the queue. If it is unknown whether the transaction was committed,
//! a worker resolves the attempt in the target, and waits for the target as long as it takes.

pub(crate) mod conditions;
pub(crate) mod reclaim;
pub(crate) mod upkeep;

use std::sync::Arc;

use queue::QueueError;
use queue::receipt::{self, Receipt, Resolved};

use crate::control::{Control, answered};
use crate::login::Login;

/// A target that this worker reaches.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) name: Arc<str>,
    /// Control sessions in the target, under the login of its tasks.
    pub(crate) host: Arc<Control>,
}

/// Returns the targets among these logins.
pub(crate) fn targets(logins: &[Login]) -> Vec<Target> {
    let of_targets = logins.iter().filter(|login| login.host.is_in_target());
    of_targets
        .map(|login| Target { name: Arc::clone(&login.profile), host: Arc::clone(&login.host) })
        .collect()
}

/// Returns the names of targets.
pub(crate) fn names(targets: &[Target]) -> Vec<String> {
    targets.iter().map(|target| target.name.to_string()).collect()
}

/// Resolves attempts in the target of these sessions.
///
/// # Errors
/// The target is unreachable, or does not answer in time. Nothing is resolved.
pub(crate) async fn resolve(
    host: &Control,
    receipts: &[Receipt],
) -> Result<Vec<Resolved>, QueueError> {
    answered(async { receipt::resolve(&*host.get().await?, receipts).await }).await
}
