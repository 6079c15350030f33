//! The queue in memory, with the semantics of PostgreSQL as far as they matter to the decisions of
//! workers: row locks of open transactions that SKIP LOCKED passes by, advisory locks of sessions,
//! claims whose commit is not yet on disk, an unlogged table of workers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use fleet_decisions::timing::HEARTBEAT_INTERVAL;
use queue::WorkerId;
use queue::claim::Lane;
use queue::reclaim::{DeadWorker, Peer};
use queue::{Priority, TaskId};

use crate::event::{Incarnation, Message, Request, SessionId, Time};

/// Whether the server answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Up,
    /// Refuses connections.
    Down,
    /// Neither answers nor refuses.
    Frozen,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: WorkerId,
    pub(crate) worker: usize,
    pub(crate) incarnation: Incarnation,
    pub(crate) control: bool,
    pub(crate) listens: bool,
    /// The task and the token of an open transaction.
    pub(crate) open: Option<(i64, u64)>,
    /// Whether a statement of a task runs.
    pub(crate) busy: bool,
    /// The schedule of an open tick, and the instant for which it fires.
    pub(crate) ticking: Option<(usize, Time)>,
}

#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) worker: WorkerId,
    pub(crate) token: u64,
    pub(crate) session: SessionId,
    pub(crate) at: Time,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) lane: usize,
    pub(crate) claim: Option<Claim>,
    pub(crate) pending_since: Time,
    pub(crate) duration: Time,
    /// The session whose completion of the task is about to commit.
    pub(crate) locked: Option<SessionId>,
}

#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) heartbeat: i64,
    pub(crate) at: Time,
    /// How far the server's clock was behind at this time.
    behind: Time,
}

#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) every: Time,
    pub(crate) next_at: Time,
    pub(crate) locked: Option<SessionId>,
}

/// The server and its tables.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) condition: Condition,
    /// Number of the running server; a restart and a failover raise it.
    pub(crate) generation: u32,
    pub(crate) held: Vec<Message>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) tasks: BTreeMap<i64, Task>,
    pub(crate) pending: Vec<BTreeSet<i64>>,
    pub(crate) workers: BTreeMap<WorkerId, Registered>,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    /// Sessions of a server that was frozen when another took over. They never answer.
    pub(crate) silent: BTreeSet<SessionId>,
    /// Sessions that listen.
    pub(crate) listening: BTreeSet<SessionId>,
    /// Number of faults because of which new connections are refused.
    pub(crate) refusals: usize,
    /// Number of faults because of which LISTEN fails.
    pub(crate) deaf: usize,
    /// Number of advisory locks of each worker.
    pub(crate) alive: BTreeMap<WorkerId, u32>,
    pub(crate) schedules: Vec<Schedule>,
    pub(crate) fires: BTreeMap<(usize, Time), u32>,
    /// Number of committed effects of each task.
    pub(crate) effects: Vec<u8>,
    pub(crate) claimed: BTreeMap<WorkerId, BTreeSet<i64>>,
    /// How far the server's clock is behind.
    behind: Time,
    pub(crate) set_back_at: Time,
    next_session: SessionId,
    next_token: u64,
}

impl Server {
    pub(crate) fn new(schedules: usize) -> Self {
        let lane = |queue: &str, priority| Lane {
            queue: queue.to_owned(),
            priority,
            run_as: String::new(),
        };
        let lanes = vec![
            lane("import", Priority::Normal),
            lane("import", Priority::High),
            lane("mail", Priority::Low),
            lane("mail", Priority::Normal),
        ];
        let every = |n: usize| (60 + 30 * n as Time) * 1_000_000;
        Self {
            condition: Condition::Up,
            generation: 1,
            held: Vec::new(),
            pending: lanes.iter().map(|_| BTreeSet::new()).collect(),
            lanes,
            tasks: BTreeMap::new(),
            workers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            silent: BTreeSet::new(),
            listening: BTreeSet::new(),
            refusals: 0,
            deaf: 0,
            alive: BTreeMap::new(),
            schedules: (0..schedules)
                .map(|n| Schedule { every: every(n), next_at: every(n), locked: None })
                .collect(),
            fires: BTreeMap::new(),
            effects: vec![0],
            claimed: BTreeMap::new(),
            behind: 0,
            set_back_at: 0,
            next_session: 0,
            next_token: 0,
        }
    }

    pub(crate) fn connect(
        &mut self,
        id: WorkerId,
        worker: usize,
        incarnation: Incarnation,
    ) -> SessionId {
        self.next_session += 1;
        let session = Session {
            id,
            worker,
            incarnation,
            control: false,
            listens: false,
            open: None,
            busy: false,
            ticking: None,
        };
        self.sessions.insert(self.next_session, session);
        self.next_session
    }

    /// Returns the sessions of a worker's process.
    pub(crate) fn sessions_of(&self, worker: usize, incarnation: Incarnation) -> Vec<SessionId> {
        let of_process =
            |session: &Session| session.worker == worker && session.incarnation == incarnation;
        let sessions = self.sessions.iter().filter(|(_, session)| of_process(session));
        sessions.map(|(id, _)| *id).collect()
    }

    pub(crate) fn listen(&mut self, session: SessionId) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.listens = true;
            self.listening.insert(session);
        }
    }

    /// Ends a session: its locks are released, and its transaction is rolled back unless its commit
    /// is on the way to the disk.
    pub(crate) fn end_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        let worker = session.id;
        if session.control {
            let locks = self.alive.entry(worker).or_default();
            *locks = locks.saturating_sub(1);
            if *locks == 0 {
                self.alive.remove(&worker);
            }
        }
        if let Some((schedule, _)) = session.ticking {
            self.schedules[schedule].locked = None;
        }
        self.listening.remove(&id);
        if let Some(task) = session.open.and_then(|(task, _)| self.tasks.get_mut(&task))
            && task.locked == Some(id)
        {
            task.locked = None;
        }
    }

    pub(crate) fn enqueue(&mut self, lane: usize, duration: Time, now: Time) -> i64 {
        let id = i64::try_from(self.effects.len()).unwrap_or(i64::MAX);
        self.effects.push(0);
        let task = Task { lane, claim: None, pending_since: now, duration, locked: None };
        self.tasks.insert(id, task);
        self.pending[lane].insert(id);
        id
    }

    /// Sets the clock back. Only the ages of heartbeats depend on it.
    pub(crate) fn set_back(&mut self, by: Time, now: Time) {
        self.behind += by;
        self.set_back_at = now;
    }

    pub(crate) fn register(&mut self, worker: WorkerId, session: SessionId, now: Time) {
        let new = Registered { heartbeat: -1, at: now, behind: 0 };
        let row = self.workers.entry(worker).or_insert(new);
        row.heartbeat += 1;
        (row.at, row.behind) = (now, self.behind);
        if let Some(session) = self.sessions.get_mut(&session)
            && !session.control
        {
            session.control = true;
            *self.alive.entry(worker).or_default() += 1;
        }
    }

    /// Returns the tokens that are no longer valid; `None` if the worker is not registered.
    pub(crate) fn heartbeat(
        &mut self,
        worker: WorkerId,
        claims: &[(i64, u64)],
        now: Time,
    ) -> Option<Vec<u64>> {
        let row = self.workers.get_mut(&worker)?;
        row.heartbeat += 1;
        (row.at, row.behind) = (now, self.behind);
        let lost = claims.iter().filter(|(task, token)| !self.is_claimed(*task, *token));
        Some(lost.map(|(_, token)| *token).collect())
    }

    pub(crate) fn is_claimed(&self, task: i64, token: u64) -> bool {
        let claim = self.tasks.get(&task).and_then(|task| task.claim.as_ref());
        claim.is_some_and(|claim| claim.token == token)
    }

    pub(crate) fn peers(&self, me: WorkerId, unregistered: bool, now: Time) -> Vec<Peer> {
        let mut alive = self.alive.keys().peekable();
        let registered = self.workers.iter().filter(|(worker, _)| **worker != me);
        let mut peers: Vec<Peer> = registered
            .map(|(worker, row)| {
                while alive.next_if(|other| *other < worker).is_some() {}
                // The poll reports no age for a heartbeat in the future.
                let age = (now + row.behind).checked_sub(row.at + self.behind);
                Peer {
                    worker: *worker,
                    heartbeat: Some(row.heartbeat),
                    session_alive: alive.next_if(|other| *other == worker).is_some(),
                    heartbeat_age: age.map(Duration::from_micros),
                    last_heartbeat: Some(instant(row.at)),
                    heartbeat_interval: Some(HEARTBEAT_INTERVAL),
                }
            })
            .collect();
        if unregistered {
            let holders = self.claimed.iter().filter(|(worker, tasks)| {
                **worker != me && !tasks.is_empty() && !self.workers.contains_key(worker)
            });
            peers.extend(holders.map(|(worker, _)| Peer {
                worker: *worker,
                heartbeat: None,
                session_alive: false,
                heartbeat_age: None,
                last_heartbeat: None,
                heartbeat_interval: None,
            }));
        }
        peers
    }

    /// Claims tasks as `queue.claim` does, and returns for each the number of the session, the lane,
    /// the task, the token and the time since which the task was pending.
    pub(crate) fn claim(
        &mut self,
        worker: WorkerId,
        request: &Request,
        now: Time,
    ) -> Vec<(usize, usize, i64, u64)> {
        let Request::Claim { request, sessions } = request else { return Vec::new() };
        let mut picked = Vec::new();
        for range in &request.ranges {
            let Some(lane) = self.lanes.iter().position(|lane| *lane == range.lane) else {
                continue;
            };
            let TaskId(after) = range.after;
            let wanted = range.limit.min(sessions.len() - picked.len());
            picked.extend(self.pending[lane].range(after + 1..).take(wanted).map(|id| (lane, *id)));
        }
        picked.dedup();
        let mut claimed = Vec::new();
        for (n, (lane, id)) in picked.into_iter().enumerate() {
            if !self.pending[lane].remove(&id) {
                continue;
            }
            self.next_token += 1;
            let token = self.next_token;
            if let Some(task) = self.tasks.get_mut(&id) {
                task.claim = Some(Claim { worker, token, session: sessions[n], at: now });
            }
            self.claimed.entry(worker).or_default().insert(id);
            claimed.push((n, lane, id, token));
        }
        claimed
    }

    /// Makes a running task pending again.
    pub(crate) fn release(&mut self, id: i64, now: Time) {
        if let Some(task) = self.tasks.get_mut(&id)
            && let Some(claim) = task.claim.take()
        {
            task.pending_since = now;
            self.pending[task.lane].insert(id);
            self.unclaim(claim.worker, id);
        }
    }

    fn unclaim(&mut self, worker: WorkerId, id: i64) {
        if let Some(tasks) = self.claimed.get_mut(&worker) {
            tasks.remove(&id);
            if tasks.is_empty() {
                self.claimed.remove(&worker);
            }
        }
    }

    /// Completes a task whose row the session has locked.
    pub(crate) fn commit(&mut self, id: i64) {
        self.effects[usize::try_from(id).unwrap_or(0)] += 1;
        if let Some(Task { claim: Some(claim), .. }) = self.tasks.remove(&id) {
            self.unclaim(claim.worker, id);
        }
    }

    pub(crate) fn claims_of(&self, worker: WorkerId) -> Vec<i64> {
        self.claimed.get(&worker).map(|tasks| tasks.iter().copied().collect()).unwrap_or_default()
    }

    /// Returns whether the worker has sent no heartbeat since it was found dead.
    pub(crate) fn is_still_dead(&self, dead: DeadWorker) -> bool {
        self.workers.get(&dead.worker).map(|row| instant(row.at)) == dead.last_heartbeat
    }

    pub(crate) fn next_tick_in(&self, now: Time) -> Option<Time> {
        let next = self.schedules.iter().map(|schedule| schedule.next_at).min()?;
        Some(next.saturating_sub(now))
    }
}

fn instant(at: Time) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(at)
}
