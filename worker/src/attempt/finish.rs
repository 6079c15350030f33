//! Records the result of an attempt on a control session: finished, to be retried, or released.

use std::sync::Arc;

use queue::fail::fail;
use queue::{Claim, Disposition, Outcome};

use crate::attempt::execute::{AttemptResult, Executor};
use crate::claim::release::release_claim;

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
