//! The one claimer of the process: as many tasks as there are idle readers at that moment, never
//! more, but for queues with shared commits, whose tasks a reader takes several at a time. Under load
//! the batches form by themselves; there is no timer and no prefetch.

use std::sync::Arc;
use std::time::Duration;

use queue::claim::{Claimed, Claimer as Claims, Lane};
use queue::{QueueError, TaskId, WorkerId, give_back};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::bell::Bell;
use crate::control::{Backoff, Control};
use crate::finish::hand_back;
use crate::held::{Held, Work};
use crate::lanes::Lanes;
use crate::metrics::Metrics;
use crate::pace::Paces;
use crate::reader::Offer;
use crate::shutdown::Shutdown;

/// How often the claims that the database knows of are compared with those held here. Sooner after
/// a claim whose answer was lost.
const RECONCILE_EVERY: Duration = Duration::from_secs(60);

/// The claimer and all that it is given.
pub(crate) struct Claimer {
    pub(crate) worker: WorkerId,
    pub(crate) queues: Option<Vec<String>>,
    pub(crate) poll: Duration,
    pub(crate) control: Control,
    pub(crate) held: Held,
    pub(crate) paces: Paces,
    pub(crate) bell: Arc<Bell>,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
}

/// Rows of one claim, so that the first reader does not wait long for the last one's tasks.
const MOST: usize = 200;

/// The lanes of a pick that are claimed apart.
struct Lead {
    lanes: usize,
    size: usize,
}

/// What outlives a broken connection.
struct State {
    idle: Vec<Offer>,
    lanes: Lanes,
    reconcile_at: Instant,
}

impl Claimer {
    /// Runs until the worker drains.
    pub(crate) async fn run(self, mut offers: mpsc::UnboundedReceiver<Offer>) {
        let mut backoff = Backoff::default();
        let mut claims: Option<Claims> = None;
        let mut state =
            State { idle: Vec::new(), lanes: Lanes::default(), reconcile_at: Instant::now() };
        while !self.shutdown.drain.is_cancelled() {
            match self.serve(&mut claims, &mut offers, &mut state).await {
                Ok(()) => return,
                Err(error) => {
                    self.metrics.claim_failed();
                    tracing::warn!(%error, "claiming failed, trying again");
                    // The claim may have happened all the same.
                    state.reconcile_at = Instant::now();
                    claims = claims.filter(|claims| !claims.closed());
                    self.bell.set_claimer(claims.is_some());
                }
            }
            tokio::select! {
                () = self.shutdown.drain.cancelled() => {}
                () = backoff.wait() => {}
            }
        }
    }

    /// Claims for as long as nothing goes wrong.
    async fn serve(
        &self,
        claims: &mut Option<Claims>,
        offers: &mut mpsc::UnboundedReceiver<Offer>,
        state: &mut State,
    ) -> Result<(), QueueError> {
        let claims = match claims {
            Some(claims) => claims,
            None => {
                let client = self.control.own("pgmill claimer").await?;
                let connected = claims.insert(Claims::new(client, self.worker).await?);
                self.bell.set_claimer(true);
                connected
            }
        };
        let mut poll = Backoff::up_to(self.poll);
        loop {
            self.reconcile(state).await?;
            while let Ok(offer) = offers.try_recv() {
                state.idle.push(offer);
            }
            state.idle.retain(|offer| !offer.reply.is_closed());
            if !state.idle.is_empty() && !self.bell.draining() {
                if self.claim(claims, state).await? {
                    poll = Backoff::up_to(self.poll);
                }
                if state.idle.is_empty() {
                    continue;
                }
            }
            // A ring since the last look is kept: nobody can slip in between.
            tokio::select! {
                () = self.shutdown.drain.cancelled() => return Ok(()),
                offer = offers.recv() => match offer {
                    Some(offer) => state.idle.push(offer),
                    None => return Ok(()),
                },
                // What is rung for may lie where the last sweep looked a moment too early.
                () = self.bell.rung() => if !self.bell.sweep_is_wanted() {
                    poll = Backoff::up_to(self.poll);
                },
                // Soon after the last work; then the looks ring.
                () = sleep(poll.step()), if !state.idle.is_empty() && !poll.at_most() => {}
            }
        }
    }

    /// Claims for the idle readers; `true` if it found anything. What lies below the watermarks is
    /// looked at once a second, and when the rest does not suffice.
    async fn claim(&self, claims: &Claims, state: &mut State) -> Result<bool, QueueError> {
        let sweep = self.bell.take_sweep() || state.lanes.sweep_due();
        let mut found = self.claim_once(claims, state, sweep).await?;
        if !sweep && !state.idle.is_empty() && state.lanes.sweep_allowed() {
            found |= self.claim_once(claims, state, true).await?;
        }
        self.bell.note_idle(self.held.count() == 0);
        Ok(found)
    }

    async fn claim_once(
        &self,
        claims: &Claims,
        state: &mut State,
        sweep: bool,
    ) -> Result<bool, QueueError> {
        if sweep {
            state.lanes.sweep(claims.lanes(self.queues.as_deref()).await?);
        }
        let lanes = state.lanes.pick(sweep);
        // Readers take several tasks at once from one queue with shared commits; where the pick
        // begins with such a queue, its lanes are claimed apart.
        let lead = self.lead(&state.lanes, &lanes);
        let mut found = false;
        for (lanes, size) in [(&lanes[..lead.lanes], lead.size), (&lanes[lead.lanes..], 1)] {
            if lanes.is_empty() || state.idle.is_empty() {
                continue;
            }
            let sessions: Vec<_> = state.idle.iter().map(|offer| offer.session).collect();
            let most = (sessions.len() * size).min(MOST.max(sessions.len()));
            let named: Vec<_> = sessions.iter().copied().cycle().take(most).collect();
            let timer = self.metrics.claim_seconds.start_timer();
            let claimed = claims.claim(lanes, &named).await?;
            timer.observe_duration();
            self.metrics.claimed(&claimed);
            found |= !claimed.is_empty();
            self.hand_out(state, claimed).await;
        }
        Ok(found)
    }

    /// How many of the first lanes belong to one queue whose readers share commits, and how many
    /// tasks each of them takes.
    fn lead(&self, known: &Lanes, lanes: &[(Lane, TaskId)]) -> Lead {
        let queue = match lanes.first() {
            Some((lane, _)) if known.shared(lane).is_some() => &lane.queue,
            _ => return Lead { lanes: 0, size: 1 },
        };
        let lead = lanes.iter().take_while(|(lane, _)| lane.queue == *queue);
        Lead { lanes: lead.count(), size: self.paces.size(queue) }
    }

    /// Gives the tasks to the readers whose sessions were named for them.
    async fn hand_out(&self, state: &mut State, claimed: Vec<Claimed>) {
        let readers = state.idle.len();
        let mut works: Vec<Vec<Work>> = (0..readers).map(|_| Vec::new()).collect();
        for Claimed { session, lane, claim } in claimed {
            let shared = state.lanes.shared(&lane);
            state.lanes.raise(lane, claim.id());
            let reader = session % readers;
            works[reader].push(self.held.hold(claim, state.idle[reader].session, shared));
        }
        let idle = std::mem::take(&mut state.idle);
        for (offer, works) in idle.into_iter().zip(works) {
            if works.is_empty() {
                state.idle.push(offer);
            } else if let Err(works) = offer.reply.send(works) {
                // Its session ended while the claim was under way.
                for work in works {
                    hand_back(&self.control, work.claim, Duration::ZERO).await;
                    drop(work.holding);
                }
                self.bell.sweep();
            }
        }
    }

    /// What the database holds for this worker and the worker does not know of goes back: claims
    /// whose answer was lost. Between two claims, so that no claim is on its way meanwhile.
    async fn reconcile(&self, state: &mut State) -> Result<(), QueueError> {
        if state.reconcile_at > Instant::now() {
            return Ok(());
        }
        let client = self.control.get().await?;
        let given_back =
            give_back::unknown_claims(&**client, self.worker, &self.held.list()).await?;
        if given_back > 0 {
            tracing::warn!(given_back, "gave back claims that no reader had");
            self.bell.sweep();
        }
        state.reconcile_at = Instant::now() + RECONCILE_EVERY;
        Ok(())
    }
}
