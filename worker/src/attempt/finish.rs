//! Records the result of an attempt on a control session: finished, to be retried, or released.

use std::sync::Arc;
use std::time::Duration;

use queue::fail::fail;
use queue::release::release;
use queue::{Claim, Disposition, Outcome};

use crate::attempt::execute::{AttemptResult, Executor};
use crate::claim::in_flight::ClaimedTask;
use crate::control::Control;
use crate::wakeup::Wakeup;

/// Records the result in the queue. Retries until the database accepts the result. If that takes
/// longer than the orphan timeout, the fleet has reclaimed the task by then, and the record is
/// `Lost`.
pub(crate) async fn finish(
    executor: &Executor,
    claim: &Arc<Claim>,
    result: AttemptResult,
) -> Disposition {
    let control = &executor.control;
    match result {
        AttemptResult::InTarget(report) => {
            match executor.recorder.record(Arc::clone(claim), *report).await {
                true => Disposition::Finished(Outcome::Succeeded),
                false => Disposition::Lost,
            }
        }
        AttemptResult::Succeeded => Disposition::Finished(Outcome::Succeeded),
        AttemptResult::Lost => Disposition::Lost,
        AttemptResult::Failed { outcome, decision, report } => {
            control
                .retry("recording the end", claim.id(), || async {
                    fail(&*control.get().await?, claim, outcome, decision, &report).await
                })
                .await
        }
        AttemptResult::Release { wait } => release_claim(control, claim, wait).await,
    }
}

/// Releases a task that was not started, and requests a sweep so that it is claimed again.
pub(crate) async fn release_unstarted(control: &Control, wakeup: &Wakeup, task: ClaimedTask) {
    release_claim(control, &task.claim, Duration::ZERO).await;
    drop(task.in_flight_guard);
    wakeup.request_sweep();
}

/// Releases a claim, so that the task runs again after `wait`.
async fn release_claim(control: &Control, claim: &Claim, wait: Duration) -> Disposition {
    control
        .retry("release", claim.id(), || async {
            release(&*control.get().await?, claim, wait).await
        })
        .await
}
