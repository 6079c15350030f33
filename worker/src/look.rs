//! The one statement that a worker without work sends again and again. What it brings goes to
//! claimer, promoter and reclaimer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use queue::look::{Wanted, look};
use queue::{QueueError, WorkerId};
use rand::RngExt;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::bell::Bell;
use crate::control::{Control, answered};
use crate::glance::Glance;
use crate::pick::Weights;
use crate::shutdown::Shutdown;
use crate::watch::{Sight, Trust};

/// Between looks, unless `--poll` asks for more: with the beats, 58 statements a minute. A killed
/// worker's tasks are pending again within grace + this + a moment.
pub(crate) const EVERY: Duration = Duration::from_millis(1300);

/// The looker and all that it is given.
pub(crate) struct Looker {
    pub(crate) worker: WorkerId,
    pub(crate) queues: Option<Vec<String>>,
    /// At most [`EVERY`].
    pub(crate) poll: Duration,
    pub(crate) control: Control,
    pub(crate) bell: Arc<Bell>,
    pub(crate) shutdown: Shutdown,
    /// To the promoter: when the next scheduled task is due.
    pub(crate) next_due: watch::Sender<Option<Instant>>,
    /// To the scheduler: when a schedule has to be looked at.
    pub(crate) next_tick: watch::Sender<Option<Instant>>,
    /// To the granter: whether it has something to look after.
    pub(crate) limited: watch::Sender<bool>,
    /// To the claimer.
    pub(crate) weights: watch::Sender<Weights>,
    /// To the reclaimer: the other workers.
    pub(crate) sights: watch::Sender<Sight>,
}

impl Looker {
    /// Runs until the worker has ended.
    pub(crate) async fn run(self) {
        let mut glance = Glance::default();
        let mut trust = Trust { unbroken_since: Instant::now(), after_outage: false };
        loop {
            if let Err(error) = answered(self.run_once(&mut glance, trust)).await {
                trust = Trust { unbroken_since: Instant::now(), after_outage: true };
                tracing::warn!(%error, "looking for work and at the other workers failed");
            }
            let jitter = rand::rng().random_range(0.95..1.05);
            tokio::select! {
                () = self.shutdown.end.cancelled() => return,
                () = sleep(self.poll.mul_f64(jitter)) => {}
            }
        }
    }

    async fn run_once(&self, glance: &mut Glance, trust: Trust) -> Result<(), QueueError> {
        let client = self.control.get().await?;
        let asked = Instant::now();
        // A claimer that finds tasks needs nobody to tell it that there are some.
        let busy = self.bell.take_found() && !self.bell.is_idle();
        let (peers, unlisted) = glance.next(rand::rng().random());
        let wanted = Wanted { peers, unlisted, pending: !busy };
        let look = look(&*client, self.worker, self.queues.as_deref(), wanted).await?;
        if look.pending && wanted.pending {
            self.bell.sweep();
        }
        self.bell.runs.add(look.runs);
        self.limited.send_replace(look.limits && (look.pending || look.blocked));
        self.weights.send_replace(Weights::new(look.weights));
        glance.saw(look.peers.as_deref(), rand::rng().random());
        // An answer that took this long says little about now: the server had stalled.
        if asked.elapsed() <= EVERY * 2 {
            self.next_due.send_replace(look.next_due_in.map(|wait| asked + wait));
            self.next_tick.send_replace(look.next_tick_in.map(|wait| asked + wait));
            if let Some(peers) = look.peers {
                self.sights.send_replace(Sight { peers, trust });
            }
        }
        Ok(())
    }
}
