//! Plan of the faults, from the seed, and what each of them does.

use rand::RngExt;

use crate::event::{Event, Incarnation, Part, SECOND, SessionId, Time};
use crate::fault::{Fault, KINDS, Kind};
use crate::server::Condition;
use crate::worker::Worker;
use crate::world::World;

/// Time within which the tasks of a killed worker are pending again: the grace periods, two polls
/// of the sample of a large fleet, and the end of the backends.
const KILLED_BOUND: Time = 15 * SECOND;
/// The same for a stopped worker, or one that is cut off: the orphan timeout comes first.
pub(crate) const SILENT_BOUND: Time = 45 * SECOND;
/// Time for which messages are slow after the server has come back.
const SLOW_START: Time = 3 * SECOND;
/// Time for which most new sessions are refused then.
const CROWDED_START: Time = 6 * SECOND;
/// Time within which every worker polls after the server has come back: the heartbeat, which may
/// have been sent just before, ends after 5 s and closes all sessions.
const RETURN_BOUND: Time = 20 * SECOND;

impl World {
    pub(crate) fn plan_faults(&mut self) {
        let mut at = 60 * SECOND;
        let end = self.options.seconds * SECOND;
        loop {
            at += self.rng.random_range(5 * SECOND..150 * SECOND);
            // From one to ninety seconds; half of the faults take less than ten.
            let length = (SECOND as f64 * 90_f64.powf(self.rng.random())) as Time;
            if at + length > end {
                return;
            }
            let kind = KINDS[self.rng.random_range(0..KINDS.len())];
            // Only an orphan timeout later do the others look dead to a worker that was stopped.
            let length = if kind == Kind::StopInFreeze { length.max(35 * SECOND) } else { length };
            self.plan_fault(kind, at, length);
        }
    }

    /// Plans crashes of single workers for a measurement of the time until their tasks are pending
    /// again.
    pub(crate) fn plan_kills(&mut self) {
        let end = self.options.seconds * SECOND;
        let every = 5 * SECOND;
        for at in (40 * SECOND..end.saturating_sub(20 * SECOND)).step_by(every as usize) {
            let n = self.faults.len();
            self.plan_fault(Kind::Kill, at, SECOND);
            self.faults[n].many = 1;
        }
    }

    fn plan_fault(&mut self, kind: Kind, at: Time, length: Time) {
        let many = match self.rng.random_range(0..4) {
            0 => self.options.workers / 4 + 1,
            1 => 3.min(self.options.workers),
            _ => 1,
        };
        let n = self.faults.len();
        self.faults.push(Fault { kind, ends_at: at + length, many, workers: Vec::new() });
        self.events.add(at, Event::FaultBegins(n));
        self.events.add(at + length, Event::FaultEnds(n));
    }

    /// Draws the workers of a fault, mostly among those that have tasks.
    fn draw_workers(&mut self, many: usize) -> Vec<usize> {
        let busy: Vec<usize> = (0..self.workers.len())
            .filter(|w| self.workers[*w].alive && !self.workers[*w].in_flight.is_empty())
            .collect();
        let mut workers: Vec<usize> = Vec::new();
        for _ in 0..many {
            let worker = if busy.is_empty() || self.rng.random_range(0..4) == 0 {
                self.rng.random_range(0..self.workers.len())
            } else {
                busy[self.rng.random_range(0..busy.len())]
            };
            workers.push(worker);
        }
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    pub(crate) fn fault_begins(&mut self, n: usize) {
        let Fault { kind, ends_at, many, .. } = self.faults[n];
        let workers = self.draw_workers(many);
        self.faults[n].workers.clone_from(&workers);
        self.checks.server_faults += usize::from(kind.of_server());
        match kind {
            Kind::Kill => workers.iter().for_each(|w| self.kill(*w)),
            Kind::Stop | Kind::StopInFreeze => {
                for w in workers {
                    self.workers[w].stopped = true;
                    self.expect_reclaim(w, ends_at, SILENT_BOUND);
                }
                if kind == Kind::StopInFreeze {
                    self.leaves(n, Condition::Frozen);
                }
            }
            Kind::Cut => {
                for w in workers {
                    self.workers[w].cut = true;
                    self.expect_reclaim(w, ends_at, SILENT_BOUND);
                    let incarnation = self.workers[w].incarnation;
                    let timeout = Event::CutTimeout { worker: w, incarnation };
                    self.events.add(self.now + 10 * SECOND, timeout);
                }
            }
            Kind::Crash | Kind::Restart => {
                if self.leaves(n, Condition::Down) {
                    self.lose_sessions(kind);
                }
            }
            Kind::Freeze | Kind::Failover => {
                self.leaves(n, Condition::Frozen);
            }
            Kind::Deploy => workers.iter().for_each(|w| self.drain(*w)),
            Kind::Flap => self.end_control_session(workers[0], ends_at),
            Kind::Refuse => {
                self.server.refusals += 1;
                workers.iter().for_each(|w| self.end_control_session(*w, self.now));
            }
            Kind::Slow => {
                self.slow += 1;
                workers.iter().for_each(|w| self.end_control_session(*w, ends_at));
            }
            Kind::Deaf => {
                self.server.deaf += 1;
                self.end_sessions(|session| session.listens);
            }
            Kind::EndSessions => self.end_half_of_the_sessions(),
            // By up to half an hour.
            Kind::SetBack => self.server.set_back(20 * (ends_at - self.now), self.now),
        }
    }

    pub(crate) fn fault_ends(&mut self, n: usize) {
        let kind = self.faults[n].kind;
        let mut workers = std::mem::take(&mut self.faults[n].workers);
        workers.retain(|w| !self.is_held(kind, *w));
        if kind.of_server() {
            self.checks.server_faults -= 1;
            self.checks.server_back_at = self.now;
        }
        match kind {
            Kind::Stop | Kind::StopInFreeze => {
                if kind == Kind::StopInFreeze {
                    self.comes_back(n);
                }
                self.reader_is_idle();
                for w in workers {
                    self.workers[w].stopped = false;
                    self.workers[w].disturbed_at = self.now;
                    for event in std::mem::take(&mut self.workers[w].deferred) {
                        self.events.add(self.now, event);
                    }
                }
            }
            Kind::Cut => {
                self.reader_is_idle();
                for w in workers {
                    self.workers[w].cut = false;
                    self.workers[w].disturbed_at = self.now;
                    for event in std::mem::take(&mut self.workers[w].held) {
                        let at = self.now + self.latency();
                        self.events.add(at, event);
                    }
                }
            }
            Kind::Crash | Kind::Restart | Kind::Freeze | Kind::Failover => self.comes_back(n),
            // A worker that has not ended by now is killed.
            Kind::Deploy => {
                for w in workers {
                    if self.workers[w].alive && self.workers[w].draining {
                        self.kill(w);
                    }
                }
            }
            Kind::Refuse => {
                self.server.refusals -= 1;
                // Other sessions may have ended before, or during the fault.
                let shut_out = |worker: &&mut Worker| !self.server.alive.contains_key(&worker.id);
                self.workers
                    .iter_mut()
                    .filter(shut_out)
                    .for_each(|worker| worker.disturbed_at = self.now);
            }
            Kind::Slow => self.slow -= 1,
            Kind::Deaf => self.server.deaf -= 1,
            Kind::Kill | Kind::Flap | Kind::EndSessions | Kind::SetBack => {}
        }
    }

    /// Returns whether another fault keeps the worker in the state that a fault of this kind ends.
    fn is_held(&self, kind: Kind, w: usize) -> bool {
        let state = |kind| (matches!(kind, Kind::Stop | Kind::StopInFreeze), kind == Kind::Cut);
        state(kind) != (false, false)
            && self.faults.iter().any(|it| state(it.kind) == state(kind) && it.workers.contains(&w))
    }

    /// The server stops to answer, unless another fault has made it so. Returns whether this fault
    /// has.
    fn leaves(&mut self, n: usize, condition: Condition) -> bool {
        let up = self.server.condition == Condition::Up;
        if up {
            self.server.condition = condition;
            self.condition_of = Some(n);
        }
        up
    }

    /// The server answers again, if this fault is the reason why it does not.
    fn comes_back(&mut self, n: usize) {
        if self.condition_of != Some(n) {
            return;
        }
        self.condition_of = None;
        let kind = self.faults[n].kind;
        if kind == Kind::Failover {
            self.lose_sessions(kind);
        }
        self.server.condition = Condition::Up;
        for message in std::mem::take(&mut self.server.held) {
            if kind != Kind::Failover {
                let at = self.now + self.latency();
                self.events.add(at, Event::Arrive(message));
            } else if message.session.is_none() {
                self.answer(message.wait, crate::event::Reply::Failed, None);
            }
        }
        let since = self.now;
        // A server that was only frozen has its buffers still.
        if !matches!(kind, Kind::Freeze | Kind::StopInFreeze) {
            self.slow_until = since + SLOW_START;
        }
        self.crowded_until = since + CROWDED_START;
        self.events.add(since + RETURN_BOUND, Event::ExpectPolls { since });
    }

    /// All sessions end with the server. Completions on their way to the disk may have reached it. In
    /// a crash and a failover, claims that were not on disk are lost, and the unlogged table of
    /// workers is empty afterwards. Sessions of a server that froze never end.
    fn lose_sessions(&mut self, kind: Kind) {
        let sessions: Vec<SessionId> = self.server.sessions.keys().copied().collect();
        for session in sessions {
            let state = &self.server.sessions[&session];
            let (worker, incarnation) = (state.worker, state.incarnation);
            let task = state.open.map(|(task, _)| task);
            let locked = |task: &i64| {
                self.server.tasks.get(task).is_some_and(|task| task.locked == Some(session))
            };
            if let Some(task) = task.filter(locked)
                && self.rng.random()
            {
                self.server.commit(task);
                self.commits(task);
            }
            self.server.end_session(session);
            if kind == Kind::Failover {
                self.server.silent.insert(session);
            } else {
                let at = self.now + self.latency();
                self.events.add(at, Event::Closed { worker, incarnation, session });
            }
        }
        self.server.generation += 1;
        if kind == Kind::Restart {
            return;
        }
        let since = self.now.saturating_sub(SECOND / 5);
        let recent =
            |task: &crate::server::Task| task.claim.as_ref().is_some_and(|claim| claim.at >= since);
        let tasks = self.server.tasks.iter().filter(|(_, task)| recent(task));
        let unflushed: Vec<i64> = tasks.map(|(id, _)| *id).collect();
        for task in unflushed {
            if self.rng.random() {
                self.server.release(task, self.now);
            }
        }
        self.server.workers.clear();
    }

    pub(crate) fn kill(&mut self, w: usize) {
        if !self.workers[w].alive {
            return;
        }
        // Without a network, the server does not notice the end of the sessions.
        let bound = if self.workers[w].cut { SILENT_BOUND } else { KILLED_BOUND };
        self.expect_reclaim(w, Time::MAX, bound);
        let id = self.workers[w].id;
        self.checks.killed.insert(id, self.now);
        self.ends(w, false);
        let restart = self.rng.random_range(SECOND..30 * SECOND);
        self.events.add(self.now + restart, Event::Start { worker: w });
    }

    /// Expects the tasks of a worker to be pending again within the bound, if the fault lasts as
    /// long.
    fn expect_reclaim(&mut self, w: usize, ends_at: Time, bound: Time) {
        let id = self.workers[w].id;
        let claims = self.server.claims_of(id).into_iter();
        let tokens = claims.filter_map(|task| {
            let claim = self.server.tasks.get(&task)?.claim.as_ref()?;
            Some((task, claim.token))
        });
        let tasks: Vec<(i64, u64)> = tokens.collect();
        if !tasks.is_empty() && self.now + bound < ends_at {
            let since = self.now;
            self.events.add(self.now + bound, Event::ExpectRunnable { tasks, since });
        }
    }

    /// The client's connections time out, and so do those of the server, if the network is still
    /// cut.
    pub(crate) fn cut_timeout(&mut self, w: usize, incarnation: Incarnation) {
        let worker = &self.workers[w];
        if !worker.cut || worker.incarnation != incarnation || !worker.alive {
            return;
        }
        let sessions = self.server.sessions_of(w, incarnation);
        // A connection that is being established is tried again until the network is back.
        let connects = |event: &Event| match event {
            Event::Arrive(message) => message.session.is_none(),
            _ => false,
        };
        self.workers[w].held.retain(connects);
        for session in sessions {
            let at = self.now + self.rng.random_range(0..30 * SECOND);
            self.events.add(at, Event::SessionGone(session));
            // Not through the network: the client gives up by itself.
            if self.workers[w].stopped {
                let closed = Event::Closed { worker: w, incarnation, session };
                self.workers[w].deferred.push(closed);
            } else {
                self.closed(w, session);
            }
        }
    }

    fn drain(&mut self, w: usize) {
        if !self.workers[w].alive || self.workers[w].stopped || self.workers[w].cut {
            return;
        }
        self.workers[w].draining = true;
        self.workers[w].idle.clear();
        self.no_wait(w, Part::Scheduler);
        self.drained(w);
    }

    /// Ends the control session of a worker, and again every four seconds.
    pub(crate) fn end_control_session(&mut self, w: usize, until: Time) {
        let found = self.workers[w].control;
        if let Some(session) = found.filter(|_| self.server.condition == Condition::Up) {
            self.events.add(self.now, Event::SessionGone(session));
            self.workers[w].control_ended = true;
        }
        if self.now + 4 * SECOND < until {
            self.events.add(self.now + 4 * SECOND, Event::EndBackend { worker: w, until });
        }
    }

    fn end_sessions(&mut self, which: impl Fn(&crate::server::Session) -> bool) {
        let all = self.server.sessions.iter().filter(|(_, session)| which(session));
        let sessions: Vec<SessionId> = all.map(|(id, _)| *id).collect();
        for session in sessions {
            self.events.add(self.now, Event::SessionGone(session));
        }
    }

    fn end_half_of_the_sessions(&mut self) {
        let all = self.server.sessions.iter();
        let of_tasks = all.filter(|(_, session)| !session.listens && !session.control);
        let mut sessions: Vec<SessionId> = of_tasks.map(|(id, _)| *id).collect();
        sessions.retain(|_| self.rng.random());
        for session in sessions {
            self.events.add(self.now, Event::SessionGone(session));
        }
    }
}
