//! Releases claims, so that their tasks run again.

use std::time::Duration;

use queue::release::release;
use queue::{Claim, Disposition};

use crate::context::in_flight::ClaimedTask;
use crate::control::Control;
use crate::wakeup::claimer::ClaimerHandle;

/// Releases a task that was not started, and requests a sweep so that it is claimed again.
pub(crate) async fn release_unstarted(
    control: &Control,
    claimer: &ClaimerHandle,
    task: ClaimedTask,
) {
    release_claim(control, &task.claim, Duration::ZERO).await;
    drop(task.in_flight_guard);
    claimer.request_sweep();
}

/// Releases a claim, so that the task runs again after `wait`.
pub(crate) async fn release_claim(control: &Control, claim: &Claim, wait: Duration) -> Disposition {
    control
        .retry("release", claim.id(), || async {
            release(&*control.get().await?, claim, wait).await
        })
        .await
}
