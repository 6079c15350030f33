//! Periodically polls the queue, in one statement, and passes the results to claimer, promoter,
//! scheduler, permit granter, reclaimer and notifier. Also checks the conditions of queues when the
//! last check of the fleet is a second old.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_decisions::failure_detector::{PeerSnapshot, PollContinuity};
use fleet_decisions::peer_sampling::PeerSampling;
use fleet_decisions::poll_cadence;
use fleet_decisions::scheduler_work::SchedulerWork;
use fleet_decisions::weights::Weights;
use queue::QueueError;
use queue::RunId;
use queue::poll::{PollOptions, Served, poll};
use queue::queue_conditions::check_queue_conditions;
use rand::RngExt;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::claim::policy::ClaimPolicy;
use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::Duty;
use crate::duties::permit_granter::PolledLimits;
use crate::wakeup::ItemSender;

/// Name of the check of conditions among the worker's errors.
const CONDITIONS: &str = "conditions of queues";

/// Polls the queue and the other workers.
pub(crate) struct Poller {
    context: Arc<Context>,
    served: Served,
    /// At most [`MAX_POLL_INTERVAL`](fleet_decisions::timing::MAX_POLL_INTERVAL).
    poll_interval: Duration,
    channels: PollChannels,
    peer_sampling: PeerSampling,
    continuity: PollContinuity,
    /// The run after which every other poll looks for runs.
    runs_after: RunId,
    /// Number of claims with tasks until the last poll.
    claims_seen: u64,
    /// Whether the last poll looked for the first runs.
    first_runs: bool,
    first: bool,
}

/// Channels from the poller to the parts of the process that own their receiving ends.
pub(crate) struct PollChannels {
    /// Runs to advance, for the run advancer.
    runs: ItemSender<RunId>,
    /// When the next scheduled task is due, for the promoter.
    pub(crate) next_due: watch::Sender<Option<Instant>>,
    /// What the scheduler has to do, and when.
    pub(crate) scheduler_work: watch::Sender<SchedulerWork>,
    /// For the permit granter.
    pub(crate) limits: watch::Sender<PolledLimits>,
    /// Whether notifications are due, for the notifier.
    pub(crate) notifications_due: watch::Sender<bool>,
    /// For the claimer, and the listener that wakes it.
    pub(crate) claim_policy: watch::Sender<ClaimPolicy>,
    /// Targets that have conditions, for their checks.
    pub(crate) targets_to_check: watch::Sender<Vec<String>>,
    /// The other workers, for the reclaimer.
    pub(crate) peer_snapshots: watch::Sender<PeerSnapshot>,
}

impl PollChannels {
    pub(crate) fn new(runs: ItemSender<RunId>) -> Self {
        Self {
            runs,
            next_due: watch::Sender::default(),
            scheduler_work: watch::Sender::default(),
            limits: watch::Sender::default(),
            notifications_due: watch::Sender::default(),
            claim_policy: watch::Sender::default(),
            targets_to_check: watch::Sender::default(),
            peer_snapshots: watch::Sender::new(PeerSnapshot::empty(Instant::now())),
        }
    }
}

impl Poller {
    pub(crate) fn new(
        context: Arc<Context>,
        served: Served,
        poll_interval: Duration,
        channels: PollChannels,
    ) -> Self {
        let peer_sampling = PeerSampling::default();
        let continuity = PollContinuity::begin(Instant::now());
        Self {
            context,
            served,
            poll_interval,
            channels,
            peer_sampling,
            continuity,
            runs_after: RunId(0),
            claims_seen: 0,
            first_runs: false,
            first: true,
        }
    }

    async fn poll(&mut self) -> Result<(), QueueError> {
        let (context, channels) = (&self.context, &self.channels);
        let client = context.control.get().await?;
        let polled_at = Instant::now();
        // A claimer that finds tasks need not be notified of pending tasks.
        let claims = context.claimer.claims_with_tasks();
        let found = std::mem::replace(&mut self.claims_seen, claims) != claims;
        let busy = found && !context.claimer.is_idle();
        let (peers, unregistered) = self.peer_sampling.include_peers(rand::rng().random());
        // Runs that cannot be advanced now do not hide the later ones, nor a steady flow of new runs
        // the first ones.
        self.first_runs = !self.first_runs;
        let runs_after = if self.first_runs { RunId(0) } else { self.runs_after };
        let wanted = PollOptions { peers, unregistered, pending: !busy, runs_after };
        let polled = poll(&*client, context.worker, &self.served, wanted).await?;
        if polled.pending && wanted.pending {
            context.claimer.request_sweep();
        }
        if runs_after == self.runs_after {
            self.runs_after = polled.runs_after;
        }
        channels.runs.add(polled.runs);
        // A blocked task can wait for a limit that does not exist any more.
        let limits_pending = polled.blocked || polled.limits && polled.pending;
        let limits = PolledLimits { exist: polled.limits, pending: limits_pending };
        channels.limits.send_replace(limits);
        channels.notifications_due.send_replace(polled.notifications_due);
        channels.targets_to_check.send_replace(polled.targets_to_check);
        self.peer_sampling.record(polled.peers.as_deref(), rand::rng().random());
        let before = channels.claim_policy.send_replace(ClaimPolicy {
            weights: Weights::new(polled.weights),
            held_targets: polled.held_targets,
            peer_count: self.peer_sampling.peer_count(),
        });
        let held = |target| channels.claim_policy.borrow().held_targets.contains(target);
        if !before.held_targets.iter().all(held) {
            context.claimer.request_sweep();
        }
        // An outdated answer makes the promoter or the scheduler run too early at worst. It must not
        // count as an observation of the peers, whose heartbeats the stalled server delays as well.
        channels.next_due.send_replace(polled.next_due_in.map(|wait| polled_at + wait));
        channels.scheduler_work.send_replace(SchedulerWork {
            tick_at: polled.next_tick_in.map(|wait| polled_at + wait),
            deadline_at: polled.next_deadline_in.map(|wait| polled_at + wait),
            backfills: polled.backfills,
        });
        let current = poll_cadence::is_current(polled_at, Instant::now());
        self.continuity.record_answer(current, Instant::now());
        if let Some(peers) = polled.peers.filter(|_| current) {
            let registration = context.control.registration();
            self.continuity.record_registration(
                registration.server().is_some(),
                registration.lost_sessions(),
                Instant::now(),
            );
            let snapshot = PeerSnapshot { peers, continuity: self.continuity };
            channels.peer_snapshots.send_replace(snapshot);
        }
        if polled.conditions_due {
            self.check_conditions(&client).await;
        } else {
            // Another worker has checked, or no queue has conditions any more.
            context.control.errors().clear(CONDITIONS);
        }
        Ok(())
    }

    /// Checks the conditions of queues. An error of this check must not stop what the poll is for.
    async fn check_conditions(&self, client: &Client) {
        let errors = self.context.control.errors();
        match check_queue_conditions(client).await {
            Ok(ended) => {
                errors.clear(CONDITIONS);
                if ended > 0 {
                    self.context.claimer.request_sweep();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "could not check the conditions of queues");
                errors.set(CONDITIONS, &error);
            }
        }
    }
}

impl Duty for Poller {
    const NAME: &'static str = "poll";
    /// Zero, because the poll interval is already the wait after a failure.
    const MAX_BACKOFF: Duration = Duration::ZERO;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        if !std::mem::take(&mut self.first) {
            let wait = poll_cadence::next_poll_in(self.poll_interval, &mut rand::rng());
            sleep(wait).await;
        }
        Some(())
    }

    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        if let Err(error) = answered(self.poll()).await {
            self.continuity.begin_again(Instant::now());
            return Err(error);
        }
        Ok(0)
    }
}
