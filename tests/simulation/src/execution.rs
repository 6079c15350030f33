//! Execution of requests at the simulated server.

use rand::RngExt;

use crate::bug::Bug;
use crate::event::{Event, Message, Reply, Request, SECOND, SessionId, Time, Wait};
use crate::server::{Condition, Schedule};
use crate::world::World;

impl World {
    pub(crate) fn arrive(&mut self, message: Message) {
        let (wait, w) = (message.wait, message.wait.worker);
        let worker = &mut self.workers[w];
        if worker.alive && worker.incarnation == wait.incarnation && worker.cut {
            worker.held.push(Event::Arrive(message));
            return;
        }
        if message.session.is_none() && self.refuses() {
            return self.fails(wait, &message.request);
        }
        match self.server.condition {
            Condition::Down => return self.fails(wait, &message.request),
            Condition::Frozen => {
                self.server.held.push(message);
                return;
            }
            Condition::Up => {}
        }
        let process_lives =
            self.workers[w].alive && self.workers[w].incarnation == wait.incarnation;
        let session = match message.session {
            Some(session) if self.server.sessions.contains_key(&session) => session,
            Some(session) if self.server.silent.contains(&session) => return,
            Some(_) => return self.fails(wait, &message.request),
            None if process_lives => {
                let id = self.workers[w].id;
                self.server.connect(id, w, wait.incarnation)
            }
            None => return,
        };
        if let Some(statement) = message.request.statement() {
            let polls = self.checks.statement(statement, self.now);
            if let Some(order) = &mut self.checks.order {
                order.push((wait.part, statement));
            }
            // On average, 8 % of the workers poll in a tenth of a second.
            if polls > self.options.workers as u64 / 2 + 10 {
                self.violated(&format!("{polls} polls in a tenth of a second"));
            }
        }
        if let Some(reply) = self.execute(session, wait, message.request) {
            self.answer(wait, reply, Some(session));
        }
    }

    /// Returns whether the server refuses a new session. When it has just come back, all clients
    /// connect at once, and most of them find too many connections.
    fn refuses(&mut self) -> bool {
        let crowded = self.now < self.crowded_until && self.server.condition == Condition::Up;
        self.server.refusals > 0 || crowded && self.rng.random_range(0..10) < 7
    }

    fn fails(&mut self, wait: Wait, request: &Request) {
        // A probe that fails proves nothing.
        let probe = matches!(request, Request::Probe { .. });
        let reply = if probe { Reply::Gone(false) } else { Reply::Failed };
        self.answer(wait, reply, None);
    }

    /// Executes a request. Returns `None` if the answer comes later.
    fn execute(&mut self, session: SessionId, wait: Wait, request: Request) -> Option<Reply> {
        let (now, id) = (self.now, self.workers[wait.worker].id);
        Some(match request {
            Request::Connect => Reply::Registered { generation: self.server.generation },
            Request::Register => {
                self.server.register(id, session, now);
                Reply::Registered { generation: self.server.generation }
            }
            Request::Heartbeat { claims } => {
                Reply::Heartbeat(self.server.heartbeat(id, &claims, now))
            }
            Request::Poll { peers, unregistered, pending } => {
                let peers = peers.then(|| self.server.peers(id, unregistered, now));
                self.checks.peers_read += peers.as_ref().map_or(0, Vec::len) as u64;
                let pending = !pending || self.server.pending.iter().any(|lane| !lane.is_empty());
                Reply::Polled { peers, pending, next_tick_in: self.server.next_tick_in(now) }
            }
            Request::Lanes => {
                let lanes = self.server.pending.iter().enumerate();
                Reply::Lanes(lanes.filter(|(_, ids)| !ids.is_empty()).map(|(n, _)| n).collect())
            }
            Request::Claim { .. } => {
                let claimed = self.server.claim(id, &request, now);
                self.claims(&claimed);
                Reply::Claimed(claimed)
            }
            Request::ReleaseUnknown { claims } => {
                let of_worker = self.server.claims_of(id).into_iter();
                let unknown: Vec<i64> = of_worker
                    .filter(|task| {
                        !claims
                            .iter()
                            .any(|(id, token)| id == task && self.server.is_claimed(*id, *token))
                    })
                    .collect();
                unknown.iter().for_each(|task| self.server.release(*task, now));
                Reply::Released(unknown.len())
            }
            Request::Listen if self.server.deaf > 0 => Reply::Failed,
            Request::Listen => {
                self.server.listen(session);
                Reply::Done
            }
            Request::TickBegin => Reply::Ticking(self.begin_tick(session)),
            Request::TickCommit => self.commit_tick(session),
            Request::NextTick => Reply::NextTick(self.server.next_tick_in(now)),
            Request::Reclaim { dead } => self.reclaim(dead),
            Request::Execute { task, token } => {
                return self.begin_task(session, wait, (task, token));
            }
            Request::Commit { task, token } => return self.complete(session, wait, (task, token)),
            Request::Resolve { task, token } => self.resolve_commit(task, token),
            Request::Return { task, token, session } => self.return_claim(task, token, session),
            Request::Probe { session } => Reply::Gone(!self.server.sessions.contains_key(&session)),
        })
    }

    /// Takes the next schedule that is due and not locked by another session.
    fn begin_tick(&mut self, session: SessionId) -> bool {
        let now = self.now;
        let unlocked = self.options.bug == Some(Bug::TickUnlocked);
        let due = |schedule: &Schedule| {
            schedule.next_at <= now && (unlocked || schedule.locked.is_none())
        };
        let Some(n) = self.server.schedules.iter().position(due) else { return false };
        let schedule = &mut self.server.schedules[n];
        let instant = schedule.next_at;
        if !unlocked {
            schedule.locked = Some(session);
        }
        if self.options.bug == Some(Bug::TickBeforeFire) {
            schedule.next_at += schedule.every;
        }
        if let Some(session) = self.server.sessions.get_mut(&session) {
            session.ticking = Some((n, instant));
        }
        true
    }

    fn commit_tick(&mut self, session: SessionId) -> Reply {
        let ticking = self.server.sessions.get_mut(&session).and_then(|s| s.ticking.take());
        let Some((n, instant)) = ticking else { return Reply::Failed };
        let schedule = &mut self.server.schedules[n];
        schedule.locked = None;
        schedule.next_at = schedule.next_at.max(instant + schedule.every);
        self.fires(n, instant);
        self.add_task();
        Reply::Done
    }

    fn reclaim(&mut self, dead: queue::reclaim::DeadWorker) -> Reply {
        let unchecked = self.options.bug == Some(Bug::ReturnUnchecked);
        if !unchecked && !self.server.is_still_dead(dead) {
            return Reply::Reclaimed { released: 0, remaining: 0 };
        }
        let keeps_backends = self.options.bug == Some(Bug::BackendsKept);
        let (mut released, mut remaining) = (0, 0);
        for id in self.server.claims_of(dead.worker) {
            let Some(task) = self.server.tasks.get(&id) else { continue };
            let Some(claim) = &task.claim else { continue };
            let (session, locked) = (claim.session, task.locked.is_some());
            if self.server.sessions.contains_key(&session) && !keeps_backends {
                let end = self.rng.random_range(500..20_000);
                self.events.add(self.now + end, Event::SessionGone(session));
                remaining += 1;
            } else if locked {
                remaining += 1;
            } else {
                self.reclaimed(dead.worker, id);
                self.server.release(id, self.now);
                released += 1;
            }
        }
        if remaining == 0 {
            self.server.workers.remove(&dead.worker);
        }
        Reply::Reclaimed { released, remaining }
    }

    fn begin_task(&mut self, session: SessionId, wait: Wait, task: (i64, u64)) -> Option<Reply> {
        let duration = self.server.tasks.get(&task.0).map_or(1000, |task| task.duration);
        self.executes(session, task.0);
        if let Some(state) = self.server.sessions.get_mut(&session) {
            state.open = Some(task);
            state.busy = true;
        }
        self.events.add(self.now + duration, Event::StatementDone { session, wait });
        None
    }

    pub(crate) fn statement_done(&mut self, session: SessionId, wait: Wait) {
        if self.server.condition == Condition::Frozen {
            let later = self.now + SECOND;
            return self.events.add(later, Event::StatementDone { session, wait });
        }
        let Some(state) = self.server.sessions.get_mut(&session) else { return };
        state.busy = false;
        let worker = &self.workers[wait.worker];
        if !worker.alive || worker.incarnation != wait.incarnation {
            return self.session_gone(session);
        }
        self.answer(wait, Reply::Done, Some(session));
    }

    fn complete(
        &mut self,
        session: SessionId,
        wait: Wait,
        (task, token): (i64, u64),
    ) -> Option<Reply> {
        let state = self.server.sessions.get_mut(&session)?;
        if state.open != Some((task, token)) {
            return Some(Reply::Failed);
        }
        if !self.server.is_claimed(task, token) {
            if let Some(state) = self.server.sessions.get_mut(&session) {
                state.open = None;
            }
            return Some(Reply::Lost);
        }
        if let Some(task) = self.server.tasks.get_mut(&task) {
            task.locked = Some(session);
        }
        let flush = self.rng.random_range(1000..6000);
        self.events.add(self.now + flush, Event::Flushed { session, wait });
        None
    }

    /// A completion is on disk.
    pub(crate) fn flushed(&mut self, session: SessionId, wait: Wait) {
        if self.server.condition == Condition::Frozen {
            let later = self.now + SECOND;
            return self.events.add(later, Event::Flushed { session, wait });
        }
        let Some(state) = self.server.sessions.get_mut(&session) else { return };
        if let Some((task, _)) = state.open.take() {
            self.server.commit(task);
            self.commits(task);
        }
        self.answer(wait, Reply::Committed, Some(session));
    }

    fn resolve_commit(&self, task: i64, token: u64) -> Reply {
        match self.server.tasks.get(&task) {
            None => Reply::Committed,
            Some(task) if task.locked.is_some() => Reply::Locked,
            Some(_) if self.server.is_claimed(task, token) => Reply::StillClaimed,
            Some(_) => Reply::Lost,
        }
    }

    fn return_claim(&mut self, task: i64, token: u64, session: SessionId) -> Reply {
        if !self.server.is_claimed(task, token) {
            return Reply::Lost;
        }
        let open = |state: &crate::server::Session| state.open == Some((task, token));
        if self.server.sessions.get(&session).is_some_and(open) {
            let end = self.rng.random_range(500..20_000);
            self.events.add(self.now + end, Event::SessionGone(session));
            return Reply::Locked;
        }
        self.server.release(task, self.now);
        Reply::Released(1)
    }

    /// Ends a session at the server, and tells its client.
    pub(crate) fn session_gone(&mut self, session: SessionId) {
        if self.server.condition == Condition::Frozen {
            return self.events.add(self.now + SECOND, Event::SessionGone(session));
        }
        let Some(state) = self.server.sessions.get(&session) else { return };
        // A commit on its way to the disk is not interrupted.
        let flushing = state.open.is_some_and(|(task, _)| {
            self.server.tasks.get(&task).is_some_and(|task| task.locked == Some(session))
        });
        if flushing {
            return self.events.add(self.now + 1000, Event::SessionGone(session));
        }
        let (worker, incarnation) = (state.worker, state.incarnation);
        self.server.end_session(session);
        let at = self.now + self.latency();
        self.events.add(at, Event::Closed { worker, incarnation, session });
    }

    pub(crate) fn enqueue(&mut self) {
        self.add_task();
        let rate = self.options.tasks_per_second.max(0.000_001);
        let mean = (SECOND as f64 / rate) as Time;
        let next = self.rng.random_range(1..2 * mean.max(1));
        if self.now + next < (self.options.seconds + 60) * SECOND {
            self.events.add(self.now + next, Event::Enqueue);
        }
    }

    /// Adds a task, and notifies the workers that listen. The tasks of one queue are short, so that
    /// readers take several of them at once; those of the other take up to two minutes.
    fn add_task(&mut self) {
        let lane = match self.rng.random_range(0..10) {
            0..3 => self.rng.random_range(0..2),
            _ => self.rng.random_range(2..self.server.lanes.len()),
        };
        let duration = match (lane, self.rng.random_range(0..100)) {
            (2.., _) => self.rng.random_range(1000..50_000),
            (_, 0..15) => self.rng.random_range(20 * SECOND..120 * SECOND),
            (_, 15..50) => self.rng.random_range(SECOND..20 * SECOND),
            _ => self.rng.random_range(100_000..SECOND),
        };
        self.server.enqueue(lane, duration, self.now);
        let listening: Vec<SessionId> = self.server.listening.iter().copied().collect();
        for session in listening {
            let Some(state) = self.server.sessions.get(&session) else { continue };
            let (worker, incarnation) = (state.worker, state.incarnation);
            self.checks.notifications += 1;
            let at = self.now + self.latency();
            self.events.add(at, Event::Notified { worker, incarnation, session });
        }
    }
}
