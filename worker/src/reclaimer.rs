//! Looks after the other workers: kills what a dead one left running, then gives its tasks back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use queue::reclaim::{end_backends, peers, reclaim};
use queue::{QueueError, WorkerId};
use rand::RngExt;
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::bell::Bell;
use crate::control::Control;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;
use crate::watch::Watch;

/// Between looks; a killed worker's tasks are pending again within grace + this + a moment.
const EVERY: Duration = Duration::from_secs(1);
/// How soon to look again at a backend that was told to end.
const ENDING: Duration = Duration::from_millis(50);
/// How often, before it is left to the next look.
const ENDING_LOOKS: u32 = 20;

/// The reclaimer and all that it is given.
pub(crate) struct Reclaimer {
    pub(crate) worker: WorkerId,
    pub(crate) orphan_timeout: Duration,
    pub(crate) control: Control,
    pub(crate) bell: Arc<Bell>,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
}

impl Reclaimer {
    /// Runs until the worker has ended. No leader: row locks with SKIP LOCKED let any number of
    /// reclaimers share one dead worker's tasks.
    pub(crate) async fn run(self) {
        let mut watch = Watch::new(self.orphan_timeout, EVERY * 5);
        loop {
            if let Err(error) = self.run_once(&mut watch).await {
                tracing::warn!(%error, "looking after the other workers failed");
            }
            let jitter = EVERY.mul_f64(rand::rng().random_range(0.0..0.3));
            tokio::select! {
                () = self.shutdown.end.cancelled() => return,
                () = sleep(EVERY + jitter) => {}
            }
        }
    }

    async fn run_once(&self, watch: &mut Watch) -> Result<(), QueueError> {
        let client = self.control.get().await?;
        let asked = Instant::now();
        let peers = peers(&**client, self.worker).await?;
        // An answer that took this long says little about now: the server had stalled.
        let now = Instant::now();
        if now.duration_since(asked) > EVERY * 2 {
            return Ok(());
        }
        for dead in watch.look(&peers, now) {
            self.bury(&client, dead).await?;
        }
        Ok(())
    }

    /// Kill before reclaim: the dead worker's SQL may run on to its natural end.
    async fn bury(&self, client: &Client, dead: WorkerId) -> Result<(), QueueError> {
        for _ in 0..ENDING_LOOKS {
            match end_backends(client, dead).await {
                Ok(0) => {}
                Ok(ended) => {
                    tracing::info!(worker = %dead, ended, "ended backends of a dead worker");
                }
                Err(error) => tracing::error!(
                    worker = %dead, %error,
                    "may not end the backends of a dead worker; its tasks wait until they are gone. \
                     GRANT pg_signal_backend, pg_read_all_stats TO mill_worker"
                ),
            }
            let reclaimed = reclaim(client, dead).await?;
            let count = reclaimed.given_back.len() + reclaimed.ended.len();
            if count > 0 {
                self.metrics.reclaimed(count);
                tracing::warn!(
                    worker = %dead, given_back = ?reclaimed.given_back, ended = ?reclaimed.ended,
                    "reclaimed the tasks of a dead worker"
                );
                self.bell.sweep();
            }
            if reclaimed.remaining == 0 {
                return Ok(());
            }
            sleep(ENDING).await;
        }
        Ok(())
    }
}
