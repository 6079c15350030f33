//! The simulated fleet: its clock, its network and its processes.

use std::time::{Duration, Instant};

use fleet_decisions::timing::{
    ANSWER_TIMEOUT, HEARTBEAT_INTERVAL, MIN_HEARTBEAT_TIMEOUT, PROBE_INTERVAL,
    REGISTRATION_TIMEOUT, SESSION_TIMEOUT,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::bug::Bug;
use crate::counts::Checks;
use crate::event::{Event, Events, Message, Part, Reply, Request, SECOND, SessionId, Time, Wait};
use crate::fault::Fault;
use crate::server::Server;
use crate::worker::{Input, Phase, Worker, index, part};

/// Faults to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// None.
    None,
    /// Single workers are killed.
    Kills,
    /// All kinds.
    All,
}

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Seed of everything that is random.
    pub seed: u64,
    /// Number of workers.
    pub workers: usize,
    /// Number of readers of each worker.
    pub readers: usize,
    /// Virtual time until the faults end, in seconds.
    pub seconds: u64,
    /// Tasks enqueued per second.
    pub tasks_per_second: f64,
    /// Faults to inject.
    pub faults: Faults,
    /// A planted bug.
    pub bug: Option<Bug>,
    /// Whether every event is written to standard error.
    pub trace: bool,
}

pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) now: Time,
    pub(crate) base: Instant,
    pub(crate) events: Events,
    pub(crate) rng: StdRng,
    pub(crate) server: Server,
    pub(crate) workers: Vec<Worker>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) checks: Checks,
    pub(crate) next_worker: u128,
    /// Number of faults that make messages slow.
    pub(crate) slow: usize,
    /// Until when messages are slow because the server has just come back.
    pub(crate) slow_until: Time,
    /// Until when most new sessions are refused because the server has just come back.
    pub(crate) crowded_until: Time,
    /// The fault because of which the server does not answer.
    pub(crate) condition_of: Option<usize>,
    hash: u64,
}

/// Returns a source of the same number again and again.
pub(crate) fn constant() -> StdRng {
    StdRng::seed_from_u64(0)
}

impl World {
    pub(crate) fn new(options: Options) -> Self {
        let base = Instant::now();
        let mut world = Self {
            options,
            now: 0,
            base,
            events: Events::default(),
            rng: StdRng::seed_from_u64(options.seed),
            server: Server::new(5),
            workers: Vec::new(),
            faults: Vec::new(),
            checks: Checks::default(),
            next_worker: 0,
            slow: 0,
            slow_until: 0,
            crowded_until: 0,
            condition_of: None,
            hash: 0xcbf2_9ce4_8422_2325,
        };
        for w in 0..options.workers {
            let worker = Worker::new(0, 0, options.readers, base, options.bug);
            world.workers.push(worker);
            let at = world.rng.random_range(0..10 * SECOND);
            world.events.add(at, Event::Start { worker: w });
        }
        world.events.add(12 * SECOND, Event::Enqueue);
        match options.faults {
            Faults::None => {}
            Faults::Kills => world.plan_kills(),
            Faults::All => world.plan_faults(),
        }
        world
    }

    /// Simulates until `until`, or until an invariant is violated.
    pub(crate) fn run_until(&mut self, until: Time) {
        while self.checks.violation.is_none() && self.events.next_at().is_some_and(|at| at <= until)
        {
            let Some((at, event)) = self.events.next() else { return };
            self.now = at;
            self.happens(event);
        }
        self.now = until.max(self.now);
    }

    fn happens(&mut self, event: Event) {
        self.record(&event);
        match event {
            Event::Arrive(message) => self.arrive(message),
            Event::StatementDone { session, wait } => self.statement_done(session, wait),
            Event::Flushed { session, wait } => self.flushed(session, wait),
            Event::SessionGone(session) => self.session_gone(session),
            Event::Enqueue => self.enqueue(),
            Event::FaultBegins(n) => self.fault_begins(n),
            Event::FaultEnds(n) => self.fault_ends(n),
            Event::Start { worker } => self.start(worker),
            Event::CutTimeout { worker, incarnation } => self.cut_timeout(worker, incarnation),
            Event::EndBackend { worker, until } => self.end_control_session(worker, until),
            Event::ExpectRunnable { tasks, since } => self.expect_runnable(&tasks, since),
            Event::ExpectPolls { since } => self.expect_polls(since),
            at_worker => self.at_worker(at_worker),
        }
    }

    /// Events are hashed, so that two runs can be compared.
    fn record(&mut self, event: &Event) {
        let (kind, who): (u64, u64) = match event {
            Event::Arrive(message) => (1, message.wait.worker as u64),
            Event::Answer { wait, .. } => (2, wait.worker as u64),
            Event::Timer(wait) => (3, wait.worker as u64),
            Event::Deadline(wait, _) => (4, wait.worker as u64),
            Event::Closed { session, .. } => (5, *session),
            Event::Notified { session, .. } => (6, *session),
            Event::StatementDone { session, .. } => (7, *session),
            Event::Flushed { session, .. } => (8, *session),
            Event::SessionGone(session) => (9, *session),
            Event::Enqueue => (10, 0),
            Event::FaultBegins(n) | Event::FaultEnds(n) => (11, *n as u64),
            Event::Start { worker } => (12, *worker as u64),
            Event::CutTimeout { worker, .. } | Event::EndBackend { worker, .. } => {
                (13, *worker as u64)
            }
            Event::ExpectRunnable { since, .. } => (14, *since),
            Event::ExpectPolls { since } => (15, *since),
        };
        for part in [self.now, kind, who] {
            self.hash = (self.hash ^ part).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
        if self.options.trace {
            eprintln!("{:>16.6} {event:?}", self.now as f64 / SECOND as f64);
        }
    }

    pub(crate) fn trace_hash(&self) -> u64 {
        self.hash
    }

    /// Delivers an event to a process, unless the process has ended, is stopped or is cut off.
    fn at_worker(&mut self, event: Event) {
        let (w, incarnation, remote) = match &event {
            Event::Answer { wait, .. } => (wait.worker, wait.incarnation, true),
            Event::Timer(wait) | Event::Deadline(wait, _) => (wait.worker, wait.incarnation, false),
            Event::Closed { worker, incarnation, .. }
            | Event::Notified { worker, incarnation, .. } => (*worker, *incarnation, true),
            _ => return,
        };
        let worker = &mut self.workers[w];
        if !worker.alive || worker.incarnation != incarnation {
            return;
        }
        if worker.stopped {
            worker.deferred.push(event);
            return;
        }
        if worker.cut && remote {
            worker.held.push(event);
            return;
        }
        match event {
            Event::Answer { wait, reply, session } => {
                if self.is_current(wait) {
                    let keeps = matches!(reply, Reply::Gone(false));
                    if !keeps {
                        self.workers[w].asking[index(wait.part)] = None;
                        self.no_wait(w, wait.part);
                    }
                    self.step(w, wait.part, Input::Answer(reply, session));
                }
                // The client has given up the connection, or has another one.
                if let Some(session) = session.filter(|session| !self.workers[w].owns(*session)) {
                    self.close(w, session);
                }
            }
            Event::Timer(wait) if self.is_current(wait) => self.step(w, wait.part, Input::Timer),
            Event::Deadline(wait, at) if self.deadline_passed(wait, at) => {
                if !matches!(wait.part, Part::Reader(_)) {
                    self.workers[w].asking[index(wait.part)] = None;
                }
                self.step(w, wait.part, Input::Deadline);
            }
            Event::Closed { session, .. } => self.closed(w, session),
            Event::Notified { session, .. } if self.workers[w].listener == Some(session) => {
                self.notified(w);
            }
            _ => {}
        }
    }

    fn is_current(&self, wait: Wait) -> bool {
        self.workers[wait.worker].waits[index(wait.part)] == wait.number
    }

    pub(crate) fn step(&mut self, w: usize, part: Part, input: Input) {
        match part {
            Part::Heartbeat => self.heartbeat(w, input),
            Part::Poll => self.poll(w, input),
            Part::Claimer => self.claimer(w, input),
            Part::Listener => self.listener(w, input),
            Part::Scheduler => self.scheduler(w, input),
            Part::Reclaimer => self.reclaimer(w, input),
            Part::Reader(n) => self.reader(w, n, input),
        }
    }

    /// The client learns that a session has ended.
    pub(crate) fn closed(&mut self, w: usize, session: SessionId) {
        let was_control = self.workers[w].control == Some(session);
        let was_listener = self.workers[w].listener == Some(session);
        let reader = self.workers[w].idle.iter().find(|(_, idle)| *idle == session).copied();
        self.workers[w].forget(session);
        for n in 0..self.workers[w].asking.len() {
            if self.workers[w].asking[n] == Some(Some(session)) {
                self.workers[w].asking[n] = None;
                self.step(w, part(n), Input::Answer(Reply::Failed, None));
            }
        }
        if was_control && self.workers[w].phases[0] == Phase::Waiting {
            self.step(w, Part::Heartbeat, Input::Timer);
        }
        if was_listener {
            self.step(w, Part::Listener, Input::Answer(Reply::Failed, None));
        }
        if let Some((reader, _)) = reader {
            self.step(w, Part::Reader(reader), Input::Timer);
        }
    }

    /// Closes all sessions but the control session, as after a registration at another server.
    pub(crate) fn close_all(&mut self, w: usize) {
        let worker = &self.workers[w];
        let mut sessions: Vec<SessionId> =
            worker.idle.iter().map(|(_, session)| *session).collect();
        sessions.extend(worker.readers.iter().filter_map(|reader| reader.session));
        sessions.extend([worker.pool, worker.listener, worker.scheduler].into_iter().flatten());
        sessions.extend(worker.claimer.map(|(session, _)| session));
        // Also those that another part has given up meanwhile.
        let asked = worker.asking.iter().skip(index(Part::Heartbeat) + 1);
        sessions.extend(asked.flatten().flatten());
        sessions.sort_unstable();
        sessions.dedup();
        for session in sessions {
            // First, because the parts that use the session have to learn of its end.
            self.closed(w, session);
            self.close(w, session);
        }
    }

    /// Closes a session from the client's side.
    pub(crate) fn close(&mut self, w: usize, session: SessionId) {
        self.workers[w].forget(session);
        if self.server.sessions.contains_key(&session) {
            let delay = if self.workers[w].cut { 20 * SECOND } else { self.latency() };
            self.events.add(self.now + delay, Event::SessionGone(session));
        }
    }

    pub(crate) fn set_phase(&mut self, w: usize, part: Part, phase: Phase) {
        self.workers[w].phases[index(part)] = phase;
    }

    /// Makes earlier waits of the part invalid.
    pub(crate) fn no_wait(&mut self, w: usize, part: Part) -> Wait {
        let worker = &mut self.workers[w];
        worker.waits[index(part)] += 1;
        let number = worker.waits[index(part)];
        Wait { worker: w, incarnation: worker.incarnation, part, number }
    }

    pub(crate) fn wake_in(&mut self, w: usize, part: Part, wait: Duration) {
        let at = self.now + self.global(w, wait);
        self.wake_at(w, part, at);
    }

    pub(crate) fn wake_at(&mut self, w: usize, part: Part, at: Time) {
        let wait = self.no_wait(w, part);
        self.workers[w].asking[index(part)] = None;
        self.events.add(at.max(self.now), Event::Timer(wait));
    }

    /// Sends a request; without a session, on a new one.
    pub(crate) fn ask(
        &mut self,
        w: usize,
        part: Part,
        session: Option<SessionId>,
        request: Request,
    ) {
        let wait = self.no_wait(w, part);
        self.workers[w].asking[index(part)] = Some(session);
        let limit = self.limit(part, &request);
        // A connection takes two more round trips.
        let trips = if session.is_some() { 1 } else { 5 };
        let delay: Time = (0..trips).map(|_| self.latency()).sum();
        self.events.add(self.now + delay, Event::Arrive(Message { wait, session, request }));
        if let Some(limit) = limit {
            self.deadline(w, part, limit);
        }
    }

    /// Returns how long the worker waits for an answer.
    fn limit(&self, part: Part, request: &Request) -> Option<Duration> {
        Some(match request {
            Request::Poll { .. } if self.options.bug == Some(Bug::FrozenPrimary) => return None,
            Request::Register | Request::Listen => REGISTRATION_TIMEOUT,
            Request::Heartbeat { .. } => HEARTBEAT_INTERVAL.max(MIN_HEARTBEAT_TIMEOUT),
            Request::Execute { .. } | Request::Commit { .. } => PROBE_INTERVAL,
            Request::Connect if matches!(part, Part::Reader(_)) => SESSION_TIMEOUT,
            _ => ANSWER_TIMEOUT,
        })
    }

    /// Asks from another session whether the backend of a reader still exists.
    pub(crate) fn probe(&mut self, w: usize, n: usize) {
        let part = Part::Reader(n);
        let number = self.workers[w].waits[index(part)];
        let wait = Wait { worker: w, incarnation: self.workers[w].incarnation, part, number };
        let (pool, latency) = (self.workers[w].pool, self.latency());
        let session = self.workers[w].readers[n].session.unwrap_or_default();
        let message = Message { wait, session: pool, request: Request::Probe { session } };
        self.events.add(self.now + latency, Event::Arrive(message));
        self.deadline(w, part, PROBE_INTERVAL);
    }

    /// Limits the current wait of the part. Nearly all requests are answered long before, so a part
    /// has one event for its deadline, which is added again if it comes too early.
    fn deadline(&mut self, w: usize, part: Part, limit: Duration) {
        let at = self.now + self.global(w, limit);
        let worker = &mut self.workers[w];
        let (incarnation, number) = (worker.incarnation, worker.waits[index(part)]);
        let deadline = &mut worker.deadlines[index(part)];
        (deadline.at, deadline.number) = (at, number);
        if deadline.event_at.is_none_or(|event_at| event_at > at) {
            deadline.event_at = Some(at);
            self.events.add(at, Event::Deadline(Wait { worker: w, incarnation, part, number }, at));
        }
    }

    /// Returns whether the current wait of the part has taken too long. `event_at`: the time of the
    /// event.
    fn deadline_passed(&mut self, wait: Wait, event_at: Time) -> bool {
        let worker = &mut self.workers[wait.worker];
        let current = worker.waits[index(wait.part)];
        let deadline = &mut worker.deadlines[index(wait.part)];
        if deadline.event_at != Some(event_at) {
            return false;
        }
        deadline.event_at = None;
        if deadline.number == current && deadline.at > self.now {
            let at = deadline.at;
            deadline.event_at = Some(at);
            self.events.add(at, Event::Deadline(wait, at));
        }
        deadline.number == current && deadline.at <= self.now
    }

    /// Lets the part wait after a failure.
    pub(crate) fn back_off(&mut self, w: usize, part: Part) {
        let backoff = &mut self.workers[w].backoffs[index(part)];
        let wait = if self.options.bug == Some(Bug::Lockstep) {
            backoff.step(&mut constant())
        } else {
            backoff.step(&mut self.rng)
        };
        self.set_phase(w, part, Phase::Backoff);
        self.wake_in(w, part, wait);
    }

    /// Returns the time that one message takes: mostly half a millisecond, rarely much longer.
    pub(crate) fn latency(&mut self) -> Time {
        match self.rng.random_range(0..1000) {
            _ if self.slow > 0 || self.now < self.slow_until => {
                self.rng.random_range(1000..400_000)
            }
            0 => self.rng.random_range(20_000..200_000),
            _ => self.rng.random_range(200..800),
        }
    }

    /// Returns the time as the worker's clock has it.
    pub(crate) fn local(&self, w: usize) -> Instant {
        let drift = self.workers[w].drift;
        let now = i64::try_from(self.now).unwrap_or(i64::MAX);
        let local = now + now / 1000 * drift / 1000;
        self.base + Duration::from_secs(3600) + Duration::from_micros(local.unsigned_abs())
    }

    /// Returns how long a duration of the worker's clock takes.
    pub(crate) fn global(&self, w: usize, duration: Duration) -> Time {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 2);
        let drift = self.workers[w].drift;
        // Rounded up, so that a timer never ends early.
        (micros - micros / 1000 * drift / 1000).unsigned_abs() + 2
    }

    /// Starts a process.
    fn start(&mut self, w: usize) {
        let old = &self.workers[w];
        if old.alive {
            return;
        }
        let (incarnation, cut) = (old.incarnation + 1, old.cut);
        let disturbed_at = old.disturbed_at;
        self.next_worker += 1;
        let readers = self.options.readers;
        let now = self.local(w);
        let mut worker = Worker::new(self.next_worker, incarnation, readers, now, self.options.bug);
        (worker.alive, worker.cut, worker.disturbed_at) = (true, cut, disturbed_at);
        worker.last_poll = self.now;
        self.workers[w] = worker;
        self.workers[w].drift = self.rng.random_range(-200..=200);
        self.set_phase(w, Part::Heartbeat, Phase::Backoff);
        self.step(w, Part::Heartbeat, Input::Timer);
        self.step(w, Part::Poll, Input::Timer);
        self.set_phase(w, Part::Listener, Phase::Backoff);
        self.step(w, Part::Listener, Input::Timer);
        self.claimer_continue(w);
        for n in 0..readers {
            self.reader_continue(w, n);
        }
    }

    /// Ends a graceful stop once no task is in flight.
    pub(crate) fn drained(&mut self, w: usize) {
        if !self.workers[w].in_flight.is_empty() || !self.workers[w].draining {
            return;
        }
        let id = self.workers[w].id;
        self.server.workers.remove(&id);
        self.checks.statement("deregister", self.now);
        self.ends(w, true);
        let restart = self.rng.random_range(SECOND..5 * SECOND);
        self.events.add(self.now + restart, Event::Start { worker: w });
    }

    /// Ends a process: the machine closes its connections.
    pub(crate) fn ends(&mut self, w: usize, graceful: bool) {
        self.workers[w].alive = false;
        self.workers[w].deferred.clear();
        self.workers[w].held.clear();
        let incarnation = self.workers[w].incarnation;
        for session in self.server.sessions_of(w, incarnation) {
            // The backend of a running statement notices nothing until the statement ends.
            if !self.server.sessions[&session].busy || graceful {
                let latency = self.latency();
                let delay = if self.workers[w].cut { 20 * SECOND } else { latency };
                self.events.add(self.now + delay, Event::SessionGone(session));
            }
        }
    }

    pub(crate) fn answer(&mut self, wait: Wait, reply: Reply, session: Option<SessionId>) {
        let at = self.now + self.latency();
        self.events.add(at, Event::Answer { wait, reply, session });
    }
}
