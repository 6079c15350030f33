//! The one claimer of the process: as many tasks as there are idle readers at that moment, never
//! more. Under load the batches form by themselves; there is no timer and no prefetch.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use queue::claim::{Claimed, Claimer as Claims, Lane};
use queue::{Priority, QueueError, TaskId, WorkerId, give_back};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::bell::Bell;
use crate::control::{Backoff, Control};
use crate::finish::hand_back;
use crate::held::Held;
use crate::metrics::Metrics;
use crate::pick;
use crate::reader::Offer;
use crate::shutdown::Shutdown;

/// How often a claim looks below the watermarks: ids that commit late, retries and promoted tasks
/// lie there.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// A claim that came back short may ask for a sweep this soon after the last one.
const SWEEP_AT_MOST_EVERY: Duration = Duration::from_millis(100);
/// A lane without work is forgotten after this long.
const LANE_MEMORY: Duration = Duration::from_secs(60);

/// The claimer and all that it is given.
pub(crate) struct Claimer {
    pub(crate) worker: WorkerId,
    pub(crate) queues: Option<Vec<String>>,
    pub(crate) poll: Duration,
    pub(crate) control: Control,
    pub(crate) held: Held,
    pub(crate) bell: Arc<Bell>,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
}

/// What the claimer knows of the lanes. The watermarks are hints: safety never depends on them,
/// and liveness depends on the sweep only.
struct View {
    lanes: HashMap<Lane, Seen>,
    swept_at: Option<Instant>,
    poll: Backoff,
}

struct Seen {
    watermark: TaskId,
    at: Instant,
}

impl Claimer {
    /// Runs until the worker drains and the last reader has gone.
    pub(crate) async fn run(self, mut offers: mpsc::UnboundedReceiver<Offer>) {
        let mut backoff = Backoff::default();
        let mut again_at = None;
        // The readers' offers outlive a broken connection.
        let mut idle = Vec::new();
        while !self.shutdown.drain.is_cancelled() {
            match self.serve(&mut offers, &mut idle, &mut again_at).await {
                Ok(()) => return,
                Err(error) => {
                    self.metrics.claim_failed();
                    tracing::warn!(%error, "claiming failed, connecting again");
                    again_at = Some(Instant::now());
                }
            }
            tokio::select! {
                () = self.shutdown.drain.cancelled() => {}
                () = backoff.wait() => {}
            }
        }
    }

    /// Claims on one connection for as long as it lasts.
    async fn serve(
        &self,
        offers: &mut mpsc::UnboundedReceiver<Offer>,
        idle: &mut Vec<Offer>,
        reconcile_at: &mut Option<Instant>,
    ) -> Result<(), QueueError> {
        let client = self.control.own("pgmill claimer").await?;
        let claims = Claims::new(client, self.worker).await?;
        let mut view =
            View { lanes: HashMap::new(), swept_at: None, poll: Backoff::up_to(self.poll) };
        loop {
            self.reconcile(reconcile_at).await?;
            while let Ok(offer) = offers.try_recv() {
                idle.push(offer);
            }
            idle.retain(|offer| !offer.reply.is_closed());
            self.metrics.readers_idle(idle.len());
            let short = if idle.is_empty() || self.bell.draining() {
                true
            } else {
                self.claim(&claims, &mut view, idle).await?
            };
            if !short {
                continue;
            }
            // Interest in the bell is registered before the next look at the queue: a ring in
            // between is kept.
            tokio::select! {
                () = self.shutdown.drain.cancelled() => return Ok(()),
                offer = offers.recv() => match offer {
                    Some(offer) => idle.push(offer),
                    None => return Ok(()),
                },
                () = self.bell.rung() => view.poll = Backoff::up_to(self.poll),
                () = sleep_until(view.wake_at(idle)) => {}
            }
        }
    }

    /// One claim; `true` if it came back with fewer tasks than there are idle readers, and another
    /// try right away has no point.
    async fn claim(
        &self,
        claims: &Claims,
        view: &mut View,
        idle: &mut Vec<Offer>,
    ) -> Result<bool, QueueError> {
        let sweep = view.sweep_due(SWEEP_EVERY) || self.bell.sweep_wanted();
        if self.attempt(claims, view, idle, sweep).await? {
            view.poll = Backoff::up_to(self.poll);
        }
        if idle.is_empty() {
            return Ok(false);
        }
        if !sweep && view.sweep_due(SWEEP_AT_MOST_EVERY) {
            self.attempt(claims, view, idle, true).await?;
        }
        self.bell.note_idle(self.held.count() == 0);
        Ok(!idle.is_empty())
    }

    /// Claims from the lanes' watermarks on, or from the oldest task on. `true` if it found any.
    async fn attempt(
        &self,
        claims: &Claims,
        view: &mut View,
        idle: &mut Vec<Offer>,
        sweep: bool,
    ) -> Result<bool, QueueError> {
        if sweep {
            view.swept_at = Some(Instant::now());
            match &self.queues {
                Some(queues) => view.know(all_lanes(queues)),
                None => view.know(claims.lanes().await?),
            }
            view.forget();
        }
        if view.lanes.is_empty() {
            return Ok(false);
        }
        let lanes = view.ordered(sweep);
        let sessions: Vec<_> = idle.iter().map(|offer| offer.session).collect();
        let timer = self.metrics.claim_seconds.start_timer();
        let claimed = claims.claim(&lanes, &sessions).await?;
        timer.observe_duration();
        self.metrics.claimed(&claimed);
        let found = !claimed.is_empty();
        self.hand_out(view, idle, claimed).await;
        Ok(found)
    }

    /// Gives each task to the reader whose session was named for it.
    async fn hand_out(&self, view: &mut View, idle: &mut Vec<Offer>, mut claimed: Vec<Claimed>) {
        // From the back, so that taking one offer out leaves the others' places as they are.
        claimed.sort_by_key(|claimed| std::cmp::Reverse(claimed.session));
        for Claimed { session, lane, claim } in claimed {
            view.raise(lane, claim.id());
            let work = self.held.hold(claim);
            let offer = idle.remove(session);
            if let Err(work) = offer.reply.send(work) {
                // Its session ended while the claim was under way.
                hand_back(&self.control, work.claim, Duration::ZERO).await;
                drop(work.holding);
                self.bell.sweep();
            }
        }
    }

    /// After a claim whose answer was lost: what the database holds for this worker and the worker
    /// does not know of goes back. Once more a while later, for a claim that the old connection's
    /// backend carried out after that.
    async fn reconcile(&self, at: &mut Option<Instant>) -> Result<(), QueueError> {
        let Some(due) = *at else { return Ok(()) };
        if due > Instant::now() {
            return Ok(());
        }
        let first = due.elapsed() < Duration::from_secs(5);
        let client = self.control.get().await.map_err(unreachable)?;
        let given_back =
            give_back::unknown_claims(&**client, self.worker, &self.held.list()).await?;
        if given_back > 0 {
            tracing::warn!(given_back, "gave back claims whose answer was lost");
            self.bell.sweep();
        }
        *at = first.then(|| Instant::now() + Duration::from_secs(30));
        Ok(())
    }
}

fn unreachable(message: String) -> QueueError {
    QueueError::Refused { message, hint: None }
}

fn all_lanes(queues: &[String]) -> Vec<Lane> {
    let lane =
        |queue: &String, priority: &Priority| Lane { queue: queue.clone(), priority: *priority };
    queues
        .iter()
        .flat_map(|queue| Priority::ALL.iter().map(move |priority| lane(queue, priority)))
        .collect()
}

impl View {
    fn sweep_due(&self, every: Duration) -> bool {
        self.swept_at.is_none_or(|at| at.elapsed() >= every)
    }

    fn know(&mut self, lanes: Vec<Lane>) {
        let at = Instant::now();
        for lane in lanes {
            self.lanes.entry(lane).or_insert(Seen { watermark: TaskId(0), at }).at = at;
        }
    }

    fn forget(&mut self) {
        self.lanes.retain(|_, seen| seen.at.elapsed() < LANE_MEMORY);
    }

    fn raise(&mut self, lane: Lane, id: TaskId) {
        let seen = self.lanes.entry(lane).or_insert(Seen { watermark: id, at: Instant::now() });
        seen.watermark = seen.watermark.max(id);
        seen.at = Instant::now();
    }

    fn ordered(&self, sweep: bool) -> Vec<(Lane, TaskId)> {
        let mut lanes: Vec<Lane> = self.lanes.keys().cloned().collect();
        pick::order(&mut lanes, &mut rand::rng());
        let after = |lane: &Lane| if sweep { TaskId(0) } else { self.lanes[lane].watermark };
        lanes
            .into_iter()
            .map(|lane| {
                let from = after(&lane);
                (lane, from)
            })
            .collect()
    }

    /// When to look again without having been called. Without an idle reader an offer comes first.
    fn wake_at(&mut self, idle: &[Offer]) -> Instant {
        let wait = if idle.is_empty() { SWEEP_EVERY } else { self.poll.step() };
        Instant::now() + wait
    }
}
