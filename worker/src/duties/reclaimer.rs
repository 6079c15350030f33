//! Periodically reclaims the tasks of dead workers: terminates their backends, then releases their
//! tasks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use queue::QueueError;
use queue::reclaim::{DeadWorker, end_backends, reclaim};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::control::{Control, answered};
use crate::duties::failure_detector::{FailureDetector, PeerSnapshot};
use crate::duties::poll::MAX_POLL_INTERVAL;
use crate::shutdown::Shutdown;
use crate::telemetry::metrics::Metrics;
use crate::wakeup::Wakeup;

/// Time between two checks of a backend being terminated.
const TERMINATE_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of checks before the next attempt is left to the next poll.
const TERMINATE_POLLS: u32 = 20;
/// Number of checks in later attempts: a backend that does not end at once may never end, and every
/// worker asks.
const TERMINATE_POLLS_REPEATED: u32 = 1;

/// Reclaims the tasks of dead workers.
pub(crate) struct Reclaimer {
    pub(crate) orphan_timeout: Duration,
    pub(crate) control: Control,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
}

impl Reclaimer {
    /// Runs until the worker ends. There is no leader: row locks with SKIP LOCKED let any number of
    /// reclaimers share the tasks of one dead worker.
    pub(crate) async fn run(self, mut peer_snapshots: watch::Receiver<PeerSnapshot>) {
        let mut detector = FailureDetector::new(self.orphan_timeout, MAX_POLL_INTERVAL * 5);
        let mut still_running = HashSet::new();
        loop {
            tokio::select! {
                () = self.shutdown.end.cancelled() => return,
                changed = peer_snapshots.changed() => if changed.is_err() {
                    return;
                },
            }
            let dead = detector.observe(&peer_snapshots.borrow_and_update(), Instant::now());
            still_running.retain(|worker| dead.iter().any(|dead| dead.worker == *worker));
            for dead in dead {
                let again = still_running.contains(&dead.worker);
                let polls = if again { TERMINATE_POLLS_REPEATED } else { TERMINATE_POLLS };
                match answered(self.reclaim_worker(dead, polls)).await {
                    Ok(true) => {}
                    Ok(false) => {
                        still_running.insert(dead.worker);
                    }
                    Err(error) => {
                        tracing::warn!(%error, worker = %dead.worker, "reclaiming failed");
                    }
                }
            }
        }
    }

    /// Terminates backends before reclaiming, because the dead worker's SQL may otherwise run to
    /// its end. Returns `false` if some of it still runs; its tasks stay claimed.
    async fn reclaim_worker(&self, dead: DeadWorker, polls: u32) -> Result<bool, QueueError> {
        let client = self.control.get().await?;
        for _ in 0..polls {
            match end_backends(&*client, dead).await {
                Ok(0) => {}
                Ok(ended) => {
                    tracing::info!(worker = %dead.worker, ended, "terminated backends of a dead worker");
                }
                Err(error) => tracing::error!(
                    worker = %dead.worker, %error,
                    "cannot terminate the backends of a dead worker; its tasks wait until the \
                     backends are gone. GRANT pg_signal_backend, pg_read_all_stats TO mill_worker;"
                ),
            }
            let reclaimed = reclaim(&*client, dead).await?;
            let count = reclaimed.released.len() + reclaimed.ended.len();
            if count > 0 {
                self.metrics.reclaimed(count);
                tracing::warn!(
                    worker = %dead.worker, released = ?reclaimed.released, ended = ?reclaimed.ended,
                    "reclaimed the tasks of a dead worker"
                );
                self.wakeup.request_sweep();
            }
            if reclaimed.remaining == 0 {
                return Ok(true);
            }
            sleep(TERMINATE_POLL_INTERVAL).await;
        }
        Ok(false)
    }
}
