//! Reclaims the tasks of dead workers: terminates their backends, then releases their tasks.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use fleet_decisions::failure_detector::{FailureDetector, PeerSnapshot};
use fleet_decisions::reclaim_effort::ReclaimEffort;
use fleet_decisions::timing::TERMINATE_POLL_INTERVAL;
use queue::QueueError;
use queue::lost_attempts::lost_attempts;
use queue::reclaim::{DeadWorker, Reclaimed, end_backends, end_sessions, reclaim};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::Duty;

/// Reclaims the tasks of dead workers. There is no leader: row locks with SKIP LOCKED let any
/// number of reclaimers share the tasks of one dead worker.
pub(crate) struct Reclaimer {
    context: Arc<Context>,
    detector: FailureDetector,
    /// Set by the poller: the other workers.
    peer_snapshots: watch::Receiver<PeerSnapshot>,
    /// The workers that are dead according to the last snapshot, for the reclaimers of targets.
    dead_workers: watch::Sender<Vec<DeadWorker>>,
    /// Workers that are dead according to the last snapshot and are still to be processed.
    dead: IntoIter<DeadWorker>,
    effort: ReclaimEffort,
}

impl Reclaimer {
    pub(crate) fn new(
        context: Arc<Context>,
        detector: FailureDetector,
        peer_snapshots: watch::Receiver<PeerSnapshot>,
    ) -> Self {
        let (dead_workers, _) = watch::channel(Vec::new());
        let (dead, effort) = (Vec::new().into_iter(), ReclaimEffort::default());
        Self { context, detector, peer_snapshots, dead_workers, dead, effort }
    }

    /// Returns a receiver of the dead workers.
    pub(crate) fn dead_workers(&self) -> watch::Receiver<Vec<DeadWorker>> {
        self.dead_workers.subscribe()
    }

    /// Terminates the backends of a dead worker, then reclaims its tasks. In the other order, SQL
    /// of the dead worker could run on. Returns the number of tasks reclaimed, and `false` if some
    /// of the SQL still runs; the tasks of that SQL stay claimed.
    async fn reclaim_worker(
        &self,
        dead: DeadWorker,
        checks: u32,
    ) -> Result<(usize, bool), QueueError> {
        let client = self.context.control.get().await?;
        let operation = format!("backends of worker {}", dead.worker);
        let mut tasks = 0;
        for _ in 0..checks {
            let ended = async {
                let running = end_backends(&*client, dead).await?;
                Ok::<_, QueueError>(running + end_sessions(&*client, dead).await?)
            };
            match ended.await {
                Ok(0) => {}
                Ok(ended) => {
                    tracing::info!(worker = %dead.worker, ended, "terminated backends of a dead worker");
                }
                Err(error) if self.context.control.errors().begins(&operation) => tracing::error!(
                    worker = %dead.worker, %error,
                    "could not terminate the backends of a dead worker; its tasks wait until the \
                     backends are gone. GRANT pg_signal_backend, pg_read_all_stats TO mill_worker;"
                ),
                Err(error) => tracing::debug!(
                    worker = %dead.worker, %error,
                    "still could not terminate the backends of a dead worker"
                ),
            }
            let reclaimed = reclaim(&*client, dead).await?;
            tasks += report(&self.context, dead, &reclaimed).await;
            if reclaimed.remaining == 0 {
                self.context.control.errors().ends(&operation);
                return Ok((tasks, true));
            }
            sleep(TERMINATE_POLL_INTERVAL).await;
        }
        Ok((tasks, false))
    }
}

/// Counts, logs and traces reclaimed tasks. Returns their number.
pub(crate) async fn report(context: &Context, dead: DeadWorker, reclaimed: &Reclaimed) -> usize {
    let count = reclaimed.released.len() + reclaimed.ended.len();
    if count > 0 {
        context.metrics.reclaimed(count);
        tracing::warn!(
            worker = %dead.worker, released = ?reclaimed.released, ended = ?reclaimed.ended,
            "reclaimed the tasks of a dead worker"
        );
        context.claimer.request_sweep();
        if context.traces.enabled()
            && let Err(error) = answered(trace(context, dead, reclaimed)).await
        {
            tracing::debug!(%error, "could not trace the attempts of a dead worker");
        }
    }
    count
}

/// Exports the attempts of the reclaimed tasks.
async fn trace(
    context: &Context,
    dead: DeadWorker,
    reclaimed: &Reclaimed,
) -> Result<(), QueueError> {
    let tasks = [&reclaimed.released[..], &reclaimed.ended].concat();
    let client = context.control.get().await?;
    let attempts = lost_attempts(&*client, &tasks, dead.worker).await?;
    context.traces.attempts_lost(&attempts, context.control.registration().server());
    Ok(())
}

impl Duty for Reclaimer {
    const NAME: &'static str = "reclaim";
    /// Zero, because a failure must not delay other dead workers. The next snapshot repeats the
    /// attempt.
    const MAX_BACKOFF: Duration = Duration::ZERO;
    type Cause = DeadWorker;

    async fn next(&mut self) -> Option<DeadWorker> {
        loop {
            if let Some(dead) = self.dead.next() {
                return Some(dead);
            }
            self.peer_snapshots.changed().await.ok()?;
            let snapshot = self.peer_snapshots.borrow_and_update();
            let dead = self.detector.observe(&snapshot, Instant::now());
            self.effort.retain(&dead);
            if !dead.is_empty() {
                self.dead_workers.send_replace(dead.clone());
            }
            self.dead = dead.into_iter();
        }
    }

    async fn run_once(&mut self, dead: DeadWorker) -> Result<u64, QueueError> {
        let checks = self.effort.checks(dead.worker);
        let (tasks, gone) = answered(self.reclaim_worker(dead, checks)).await?;
        if !gone {
            self.effort.mark_still_running(dead.worker);
        }
        Ok(tasks as u64)
    }
}
