//! State of a simulated worker, which the modules of `parts` change.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use fleet_decisions::backoff::Backoff;
use fleet_decisions::batch_size::BatchSizes;
use fleet_decisions::claim_cadence::ClaimCadence;
use fleet_decisions::failure_detector::{FailureDetector, PeerSnapshot, PollContinuity};
use fleet_decisions::lanes::{ClaimRequest, Lanes};
use fleet_decisions::peer_sampling::PeerSampling;
use fleet_decisions::reclaim_effort::ReclaimEffort;
use fleet_decisions::registration_state::RegistrationState;
use fleet_decisions::scheduler_work::SchedulerWork;
use fleet_decisions::timing::{
    MAX_HEARTBEAT_BACKOFF, MAX_LISTEN_BACKOFF, MAX_POLL_GAP, MAX_POLL_INTERVAL, ORPHAN_TIMEOUT,
};
use queue::WorkerId;
use queue::reclaim::DeadWorker;

use crate::bug::Bug;
use crate::event::{Event, Incarnation, Part, Reply, SessionId, Time};

/// What a part was waiting for.
#[derive(Debug)]
pub(crate) enum Input {
    Timer,
    Deadline,
    Answer(Reply, Option<SessionId>),
}

/// What a part is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waits for an event, or for a timer of its regular work.
    Waiting,
    /// Waits after a failure.
    Backoff,
    Connecting,
    Registering,
    Beating,
    Unregistered,
    Reconciling,
    ReadingLanes,
    Claiming,
    Executing,
    Committing,
    Resolving,
    Returning,
    Ticking,
    Firing,
    Reclaiming,
    Polling,
}

/// The time limit of a part's wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deadline {
    pub(crate) at: Time,
    /// Number of the wait.
    pub(crate) number: u32,
    /// Time of the event that checks it; `None` if there is no such event.
    pub(crate) event_at: Option<Time>,
}

/// A task that a reader has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub(crate) task: i64,
    pub(crate) token: u64,
    pub(crate) lane: usize,
}

#[derive(Debug)]
pub(crate) struct Reader {
    /// The phase to try again after a back-off.
    pub(crate) retries: Phase,
    pub(crate) session: Option<SessionId>,
    /// The session in which the tasks were to run.
    pub(crate) claimed_for: SessionId,
    pub(crate) batch: VecDeque<InFlight>,
    pub(crate) batch_size: usize,
    pub(crate) begun: Time,
}

/// A claim of the claimer in progress.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    pub(crate) sweep: bool,
    /// Whether the next round reads from the beginning.
    pub(crate) from_start: bool,
    pub(crate) swept: bool,
    pub(crate) found: bool,
    pub(crate) requests: VecDeque<ClaimRequest>,
    pub(crate) current: Option<ClaimRequest>,
    /// The readers that the claim names, with their sessions.
    pub(crate) readers: Vec<(usize, SessionId)>,
    pub(crate) returns: Vec<(InFlight, SessionId)>,
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) incarnation: Incarnation,
    pub(crate) alive: bool,
    pub(crate) stopped: bool,
    /// Events that arrived while the process was stopped.
    pub(crate) deferred: Vec<Event>,
    /// Whether the network between worker and server is cut.
    pub(crate) cut: bool,
    pub(crate) held: Vec<Event>,
    /// Error of the worker's clock, in parts per million.
    pub(crate) drift: i64,
    /// Last time at which a fault of this worker ended.
    pub(crate) disturbed_at: Time,
    pub(crate) draining: bool,
    pub(crate) waits: Vec<u32>,
    pub(crate) deadlines: Vec<Deadline>,
    /// Sessions on which parts wait for an answer.
    pub(crate) asking: Vec<Option<Option<SessionId>>>,
    pub(crate) phases: Vec<Phase>,
    /// Waits of parts after failures.
    pub(crate) backoffs: Vec<Backoff>,
    pub(crate) registration: RegistrationState<u32>,
    pub(crate) control: Option<SessionId>,
    /// Whether a fault has ended the control session, and the worker has not registered since.
    pub(crate) control_ended: bool,
    pub(crate) heartbeat_at: Time,
    pub(crate) pool: Option<SessionId>,
    pub(crate) listener: Option<SessionId>,
    pub(crate) claimer: Option<(SessionId, u32)>,
    /// Whether the claimer is connected and the worker is registered.
    pub(crate) claiming: bool,
    pub(crate) lanes: Lanes,
    pub(crate) cadence: ClaimCadence,
    pub(crate) batch_sizes: BatchSizes,
    pub(crate) pass: Pass,
    /// Idle readers, in the order in which they became idle, and their sessions.
    pub(crate) idle: Vec<(usize, SessionId)>,
    pub(crate) notified: bool,
    pub(crate) sweep_requested: bool,
    pub(crate) reconcile: bool,
    pub(crate) tasks_found: bool,
    pub(crate) is_idle: bool,
    pub(crate) readers: Vec<Reader>,
    pub(crate) in_flight: BTreeMap<u64, i64>,
    pub(crate) sampling: PeerSampling,
    pub(crate) continuity: PollContinuity,
    pub(crate) polled_at: Instant,
    pub(crate) last_poll: Time,
    pub(crate) poll_wanted_pending: bool,
    pub(crate) detector: FailureDetector,
    pub(crate) effort: ReclaimEffort,
    pub(crate) snapshot: Option<PeerSnapshot>,
    pub(crate) dead: VecDeque<DeadWorker>,
    pub(crate) reclaiming: Option<(DeadWorker, u32)>,
    pub(crate) work: SchedulerWork,
    pub(crate) scheduler: Option<SessionId>,
}

pub(crate) const FIRST_READER: usize = 6;

pub(crate) fn index(part: Part) -> usize {
    match part {
        Part::Heartbeat => 0,
        Part::Poll => 1,
        Part::Claimer => 2,
        Part::Listener => 3,
        Part::Scheduler => 4,
        Part::Reclaimer => 5,
        Part::Reader(n) => FIRST_READER + n,
    }
}

pub(crate) fn part(index: usize) -> Part {
    match index {
        0 => Part::Heartbeat,
        1 => Part::Poll,
        2 => Part::Claimer,
        3 => Part::Listener,
        4 => Part::Scheduler,
        5 => Part::Reclaimer,
        n => Part::Reader(n - FIRST_READER),
    }
}

fn backoff(part: Part) -> Backoff {
    match part {
        Part::Heartbeat => Backoff::up_to(MAX_HEARTBEAT_BACKOFF),
        Part::Listener => Backoff::up_to(MAX_LISTEN_BACKOFF),
        _ => Backoff::default(),
    }
}

impl Worker {
    pub(crate) fn new(
        id: u128,
        incarnation: Incarnation,
        readers: usize,
        now: Instant,
        bug: Option<Bug>,
    ) -> Self {
        let reader = || Reader {
            retries: Phase::Waiting,
            session: None,
            claimed_for: 0,
            batch: VecDeque::new(),
            batch_size: 0,
            begun: 0,
        };
        let gap = if bug == Some(Bug::GapUnnoticed) { MAX_POLL_GAP * 1000 } else { MAX_POLL_GAP };
        let parts = FIRST_READER + readers;
        Self {
            id: WorkerId(uuid::Uuid::from_u128(id)),
            incarnation,
            alive: false,
            stopped: false,
            deferred: Vec::new(),
            cut: false,
            held: Vec::new(),
            drift: 0,
            disturbed_at: 0,
            draining: false,
            waits: vec![0; parts],
            deadlines: vec![Deadline::default(); parts],
            asking: vec![None; parts],
            phases: vec![Phase::Waiting; parts],
            backoffs: (0..parts).map(|n| backoff(part(n))).collect(),
            registration: RegistrationState::default(),
            control: None,
            control_ended: false,
            heartbeat_at: 0,
            pool: None,
            listener: None,
            claimer: None,
            claiming: false,
            lanes: Lanes::default(),
            cadence: ClaimCadence::new(MAX_POLL_INTERVAL, now),
            batch_sizes: BatchSizes::default(),
            pass: Pass::default(),
            idle: Vec::new(),
            notified: false,
            sweep_requested: false,
            reconcile: false,
            tasks_found: false,
            is_idle: false,
            readers: (0..readers).map(|_| reader()).collect(),
            in_flight: BTreeMap::new(),
            sampling: PeerSampling::default(),
            continuity: PollContinuity::begin(now),
            polled_at: now,
            last_poll: 0,
            poll_wanted_pending: true,
            detector: FailureDetector::new(ORPHAN_TIMEOUT, gap),
            effort: ReclaimEffort::default(),
            snapshot: None,
            dead: VecDeque::new(),
            reclaiming: None,
            work: SchedulerWork::default(),
            scheduler: None,
        }
    }

    /// Returns whether the process runs and reaches the server.
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.alive && !self.stopped && !self.cut
    }

    /// Claims of the worker, as the heartbeat and the reconciliation name them.
    pub(crate) fn claims(&self) -> Vec<(i64, u64)> {
        self.in_flight.iter().map(|(token, task)| (*task, *token)).collect()
    }

    pub(crate) fn owns(&self, session: SessionId) -> bool {
        let single = [self.control, self.pool, self.listener, self.scheduler];
        single.contains(&Some(session))
            || self.claimer.is_some_and(|(claimer, _)| claimer == session)
            || self.readers.iter().any(|reader| reader.session == Some(session))
            || self.asking.contains(&Some(Some(session)))
    }

    /// Forgets a session that has ended.
    pub(crate) fn forget(&mut self, session: SessionId) {
        for place in [&mut self.control, &mut self.pool, &mut self.listener, &mut self.scheduler] {
            if *place == Some(session) {
                *place = None;
            }
        }
        if self.claimer.is_some_and(|(claimer, _)| claimer == session) {
            self.claimer = None;
        }
        self.idle.retain(|(_, idle)| *idle != session);
        for reader in &mut self.readers {
            if reader.session == Some(session) {
                reader.session = None;
            }
        }
    }
}
