//! The claimer of the process. It claims as many tasks as there are idle readers at that moment.
//! The exception are queues of short tasks, of which a reader takes several at a time. Under load
//! several readers become idle at once, so batches form without a timer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_decisions::batch_size::BatchSizes;
use fleet_decisions::claim_cadence::{ClaimCadence, WatchChange};
use fleet_decisions::lanes::{ClaimRequest, ClaimRound, Lanes};
use fleet_decisions::timing::{DEREGISTRATION_TIMEOUT, WATCH_RECORD};
use queue::claim::{ClaimSession, Claimed, SessionIdentity};
use queue::enqueue::notify;
use queue::server::{Server, server};
use queue::{Priority, QueueError, release};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep_until, timeout};
use tokio_util::task::TaskTracker;

use crate::claim::policy::{ClaimPolicy, Orders};
use crate::claim::release::release_unstarted;
use crate::context::Context;
use crate::context::in_flight::ClaimedTask;
use crate::control::registration::moved;
use crate::control::{Backoff, answered, until};
use crate::wakeup::claimer::ClaimerWakeup;

/// Name of the claims in the errors of the worker.
const CLAIM: &str = "claims";

/// Registers an idle reader with the claimer. The reader withdraws by dropping the receiving end.
pub(crate) struct IdleReader {
    /// Profile of the reader's login.
    pub(crate) profile: Arc<str>,
    /// Number of the reader among the worker's readers of the profile, from 1.
    pub(crate) number_in_profile: u32,
    pub(crate) session: SessionIdentity,
    pub(crate) reply: oneshot::Sender<Vec<ClaimedTask>>,
}

impl IdleReader {
    /// Returns whether the reader is one of those that take tasks of priority reserved only. `reserved`:
    /// the number of these readers, by profile.
    fn is_reserved(&self, reserved: &BTreeMap<String, u32>) -> bool {
        reserved.get(&*self.profile).is_some_and(|reserved| self.number_in_profile <= *reserved)
    }
}

/// Claims tasks for the readers.
pub(crate) struct Claimer {
    pub(crate) queues: Option<Vec<String>>,
    /// Profiles of the readers' logins.
    pub(crate) profiles: Vec<String>,
    /// Those of the profiles that are targets. Their readers take one task at a time.
    pub(crate) targets: Vec<String>,
    pub(crate) poll_interval: Duration,
    pub(crate) batch_sizes: BatchSizes,
    pub(crate) wakeup: ClaimerWakeup,
    pub(crate) policy: watch::Receiver<ClaimPolicy>,
    pub(crate) orders: watch::Receiver<Orders>,
    pub(crate) context: Arc<Context>,
    /// Tokio tasks that the shutdown of the worker waits for.
    pub(crate) tasks: TaskTracker,
}

/// The claimer's session and its server.
struct Connected {
    claims: ClaimSession,
    server: Server,
}

/// State that survives a lost connection.
struct State {
    idle: Vec<IdleReader>,
    lanes: Lanes,
    cadence: ClaimCadence,
    backoff: Backoff,
    /// Whether the last claim has failed.
    failing: bool,
    /// Whether the last session was lost.
    lost: bool,
}

impl Claimer {
    /// Runs until the worker drains.
    pub(crate) async fn run(self, mut idle_readers: mpsc::UnboundedReceiver<IdleReader>) {
        let mut connected: Option<Connected> = None;
        let mut state = State {
            idle: Vec::new(),
            lanes: Lanes::default(),
            cadence: ClaimCadence::new(self.poll_interval, Instant::now()),
            backoff: self.context.control.backoff(),
            failing: false,
            lost: false,
        };
        while !self.context.shutdown.drain.is_cancelled() {
            match self.serve(&mut connected, &mut idle_readers, &mut state).await {
                Ok(()) => break,
                Err(error) => {
                    self.context.metrics.claim_failed();
                    if state.failing {
                        tracing::debug!(%error, "claiming failed again");
                    } else {
                        tracing::warn!(%error, "claiming failed, trying again");
                    }
                    self.context.control.errors().set(CLAIM, &error);
                    state.failing = true;
                    state.cadence.failed(Instant::now());
                    let doubtful = error.session_in_doubt();
                    let before = connected.is_some();
                    connected = connected.filter(|to| !doubtful && self.usable(to));
                    state.lost |= before && connected.is_none();
                    self.wakeup.set_connected(connected.is_some());
                }
            }
            tokio::select! {
                () = self.context.shutdown.drain.cancelled() => {}
                () = state.backoff.wait() => {}
            }
        }
        // The answer to the last claim may be lost. Without this, other workers would reclaim its tasks.
        let _ = timeout(DEREGISTRATION_TIMEOUT, self.reconcile(&mut state)).await;
    }

    /// Claims until an error occurs or the worker drains.
    async fn serve(
        &self,
        connected: &mut Option<Connected>,
        idle_readers: &mut mpsc::UnboundedReceiver<IdleReader>,
        state: &mut State,
    ) -> Result<(), QueueError> {
        let Connected { claims, server } = match connected {
            Some(connected) => connected,
            None => {
                let new = answered(self.connect()).await?;
                if std::mem::take(&mut state.lost) {
                    self.context.metrics.reconnects.inc();
                }
                self.wakeup.set_connected(true);
                connected.insert(new)
            }
        };
        state.cadence.connected();
        loop {
            if !self.registered_at(*server).await? {
                return Ok(());
            }
            self.reconcile(state).await?;
            while let Ok(idle_reader) = idle_readers.try_recv() {
                state.idle.push(idle_reader);
            }
            state.idle.retain(|idle_reader| !idle_reader.reply.is_closed());
            if self.orders.borrow().draining {
                self.wakeup.set_idle(self.context.in_flight.count() == 0);
            } else if !state.idle.is_empty() {
                self.claim_for_idle_readers(claims, state).await?;
                state.backoff.reset();
                if std::mem::take(&mut state.failing) {
                    self.context.control.errors().clear(CLAIM);
                    tracing::info!("claiming works again");
                }
                if state.idle.is_empty() || self.change_watch(claims, state).await? {
                    continue;
                }
            }
            let polls = state.cadence.polls(state.idle.len());
            let poll_at = state.cadence.next_poll_at(Instant::now(), &mut rand::rng());
            let full_at = state.cadence.watch_recorded_until().filter(|_| state.idle.is_empty());
            // A notification that arrived since the last claim is kept, so none is missed.
            tokio::select! {
                () = self.context.shutdown.drain.cancelled() => return Ok(()),
                idle_reader = idle_readers.recv() => match idle_reader {
                    Some(idle_reader) => state.idle.push(idle_reader),
                    None => return Ok(()),
                },
                () = self.wakeup.woken() => {
                    state.cadence.notified(self.wakeup.sweep_requested(), &mut state.lanes);
                }
                () = sleep_until(state.cadence.reconcile_at().into()) => {}
                () = sleep_until(poll_at.into()), if polls => state.cadence.polled(&mut state.lanes),
                () = until(full_at) => self.end_watch(state).await?,
            }
        }
    }

    /// Records in which lanes the worker looks for tasks all the time, or that it no longer does so. In
    /// the second case, returns `true`: the claimer has to claim again before it waits.
    async fn change_watch(
        &self,
        claims: &ClaimSession,
        state: &mut State,
    ) -> Result<bool, QueueError> {
        let now = Instant::now();
        match state.cadence.watch_change(now) {
            Some(WatchChange::Watch) => {
                let free = self.free_readers(&state.idle);
                let mut lanes = state.lanes.watchable();
                lanes.retain(|lane| free.contains(&(&*lane.run_as, lane.priority)));
                if !lanes.is_empty() {
                    let exclusive = answered(claims.watch_lanes(&lanes, WATCH_RECORD)).await?;
                    self.wakeup.request_permits();
                    state.cadence.watches(exclusive, now);
                }
                Ok(false)
            }
            Some(WatchChange::End) => {
                answered(claims.watch_lanes(&[], Duration::ZERO)).await?;
                state.cadence.watch_ended();
                state.lanes.mark_all_nonempty();
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Returns of which profiles and priorities an idle reader may take tasks.
    fn free_readers<'a>(&self, idle: &'a [IdleReader]) -> BTreeSet<(&'a str, Priority)> {
        let reserved = self.orders.borrow().reserved_readers.clone();
        let priorities = |reader: &'a IdleReader| {
            let kept = reader.is_reserved(&reserved);
            let all = Priority::ALL.iter().copied();
            let taken = all.filter(move |it| !kept || *it == Priority::Reserved);
            taken.map(|priority| (&*reader.profile, priority))
        };
        idle.iter().flat_map(priorities).collect()
    }

    /// Ends the watch of a worker without free readers. The enqueues of the last milliseconds have not
    /// notified the other workers.
    async fn end_watch(&self, state: &mut State) -> Result<(), QueueError> {
        state.cadence.watch_ended();
        if self.policy.borrow().peer_count > 0 {
            answered(async { notify(&*self.context.control.get().await?).await }).await?;
        }
        Ok(())
    }

    async fn connect(&self) -> Result<Connected, QueueError> {
        let client = self.context.control.dedicated_session("claimer").await?.client;
        let server = server(&client).await?;
        let queues = self.queues.clone();
        let claims = ClaimSession::new(client, self.context.worker, queues).await?;
        Ok(Connected { claims, server })
    }

    /// Waits until the worker is registered, because an unregistered worker would lose its claims.
    /// Returns `false` if the worker drains.
    ///
    /// # Errors
    /// Returns an error if the worker is registered at another server than the claimer's.
    async fn registered_at(&self, server: Server) -> Result<bool, QueueError> {
        let registered = tokio::select! {
            biased;
            registered = self.context.control.registration().until_registered() => registered,
            () = self.context.shutdown.drain.cancelled() => return Ok(false),
        };
        if registered == server {
            return Ok(true);
        }
        Err(moved())
    }

    fn usable(&self, connected: &Connected) -> bool {
        let registered = self.context.control.registration().server();
        !connected.claims.is_closed() && registered.is_none_or(|server| server == connected.server)
    }

    /// Claims tasks for the idle readers. Tasks below the watermarks are read by sweeps: about once a
    /// second, and when there are too few other tasks.
    async fn claim_for_idle_readers(
        &self,
        claims: &ClaimSession,
        state: &mut State,
    ) -> Result<(), QueueError> {
        let requested = self.wakeup.take_sweep_request();
        let mut sweep = state.cadence.begin_claim(requested, &state.lanes, Instant::now());
        let mut found = self.claim_pass(claims, state, sweep).await?;
        while state.cadence.sweep_again(sweep, state.idle.len(), &state.lanes, Instant::now()) {
            sweep = true;
            found |= self.claim_pass(claims, state, sweep).await?;
        }
        if let Some(idle) =
            state.cadence.end_claim(found, self.context.in_flight.count(), sweep, Instant::now())
        {
            self.wakeup.set_idle(idle);
        }
        Ok(())
    }

    /// Claims the tasks of each profile for the readers of that profile. Reserved readers get tasks
    /// of priority reserved and no other tasks, even if they stay idle.
    async fn claim_pass(
        &self,
        claims: &ClaimSession,
        state: &mut State,
        sweep: bool,
    ) -> Result<bool, QueueError> {
        if sweep {
            state.lanes.begin_sweep(Instant::now());
            let reading = claims.lanes(&self.profiles, state.lanes.next_after());
            let (lanes, next_after) = answered(reading).await?;
            state.lanes.set_nonempty(lanes, next_after, Instant::now());
        }
        let reserved = self.orders.borrow().reserved_readers.clone();
        let mut by_profile: BTreeMap<(Arc<str>, bool), Vec<IdleReader>> = BTreeMap::new();
        for idle_reader in state.idle.drain(..) {
            let kept = idle_reader.is_reserved(&reserved);
            by_profile
                .entry((Arc::clone(&idle_reader.profile), !kept))
                .or_default()
                .push(idle_reader);
        }
        let (mut unused, mut found, mut failed) = (Vec::new(), false, None::<QueueError>);
        for ((profile, any), idle_readers) in by_profile {
            state.idle = idle_readers;
            // An error of one profile does not keep the others from their tasks.
            if failed.as_ref().is_none_or(|error| !error.session_in_doubt()) {
                let only = (!any).then_some(Priority::Reserved);
                match self.claim_for_profile(claims, state, (&profile, only), sweep).await {
                    Ok(claimed) => found |= claimed,
                    Err(error) => failed = Some(error),
                }
            }
            unused.append(&mut state.idle);
        }
        state.idle = unused;
        if sweep {
            state.lanes.end_sweep(Instant::now());
        }
        if found {
            state.backoff.reset();
        }
        failed.map_or(Ok(found), Err)
    }

    /// Claims for readers of one profile, until no reader is idle or no lane has tasks.
    async fn claim_for_profile(
        &self,
        claims: &ClaimSession,
        state: &mut State,
        (run_as, only): (&str, Option<Priority>),
        mut sweep: bool,
    ) -> Result<bool, QueueError> {
        let mut found = false;
        if self.policy.borrow().held_targets.iter().any(|target| target == run_as) {
            return Ok(found);
        }
        let in_target = self.targets.iter().any(|target| target == run_as);
        while !state.idle.is_empty() {
            let weights = self.policy.borrow().weights.clone();
            let round =
                ClaimRound { readers: state.idle.len(), run_as, only, sweep, weights: &weights };
            let requests = state.lanes.requests(
                &round,
                |queue| if in_target { 1 } else { self.batch_sizes.size(queue) },
                &mut rand::rng(),
            );
            if requests.is_empty() {
                break;
            }
            for request in requests {
                found |= self.claim_batch(claims, state, &request).await?;
            }
            sweep = false;
        }
        Ok(found)
    }

    async fn claim_batch(
        &self,
        claims: &ClaimSession,
        state: &mut State,
        request: &ClaimRequest,
    ) -> Result<bool, QueueError> {
        let readers = request.readers.min(state.idle.len());
        let sessions = state.idle[..readers].iter().map(|idle_reader| idle_reader.session);
        let named: Vec<_> = sessions.cycle().take(request.tasks).collect();
        let timer = self.context.metrics.claim_seconds.start_timer();
        let claimed = answered(claims.claim(&request.ranges, &named)).await?;
        timer.observe_duration();
        self.context.metrics.claimed(&claimed);
        if claimed.len() < named.len() {
            state.lanes.mark_empty(request);
        } else if request.sweep {
            claimed.iter().for_each(|claimed| state.lanes.reset_watermark(&claimed.lane));
        }
        let found = !claimed.is_empty();
        if found {
            self.wakeup.mark_tasks_found();
        }
        self.assign(state, readers, claimed);
        Ok(found)
    }

    /// Assigns the tasks to the first readers, whose sessions the claim names.
    fn assign(&self, state: &mut State, readers: usize, claimed: Vec<Claimed>) {
        let mut batches: Vec<Vec<ClaimedTask>> = (0..readers).map(|_| Vec::new()).collect();
        for Claimed { session, lane, mut claim } in claimed {
            let server = || self.context.control.registration().server();
            let trace = self.context.traces.begin(&mut claim, server);
            let shared = state.lanes.shared_commit_budget(&lane);
            state.lanes.raise_watermark(lane, claim.id(), Instant::now());
            let reader = session % readers;
            batches[reader].push(self.context.in_flight.register(
                (claim, trace),
                state.idle[reader].session,
                shared,
            ));
        }
        let named: Vec<IdleReader> = state.idle.drain(..readers).collect();
        for (idle_reader, batch) in named.into_iter().zip(batches) {
            if batch.is_empty() {
                state.idle.push(idle_reader);
            } else if let Err(batch) = idle_reader.reply.send(batch) {
                // The session of the reader was closed during the claim.
                batch.into_iter().for_each(|task| self.release(task));
            }
        }
    }

    /// Releases a task that no reader takes. Does not wait: while a transaction that somebody leaves
    /// open has locked the run of the task, the other readers need their tasks.
    fn release(&self, task: ClaimedTask) {
        let context = Arc::clone(&self.context);
        self.tasks.spawn(async move {
            release_unstarted(&context.control, &context.claimer, task).await;
        });
    }

    /// Releases claims that the database assigns to this worker but that the worker does not know,
    /// because the answer to the claim was lost. Runs between two claims, so that no claim is on
    /// its way.
    async fn reconcile(&self, state: &mut State) -> Result<(), QueueError> {
        let requested = self.wakeup.take_reconcile();
        if !state.cadence.reconcile_due(requested, Instant::now()) {
            return Ok(());
        }
        let released = answered(async {
            let client = self.context.control.get().await?;
            release::release_unknown_claims(
                &*client,
                self.context.worker,
                &self.context.in_flight.claims(),
            )
            .await
        });
        let released = released.await?;
        if released > 0 {
            tracing::warn!(
                released,
                "released tasks that this worker had claimed but that no reader was running"
            );
            self.context.claimer.request_sweep();
        }
        state.cadence.reconciled(Instant::now());
        Ok(())
    }
}
