//! Records the result of an attempt on a control session: finished, to be retried, or released.

use std::time::Duration;

use queue::fail::{Failed, Report, fail};
use queue::release::release;
use queue::retry::RetryDecision;
use queue::{Claim, Outcome};

use crate::attempt::disposition::Disposition;
use crate::attempt::execute::AttemptResult;
use crate::claim::in_flight::ClaimedTask;
use crate::control::{Backoff, Control, answered};
use crate::wakeup::Wakeup;

/// Records the result in the queue. Retries until the database accepts it: if that takes longer
/// than the orphan timeout, the fleet has reclaimed the task and the result is `Lost`.
pub(crate) async fn finish(control: &Control, claim: Claim, result: AttemptResult) -> Disposition {
    match result {
        AttemptResult::Succeeded => Disposition::Finished(Outcome::Succeeded),
        AttemptResult::Lost => Disposition::Lost,
        AttemptResult::Failed { outcome, verdict, report } => {
            record(control, &claim, outcome, verdict, &report).await
        }
        AttemptResult::Release { wait } => release_claim(control, &claim, wait).await,
    }
}

async fn record(
    control: &Control,
    claim: &Claim,
    outcome: Outcome,
    verdict: RetryDecision,
    report: &Report,
) -> Disposition {
    let mut backoff = Backoff::default();
    loop {
        let failed =
            answered(async { fail(&*control.get().await?, claim, outcome, verdict, report).await });
        match failed.await {
            Ok(Failed::Finished) => return Disposition::Finished(outcome),
            Ok(Failed::Retried) => return Disposition::Retried(outcome),
            Ok(Failed::Lost) => return Disposition::Lost,
            Err(error) => control.log_retry("recording an attempt", claim.id(), &error),
        }
        backoff.wait().await;
    }
}

/// Releases a task that was not started, and requests a sweep so that it is claimed again.
pub(crate) async fn release_unstarted(control: &Control, wakeup: &Wakeup, task: ClaimedTask) {
    release_claim(control, &task.claim, Duration::ZERO).await;
    drop(task.in_flight_guard);
    wakeup.request_sweep();
}

/// Releases a claim, to run again after `wait`.
async fn release_claim(control: &Control, claim: &Claim, wait: Duration) -> Disposition {
    let mut backoff = Backoff::default();
    loop {
        match answered(async { release(&*control.get().await?, claim, wait).await }).await {
            Ok(true) => return Disposition::Released,
            Ok(false) => return Disposition::Lost,
            Err(error) => control.log_retry("release", claim.id(), &error),
        }
        backoff.wait().await;
    }
}
