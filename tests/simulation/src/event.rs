//! Events of the simulation, ordered by virtual time. Events of the same time keep their order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fleet_decisions::lanes::ClaimRequest;
use queue::reclaim::{DeadWorker, Peer};

/// Virtual time in microseconds.
pub(crate) type Time = u64;

/// A second of virtual time.
pub(crate) const SECOND: Time = 1_000_000;

/// A session at the server.
pub(crate) type SessionId = u64;

/// Number of a worker's process. A restarted worker has a new incarnation.
pub(crate) type Incarnation = u32;

/// A part of a worker that waits for one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Heartbeat,
    Poll,
    Claimer,
    Listener,
    Scheduler,
    Reclaimer,
    Reader(usize),
}

/// The wait of a part. An event for an earlier wait of the part is ignored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) worker: usize,
    pub(crate) incarnation: Incarnation,
    pub(crate) part: Part,
    pub(crate) number: u32,
}

#[derive(Debug)]
pub(crate) enum Request {
    Connect,
    Register,
    Heartbeat { claims: Vec<(i64, u64)> },
    Poll { peers: bool, unregistered: bool, pending: bool },
    Lanes,
    Claim { request: ClaimRequest, sessions: Vec<SessionId> },
    ReleaseUnknown { claims: Vec<(i64, u64)> },
    Listen,
    TickBegin,
    TickCommit,
    NextTick,
    Reclaim { dead: DeadWorker },
    Execute { task: i64, token: u64 },
    Commit { task: i64, token: u64 },
    Resolve { task: i64, token: u64 },
    Return { task: i64, token: u64, session: SessionId },
    Probe { session: SessionId },
}

impl Request {
    /// Name for counts of statements; `None` for a message that is not a statement on the queue.
    pub(crate) fn statement(&self) -> Option<&'static str> {
        Some(match self {
            Self::Connect => return None,
            Self::Register => "register",
            Self::Heartbeat { .. } => "heartbeat",
            Self::Poll { .. } => "poll",
            Self::Lanes => "lanes",
            Self::Claim { .. } => "claim",
            Self::ReleaseUnknown { .. } => "release_unknown",
            Self::Listen => "listen",
            Self::TickBegin | Self::TickCommit | Self::NextTick => "tick",
            Self::Reclaim { .. } => "reclaim",
            Self::Execute { .. } => "execute",
            Self::Commit { .. } => "complete",
            Self::Resolve { .. } => "resolve",
            Self::Return { .. } => "release",
            Self::Probe { .. } => "probe",
        })
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// The server refused, or the session was lost.
    Failed,
    Done,
    Registered {
        generation: u32,
    },
    /// The tokens that are no longer valid; `None` if the worker is not registered.
    Heartbeat(Option<Vec<u64>>),
    Polled {
        peers: Option<Vec<Peer>>,
        pending: bool,
        next_tick_in: Option<Time>,
    },
    /// The numbers of the lanes that have work.
    Lanes(Vec<usize>),
    /// For each task: number of the session in the request, lane, task, token.
    Claimed(Vec<(usize, usize, i64, u64)>),
    Released(usize),
    /// Whether a schedule was due and free.
    Ticking(bool),
    NextTick(Option<Time>),
    /// Number of tasks made pending, and of claims that remain.
    Reclaimed {
        released: usize,
        remaining: usize,
    },
    /// The claim of the task is no longer valid.
    Lost,
    /// A completion of the task is about to commit.
    Locked,
    Committed,
    StillClaimed,
    Gone(bool),
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) wait: Wait,
    pub(crate) session: Option<SessionId>,
    pub(crate) request: Request,
}

#[derive(Debug)]
pub(crate) enum Event {
    Arrive(Message),
    Answer {
        wait: Wait,
        reply: Reply,
        session: Option<SessionId>,
    },
    Timer(Wait),
    /// A wait may have taken too long; with the time of the event.
    Deadline(Wait, Time),
    /// The client learns that a session has ended.
    Closed {
        worker: usize,
        incarnation: Incarnation,
        session: SessionId,
    },
    Notified {
        worker: usize,
        incarnation: Incarnation,
        session: SessionId,
    },
    StatementDone {
        session: SessionId,
        wait: Wait,
    },
    Flushed {
        session: SessionId,
        wait: Wait,
    },
    SessionGone(SessionId),
    Enqueue,
    FaultBegins(usize),
    FaultEnds(usize),
    Start {
        worker: usize,
    },
    /// The connections of a worker that was cut off time out.
    CutTimeout {
        worker: usize,
        incarnation: Incarnation,
    },
    EndBackend {
        worker: usize,
        until: Time,
    },
    /// Tasks of a worker that died at `since` should be pending by now.
    ExpectRunnable {
        tasks: Vec<(i64, u64)>,
        since: Time,
    },
    /// Workers should have polled since the server came back.
    ExpectPolls {
        since: Time,
    },
}

/// Events to come.
#[derive(Default)]
pub(crate) struct Events {
    /// Time, number and place of each event. An event itself is large, and a heap moves its entries.
    heap: BinaryHeap<Reverse<(Time, u64, usize)>>,
    places: Vec<Option<Event>>,
    free: Vec<usize>,
    count: u64,
}

impl Events {
    pub(crate) fn add(&mut self, at: Time, event: Event) {
        self.count += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(event);
        self.heap.push(Reverse((at, self.count, place)));
    }

    pub(crate) fn next(&mut self) -> Option<(Time, Event)> {
        let Reverse((at, _, place)) = self.heap.pop()?;
        self.free.push(place);
        self.places[place].take().map(|event| (at, event))
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}
