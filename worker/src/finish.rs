//! The end of an attempt on the control side: recorded, retried or given back, whatever it takes.

use std::time::Duration;

use queue::fail::{Failed, Report, fail};
use queue::give_back::give_back;
use queue::retry::Verdict;
use queue::{Claim, Outcome};

use crate::bell::Bell;
use crate::control::{Backoff, Control, answered};
use crate::execute::Ending;
use crate::held::Work;

/// What became of the task, for log and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// It has ended.
    As(Outcome),
    /// It will be attempted again.
    Retried(Outcome),
    /// It went back with its attempt.
    GivenBack,
    /// It was somebody else's by then.
    Lost,
}

/// Brings the ending into the queue. Tries until the database takes it: if that lasts longer than
/// the orphan timeout, the fleet has reclaimed the task and the answer is `Lost`.
pub(crate) async fn finish(control: &Control, claim: Claim, ending: Ending) -> Finished {
    match ending {
        Ending::Succeeded => Finished::As(Outcome::Succeeded),
        Ending::Lost => Finished::Lost,
        Ending::Failed { outcome, verdict, report } => {
            record(control, &claim, outcome, verdict, &report).await
        }
        Ending::GiveBack { wait } => hand_back(control, &claim, wait).await,
    }
}

async fn record(
    control: &Control,
    claim: &Claim,
    outcome: Outcome,
    verdict: Verdict,
    report: &Report,
) -> Finished {
    let mut backoff = Backoff::default();
    loop {
        let failed =
            answered(async { fail(&*control.get().await?, claim, outcome, verdict, report).await });
        match failed.await {
            Ok(Failed::Finished) => return Finished::As(outcome),
            Ok(Failed::Retried) => return Finished::Retried(outcome),
            Ok(Failed::Lost) => return Finished::Lost,
            Err(error) => control.trouble("the record of an attempt", claim.id(), &error),
        }
        backoff.wait().await;
    }
}

/// Gives back what was never begun, and lets it be claimed again.
pub(crate) async fn hand_back_unbegun(control: &Control, bell: &Bell, work: Work) {
    hand_back(control, &work.claim, Duration::ZERO).await;
    drop(work.holding);
    bell.sweep();
}

/// Gives a claim back, to run again after `wait`.
async fn hand_back(control: &Control, claim: &Claim, wait: Duration) -> Finished {
    let mut backoff = Backoff::default();
    loop {
        match answered(async { give_back(&*control.get().await?, claim, wait).await }).await {
            Ok(true) => return Finished::GivenBack,
            Ok(false) => return Finished::Lost,
            Err(error) => control.trouble("giving back", claim.id(), &error),
        }
        backoff.wait().await;
    }
}
