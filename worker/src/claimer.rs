//! The one claimer of the process: as many tasks as there are idle readers at that moment, never
//! more, but for queues with shared commits, whose tasks a reader takes several at a time. Under load
//! the batches form by themselves; there is no timer and no prefetch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use queue::claim::{Claimed, Claimer as Claims};
use queue::server::{Server, server};
use queue::{Priority, QueueError, WorkerId, give_back};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::bell::Bell;
use crate::control::{Backoff, Control, answered};
use crate::finish::hand_back_unbegun;
use crate::held::{Held, Work};
use crate::lanes::{Lanes, Order, Round};
use crate::metrics::Metrics;
use crate::pace::Paces;
use crate::pick::Weights;
use crate::reader::Offer;
use crate::shutdown::Shutdown;

/// How often the claims that the database knows of are compared with those held here. Sooner after
/// a claim whose answer was lost.
const RECONCILE_EVERY: Duration = Duration::from_secs(60);

/// The claimer and all that it is given.
pub(crate) struct Claimer {
    pub(crate) worker: WorkerId,
    pub(crate) queues: Option<Vec<String>>,
    /// Of the readers' logins.
    pub(crate) profiles: Vec<String>,
    pub(crate) poll: Duration,
    pub(crate) control: Control,
    pub(crate) held: Held,
    pub(crate) paces: Paces,
    pub(crate) weights: watch::Receiver<Weights>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
}

/// The claimer's session, and where it goes.
struct Connected {
    claims: Claims,
    server: Server,
}

/// What outlives a broken connection.
struct State {
    idle: Vec<Offer>,
    lanes: Lanes,
    /// The last claim found nothing and was no sweep: nobody knows yet whether nothing is runnable.
    unsure: bool,
    reconcile_at: Instant,
}

impl Claimer {
    /// Runs until the worker drains.
    pub(crate) async fn run(self, mut offers: mpsc::UnboundedReceiver<Offer>) {
        let mut backoff = Backoff::default();
        let mut connected: Option<Connected> = None;
        let mut state = State {
            idle: Vec::new(),
            lanes: Lanes::default(),
            unsure: true,
            reconcile_at: Instant::now(),
        };
        while !self.shutdown.drain.is_cancelled() {
            match self.serve(&mut connected, &mut offers, &mut state).await {
                Ok(()) => return,
                Err(error) => {
                    self.metrics.claim_failed();
                    tracing::warn!(%error, "claiming failed, trying again");
                    // The claim may have happened all the same.
                    state.reconcile_at = Instant::now();
                    // What did not answer may never.
                    let silent = matches!(error, QueueError::NoAnswer { .. });
                    connected = connected.filter(|to| !silent && self.usable(to));
                    self.bell.set_claimer(connected.is_some());
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
        connected: &mut Option<Connected>,
        offers: &mut mpsc::UnboundedReceiver<Offer>,
        state: &mut State,
    ) -> Result<(), QueueError> {
        let Connected { claims, server } = match connected {
            Some(connected) => connected,
            None => {
                let new = answered(self.connect()).await?;
                self.bell.set_claimer(true);
                connected.insert(new)
            }
        };
        let mut poll = Backoff::up_to(self.poll);
        loop {
            if !self.registered_at(*server).await? {
                return Ok(());
            }
            self.reconcile(state).await?;
            while let Ok(offer) = offers.try_recv() {
                state.idle.push(offer);
            }
            state.idle.retain(|offer| !offer.reply.is_closed());
            if self.bell.draining() {
                self.bell.note_idle(self.held.count() == 0);
            } else if !state.idle.is_empty() {
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
                () = self.bell.rung() => {
                    state.lanes.wake();
                    if !self.bell.sweep_is_wanted() {
                        poll = Backoff::up_to(self.poll);
                    }
                }
                // Soon after the last work, and until a sweep has found nothing; then the looks ring.
                () = sleep_until(state.reconcile_at) => {}
                () = sleep(poll.step()),
                    if !state.idle.is_empty() && (state.unsure || !poll.at_most()) => {}
            }
        }
    }

    async fn connect(&self) -> Result<Connected, QueueError> {
        let client = self.control.own("pgmill claimer").await?.client;
        let server = server(&client).await?;
        Ok(Connected { claims: Claims::new(client, self.worker).await?, server })
    }

    /// Waits until the worker is registered: one that is not would lose what it claims. `false`: the
    /// worker drains.
    ///
    /// # Errors
    /// It is registered at another server than the claimer's.
    async fn registered_at(&self, server: Server) -> Result<bool, QueueError> {
        let registered = tokio::select! {
            biased;
            registered = self.control.registration().until_registered() => registered,
            () = self.shutdown.drain.cancelled() => return Ok(false),
        };
        if registered == server {
            return Ok(true);
        }
        let message = "the queue is on another server now".to_owned();
        Err(QueueError::Refused { message, hint: None })
    }

    fn usable(&self, connected: &Connected) -> bool {
        let registered = self.control.registration().server();
        !connected.claims.closed() && registered.is_none_or(|server| server == connected.server)
    }

    /// Claims for the idle readers; `true` if it found anything. What lies below the watermarks is
    /// looked at once a second, and when the rest does not suffice. Only a sweep can tell that
    /// nothing is runnable.
    async fn claim(&self, claims: &Claims, state: &mut State) -> Result<bool, QueueError> {
        let mut sweep = self.bell.take_sweep() || state.lanes.sweep_due();
        state.unsure = true;
        let mut found = self.claim_all(claims, state, sweep).await?;
        if !sweep && !state.idle.is_empty() && state.lanes.sweep_allowed() {
            sweep = true;
            found |= self.claim_all(claims, state, sweep).await?;
        }
        let busy = found || self.held.count() > 0;
        if busy || sweep {
            self.bell.note_idle(!busy);
            state.unsure = false;
        }
        Ok(found)
    }

    /// Each profile's readers get its tasks; those that are kept for reserved tasks get nothing else,
    /// even if they stay idle.
    async fn claim_all(
        &self,
        claims: &Claims,
        state: &mut State,
        sweep: bool,
    ) -> Result<bool, QueueError> {
        if sweep {
            state.lanes.begin_sweep();
            let lanes = answered(claims.lanes(self.queues.as_deref(), &self.profiles)).await?;
            state.lanes.found(lanes);
        }
        let reserved = self.bell.reserved();
        let mut alike: BTreeMap<(Arc<str>, bool), Vec<Offer>> = BTreeMap::new();
        for offer in state.idle.drain(..) {
            let kept = offer.reader <= reserved;
            alike.entry((Arc::clone(&offer.profile), !kept)).or_default().push(offer);
        }
        let (mut unused, mut found) = (Vec::new(), Ok(false));
        for ((profile, any), offers) in alike {
            state.idle = offers;
            if let Ok(before) = found {
                let only = (!any).then_some(Priority::Reserved);
                let claimed = self.claim_for(claims, state, (&profile, only), sweep).await;
                found = claimed.map(|claimed| claimed | before);
            }
            unused.append(&mut state.idle);
        }
        state.idle = unused;
        if sweep {
            state.lanes.swept();
        }
        found
    }

    /// For readers of one profile. Goes on until no reader is idle or no lane has work.
    async fn claim_for(
        &self,
        claims: &Claims,
        state: &mut State,
        (run_as, only): (&str, Option<Priority>),
        mut sweep: bool,
    ) -> Result<bool, QueueError> {
        let mut found = false;
        while !state.idle.is_empty() {
            let weights = self.weights.borrow().clone();
            let round = Round { readers: state.idle.len(), run_as, only, sweep, weights: &weights };
            let orders =
                state.lanes.orders(&round, |queue| self.paces.size(queue), &mut rand::rng());
            if orders.is_empty() {
                break;
            }
            for order in orders {
                found |= self.claim_once(claims, state, &order).await?;
            }
            sweep = false;
        }
        Ok(found)
    }

    async fn claim_once(
        &self,
        claims: &Claims,
        state: &mut State,
        order: &Order,
    ) -> Result<bool, QueueError> {
        let readers = order.readers.min(state.idle.len());
        let sessions = state.idle[..readers].iter().map(|offer| offer.session);
        let named: Vec<_> = sessions.cycle().take(order.tasks).collect();
        let timer = self.metrics.claim_seconds.start_timer();
        let claimed = answered(claims.claim(&order.slices, &named)).await?;
        timer.observe_duration();
        self.metrics.claimed(&claimed);
        if claimed.len() < named.len() {
            state.lanes.exhaust(order);
        } else if order.sweep {
            claimed.iter().for_each(|claimed| state.lanes.lower(&claimed.lane));
        }
        let found = !claimed.is_empty();
        if found {
            self.bell.note_found();
        }
        self.hand_out(state, readers, claimed).await;
        Ok(found)
    }

    /// Gives the tasks to the first readers, whose sessions were named for them.
    async fn hand_out(&self, state: &mut State, readers: usize, claimed: Vec<Claimed>) {
        let mut works: Vec<Vec<Work>> = (0..readers).map(|_| Vec::new()).collect();
        for Claimed { session, lane, claim } in claimed {
            let shared = state.lanes.shared(&lane);
            state.lanes.raise(lane, claim.id());
            let reader = session % readers;
            works[reader].push(self.held.hold(claim, state.idle[reader].session, shared));
        }
        let named: Vec<Offer> = state.idle.drain(..readers).collect();
        for (offer, works) in named.into_iter().zip(works) {
            if works.is_empty() {
                state.idle.push(offer);
            } else if let Err(works) = offer.reply.send(works) {
                // Its session ended while the claim was under way.
                for work in works {
                    hand_back_unbegun(&self.control, &self.bell, work).await;
                }
            }
        }
    }

    /// What the database holds for this worker and the worker does not know of goes back: claims
    /// whose answer was lost. Between two claims, so that no claim is on its way meanwhile.
    async fn reconcile(&self, state: &mut State) -> Result<(), QueueError> {
        if !self.bell.take_reconcile() && state.reconcile_at > Instant::now() {
            return Ok(());
        }
        // Until it has an answer: what was asked for is not forgotten on the way.
        state.reconcile_at = Instant::now();
        let given_back = answered(async {
            let client = self.control.get().await?;
            give_back::unknown_claims(&*client, self.worker, &self.held.list()).await
        });
        let given_back = given_back.await?;
        if given_back > 0 {
            tracing::warn!(given_back, "gave back claims that no reader had");
            self.bell.sweep();
        }
        state.reconcile_at = Instant::now() + RECONCILE_EVERY;
        Ok(())
    }
}
