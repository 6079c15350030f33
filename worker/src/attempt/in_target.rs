//! The end of an attempt in a target, after the receipt and COMMIT were sent. `recorder` records the
//! successes in the queue.

pub(crate) mod recorder;

use std::time::Duration;

use queue::Claim;
use queue::fail::Report;
use queue::receipt::{Receipt, Resolved};
use queue::resolve_receipt::{raise_epoch, record_receipt};
use uuid::Uuid;

use crate::attempt::commit::Completion;
use crate::attempt::execute::{AttemptResult, Executor, Interruption};
use crate::attempt::session::Session;
use crate::attempt::supervise::StopReason;
use crate::context::in_flight::ClaimedTask;
use crate::control::Control;
use crate::target::resolve;

impl Executor {
    /// Derives the result of the attempt. Records the success if only the receipt shows it.
    pub(crate) async fn end_in_target(
        &self,
        session: &Session,
        (task, receipt): (&ClaimedTask, Receipt),
        (completion, stopped): (Completion, Option<StopReason>),
        report: Report,
    ) -> AttemptResult {
        let conflict = matches!(completion, Completion::Lost(_));
        let (error, in_doubt) = match completion {
            Completion::Committed if stopped.is_none() => {
                return AttemptResult::InTarget(Box::new(report));
            }
            // The cancel may have ended the wait for a synchronous standby. The resolution waits for
            // it again, because it writes too.
            Completion::Committed => (None, true),
            Completion::Lost(error) | Completion::Refused(error) => (Some(error), false),
            Completion::InDoubt(error) => (error, true),
        };
        let claim = &task.claim;
        if in_doubt {
            // COMMIT may never have arrived. Then the backend stays idle in the transaction, with its
            // locks, for which the next attempt would wait.
            session.host.terminate(session.identity()).await;
        }
        if conflict || in_doubt {
            let resolved = self.resolve(&session.host, claim.id(), receipt).await;
            if let Some(done) = &resolved.done {
                let recorded = self.control.retry("recording the receipt", claim.id(), || async {
                    let claim = (claim.id(), claim.token());
                    record_receipt(&*self.control.get().await?, claim, done).await
                });
                return if recorded.await { AttemptResult::Succeeded } else { AttemptResult::Lost };
            }
            if conflict {
                // Either the claim is lost, or the queue was restored to an earlier time and uses
                // epochs again. A release finds out.
                self.control
                    .retry("raising the epoch", claim.id(), || async {
                        raise_epoch(&*self.control.get().await?, resolved.epoch).await
                    })
                    .await;
                return AttemptResult::Release { wait: Duration::ZERO };
            }
        }
        match (stopped, error) {
            (Some(reason), error) => {
                self.classify(claim, Interruption::Stopped(reason, error), report)
            }
            (None, Some(error)) => self.classify(claim, Interruption::Failed(error), report),
            (None, None) => AttemptResult::Lost,
        }
    }

    /// Waits until a synchronous standby of the target has what the session has committed there. A cancel
    /// ends this wait, and the server then reports a success that a failover undoes. In the queue's own
    /// database, the completion waits.
    pub(crate) async fn until_replicated(&self, session: &Session, claim: &Claim) {
        if session.host.is_in_target() {
            // A write that waits, because the queue depends on it. It resolves no attempt.
            let none = Receipt { id: Uuid::new_v4(), epoch: 0 };
            self.resolve(&session.host, claim.id(), none).await;
        }
    }

    /// Resolves the worker's own attempt. Waits for the target without limit: until it answers, nobody
    /// knows whether the task has succeeded.
    async fn resolve(&self, host: &Control, task: queue::TaskId, receipt: Receipt) -> Resolved {
        host.retry("resolving in the target", task, || async {
            Ok(resolve(host, &[receipt]).await?.remove(0))
        })
        .await
    }
}
