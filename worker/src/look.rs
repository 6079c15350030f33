//! The one statement that a worker without work sends again and again. What it brings goes to
//! claimer, promoter and reclaimer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use queue::look::look;
use queue::reclaim::Peer;
use queue::{QueueError, WorkerId};
use rand::RngExt;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::bell::Bell;
use crate::control::Control;
use crate::shutdown::Shutdown;

/// Between looks, unless `--poll` asks for more: with the beats, 60 statements a minute. A killed
/// worker's tasks are pending again within grace + this + a moment.
pub(crate) const EVERY: Duration = Duration::from_millis(1250);

/// What promoter and reclaimer go by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// When the next scheduled task is due.
    pub(crate) due_at: Option<Instant>,
    /// The other workers.
    pub(crate) peers: Vec<Peer>,
}

/// The looker and all that it is given.
pub(crate) struct Looker {
    pub(crate) worker: WorkerId,
    pub(crate) queues: Option<Vec<String>>,
    /// At most [`EVERY`].
    pub(crate) poll: Duration,
    pub(crate) control: Control,
    pub(crate) bell: Arc<Bell>,
    pub(crate) shutdown: Shutdown,
    pub(crate) seen: watch::Sender<Seen>,
}

impl Looker {
    /// Runs until the worker has ended.
    pub(crate) async fn run(self) {
        loop {
            if let Err(error) = self.run_once().await {
                tracing::warn!(%error, "looking for work and at the other workers failed");
            }
            let jitter = rand::rng().random_range(0.95..1.05);
            tokio::select! {
                () = self.shutdown.end.cancelled() => return,
                () = sleep(self.poll.mul_f64(jitter)) => {}
            }
        }
    }

    async fn run_once(&self) -> Result<(), QueueError> {
        let client = self.control.get().await?;
        let asked = Instant::now();
        let look = look(&**client, self.worker, self.queues.as_deref()).await?;
        if look.pending {
            self.bell.sweep();
        }
        // An answer that took this long says little about now: the server had stalled.
        if asked.elapsed() <= EVERY * 2 {
            let due_at = look.next_due_in.map(|wait| asked + wait);
            self.seen.send_replace(Seen { due_at, peers: look.peers });
        }
        Ok(())
    }
}
