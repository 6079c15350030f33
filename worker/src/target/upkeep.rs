//! Regular upkeep of targets: compares epochs, so that a database that was restored to an earlier time
//! is noticed, and deletes old receipts.

use std::sync::Arc;
use std::time::Duration;

use fleet_decisions::timing::TARGET_UPKEEP_INTERVAL;
use queue::resolve_receipt::{live_receipts, next_epoch, raise_epoch, record_epoch};
use queue::row::duration;
use queue::{QueueError, receipt};
use rand::RngExt;
use tokio::time::sleep;

use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::{Duty, StopAt};
use crate::target::Target;

/// Maximum number of receipts that one statement deletes.
const BATCH_SIZE: i32 = 1000;

/// The upkeep of the targets that this worker reaches.
pub(crate) struct Upkeep {
    context: Arc<Context>,
    targets: Vec<Target>,
    /// Whether the next run follows at once: the first one, and after a failure.
    soon: bool,
}

impl Upkeep {
    pub(crate) fn new(context: Arc<Context>, targets: Vec<Target>) -> Self {
        Self { context, targets, soon: true }
    }

    /// Returns the number of receipts deleted.
    async fn maintain(&self, target: &Target) -> Result<u64, QueueError> {
        let control = &self.context.control;
        let state =
            answered(async { next_epoch(&*control.get().await?, &target.name).await }).await?;
        let Some(state) = state else {
            return Err(QueueError::Refused {
                message: format!("the queue has no target {}", target.name),
                hint: Some(format!("pgmill target set {}", target.name)),
            });
        };
        let before =
            answered(async { receipt::store_epoch(&*target.host.get().await?, state.next).await })
                .await?;
        // The higher epoch can be that of another worker, which came later to the queue.
        if before > state.next
            && answered(async { raise_epoch(&*control.get().await?, before).await }).await?
        {
            tracing::warn!(
                target = &*target.name,
                "the queue was restored to an earlier time than the target; tasks that have \
                 succeeded since then are recorded from their receipts"
            );
        }
        if before < state.confirmed {
            tracing::error!(
                target = &*target.name,
                "the target was restored to an earlier time than the queue; effects of tasks may be \
                 missing: pgmill target check {}",
                target.name
            );
        }
        answered(async { record_epoch(&*control.get().await?, &target.name, state, before).await })
            .await?;
        self.forget(target, duration(state.kept)).await
    }

    async fn forget(&self, target: &Target, kept: Duration) -> Result<u64, QueueError> {
        let mut deleted = 0;
        loop {
            let old = answered(async {
                receipt::old_receipts(&*target.host.get().await?, kept, BATCH_SIZE).await
            });
            let mut old = old.await?;
            let all = i32::try_from(old.len()) == Ok(BATCH_SIZE);
            let live =
                answered(async { live_receipts(&*self.context.control.get().await?, &old).await });
            let live = live.await?;
            old.retain(|receipt| !live.contains(receipt));
            let gone =
                answered(async { receipt::forget(&*target.host.get().await?, &old).await }).await?;
            deleted += gone.unsigned_abs();
            if !all || gone == 0 {
                return Ok(deleted);
            }
        }
    }
}

impl Duty for Upkeep {
    const NAME: &'static str = "targets";
    const STOPS: StopAt = StopAt::Drain;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        if self.targets.is_empty() {
            return None;
        }
        if !std::mem::take(&mut self.soon) {
            let wait = TARGET_UPKEEP_INTERVAL.mul_f64(rand::rng().random_range(0.5..1.0));
            sleep(wait).await;
        }
        Some(())
    }

    /// Returns the number of receipts deleted. A target that fails does not delay the others.
    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        let (mut deleted, mut failure) = (0, None);
        for target in &self.targets {
            match self.maintain(target).await {
                Ok(count) => deleted += count,
                Err(error) => {
                    failure = failure.or(Some(QueueError::Refused {
                        message: format!("target {}: {error}", target.name),
                        hint: None,
                    }));
                }
            }
        }
        self.soon = failure.is_some();
        failure.map_or(Ok(deleted), Err)
    }
}
