//! Looks after the other workers: kills what a dead one left running, then gives its tasks back.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use queue::QueueError;
use queue::reclaim::{Dead, end_backends, reclaim};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::bell::Bell;
use crate::control::{Control, answered};
use crate::look::EVERY;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;
use crate::watch::{Sight, Watch};

/// How soon to look again at a backend that was told to end.
const ENDING: Duration = Duration::from_millis(50);
/// How often, before it is left to the next look at the others.
const ENDING_LOOKS: u32 = 20;
/// From then on: a backend that did not end at once may never, and every worker asks.
const ENDING_LOOKS_AGAIN: u32 = 1;

/// The reclaimer and all that it is given.
pub(crate) struct Reclaimer {
    pub(crate) orphan_timeout: Duration,
    pub(crate) control: Control,
    pub(crate) bell: Arc<Bell>,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
}

impl Reclaimer {
    /// Runs until the worker has ended. No leader: row locks with SKIP LOCKED let any number of
    /// reclaimers share one dead worker's tasks.
    pub(crate) async fn run(self, mut sights: watch::Receiver<Sight>) {
        let mut watch = Watch::new(self.orphan_timeout, EVERY * 5);
        let mut lasting = HashSet::new();
        loop {
            tokio::select! {
                () = self.shutdown.end.cancelled() => return,
                looked = sights.changed() => if looked.is_err() {
                    return;
                },
            }
            let dead = watch.look(&sights.borrow_and_update(), Instant::now());
            lasting.retain(|worker| dead.iter().any(|dead| dead.worker == *worker));
            for dead in dead {
                let again = lasting.contains(&dead.worker);
                let looks = if again { ENDING_LOOKS_AGAIN } else { ENDING_LOOKS };
                match answered(self.bury(dead, looks)).await {
                    Ok(true) => {}
                    Ok(false) => {
                        lasting.insert(dead.worker);
                    }
                    Err(error) => {
                        tracing::warn!(%error, worker = %dead.worker, "reclaiming failed");
                    }
                }
            }
        }
    }

    /// Kill before reclaim: the dead worker's SQL may run on to its natural end. `false`: some of it
    /// does, and its task stays claimed.
    async fn bury(&self, dead: Dead, looks: u32) -> Result<bool, QueueError> {
        let client = self.control.get().await?;
        for _ in 0..looks {
            match end_backends(&*client, dead).await {
                Ok(0) => {}
                Ok(ended) => {
                    tracing::info!(worker = %dead.worker, ended, "ended backends of a dead worker");
                }
                Err(error) => tracing::error!(
                    worker = %dead.worker, %error,
                    "may not end the backends of a dead worker; its tasks wait until they are gone. \
                     GRANT pg_signal_backend, pg_read_all_stats TO mill_worker"
                ),
            }
            let reclaimed = reclaim(&*client, dead).await?;
            let count = reclaimed.given_back.len() + reclaimed.ended.len();
            if count > 0 {
                self.metrics.reclaimed(count);
                tracing::warn!(
                    worker = %dead.worker, given_back = ?reclaimed.given_back, ended = ?reclaimed.ended,
                    "reclaimed the tasks of a dead worker"
                );
                self.bell.sweep();
            }
            if reclaimed.remaining == 0 {
                return Ok(true);
            }
            sleep(ENDING).await;
        }
        Ok(false)
    }
}
