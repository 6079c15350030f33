//! Periodically polls the queue, in one statement, and passes the results to claimer, promoter,
//! scheduler, permit granter and reclaimer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use queue::poll::{PollOptions, poll};
use queue::{QueueError, WorkerId};
use rand::RngExt;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::claim::weights::Weights;
use crate::control::{Control, answered};
use crate::duties::failure_detector::{PeerSnapshot, PollContinuity};
use crate::duties::peer_sampling::PeerSampling;
use crate::shutdown::Shutdown;
use crate::wakeup::Wakeup;

/// Default and maximum of `--poll-interval`: with the heartbeats, 58 statements a minute. A killed
/// worker's tasks are pending again within grace period + poll interval + a moment.
pub(crate) const MAX_POLL_INTERVAL: Duration = Duration::from_millis(1300);

/// Polls the queue and the other workers.
pub(crate) struct Poller {
    pub(crate) worker: WorkerId,
    pub(crate) queues: Option<Vec<String>>,
    /// At most [`MAX_POLL_INTERVAL`].
    pub(crate) poll_interval: Duration,
    pub(crate) control: Control,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) shutdown: Shutdown,
    /// For the promoter: when the next scheduled task is due.
    pub(crate) next_due: watch::Sender<Option<Instant>>,
    /// For the scheduler: when the next schedule is due.
    pub(crate) next_tick: watch::Sender<Option<Instant>>,
    /// For the permit granter: whether limits need work.
    pub(crate) limits_pending: watch::Sender<bool>,
    /// For the claimer.
    pub(crate) weights: watch::Sender<Weights>,
    /// For the reclaimer: the other workers.
    pub(crate) peer_snapshots: watch::Sender<PeerSnapshot>,
}

impl Poller {
    /// Runs until the worker ends.
    pub(crate) async fn run(self) {
        let mut peer_sampling = PeerSampling::default();
        let mut continuity = PollContinuity { unbroken_since: Instant::now(), after_outage: false };
        loop {
            if let Err(error) = answered(self.run_once(&mut peer_sampling, continuity)).await {
                continuity = PollContinuity { unbroken_since: Instant::now(), after_outage: true };
                tracing::warn!(%error, "poll failed");
            }
            let jitter = rand::rng().random_range(0.95..1.05);
            tokio::select! {
                () = self.shutdown.end.cancelled() => return,
                () = sleep(self.poll_interval.mul_f64(jitter)) => {}
            }
        }
    }

    async fn run_once(
        &self,
        peer_sampling: &mut PeerSampling,
        continuity: PollContinuity,
    ) -> Result<(), QueueError> {
        let client = self.control.get().await?;
        let polled_at = Instant::now();
        // A claimer that finds tasks needs no notification of pending tasks.
        let busy = self.wakeup.take_tasks_found() && !self.wakeup.is_idle();
        let (peers, unregistered) = peer_sampling.include_peers(rand::rng().random());
        let wanted = PollOptions { peers, unregistered, pending: !busy };
        let polled = poll(&*client, self.worker, self.queues.as_deref(), wanted).await?;
        if polled.pending && wanted.pending {
            self.wakeup.request_sweep();
        }
        self.wakeup.runs_to_advance.add(polled.runs);
        self.limits_pending.send_replace(polled.limits && (polled.pending || polled.blocked));
        self.weights.send_replace(Weights::new(polled.weights));
        peer_sampling.record(polled.peers.as_deref(), rand::rng().random());
        // A slow answer is outdated: the server had stalled.
        if polled_at.elapsed() <= MAX_POLL_INTERVAL * 2 {
            self.next_due.send_replace(polled.next_due_in.map(|wait| polled_at + wait));
            self.next_tick.send_replace(polled.next_tick_in.map(|wait| polled_at + wait));
            if let Some(peers) = polled.peers {
                self.peer_snapshots.send_replace(PeerSnapshot { peers, continuity });
            }
        }
        Ok(())
    }
}
