//! Readers, as `worker/src/attempt/`: each runs its tasks one after another in its own session.

use std::time::Duration;

use crate::event::{Part, Reply, Request};
use crate::worker::{Input, Phase, index};
use crate::world::World;

/// Time budget of a chain.
const BUDGET: Duration = Duration::from_millis(100);

impl World {
    /// Runs the next task of the reader, or registers the reader as idle.
    pub(crate) fn reader_continue(&mut self, w: usize, n: usize) {
        let part = Part::Reader(n);
        let now = self.now;
        let worker = &mut self.workers[w];
        let reader = &mut worker.readers[n];
        if let Some(held) = reader.batch.front().copied() {
            let Some(session) = reader.session.filter(|session| *session == reader.claimed_for)
            else {
                return self.return_task(w, n);
            };
            reader.begun = now;
            self.set_phase(w, part, Phase::Executing);
            let request = Request::Execute { task: held.task, token: held.token };
            return self.ask(w, part, Some(session), request);
        }
        if worker.draining {
            self.no_wait(w, part);
            self.set_phase(w, part, Phase::Waiting);
            return self.drained(w);
        }
        let Some(session) = reader.session else {
            // Readers connect after the claimer.
            if worker.claimer.is_none() {
                reader.retries = Phase::Waiting;
                self.set_phase(w, part, Phase::Backoff);
                return self.wake_in(w, part, Duration::from_millis(500));
            }
            self.set_phase(w, part, Phase::Connecting);
            return self.ask(w, part, None, Request::Connect);
        };
        worker.backoffs[index(part)].reset();
        self.no_wait(w, part);
        self.set_phase(w, part, Phase::Waiting);
        self.reader_is_idle();
        self.workers[w].idle.push((n, session));
        if self.workers[w].phases[index(Part::Claimer)] == Phase::Waiting {
            self.claimer_continue(w);
        }
    }

    /// Gives a task back that was not started, or whose session has ended.
    fn return_task(&mut self, w: usize, n: usize) {
        let worker = &self.workers[w];
        let Some(held) = worker.readers[n].batch.front().copied() else { return };
        let (session, pool) = (worker.readers[n].claimed_for, worker.pool);
        self.set_phase(w, Part::Reader(n), Phase::Returning);
        let request = Request::Return { task: held.task, token: held.token, session };
        self.ask(w, Part::Reader(n), pool, request);
    }

    fn resolve(&mut self, w: usize, n: usize) {
        let worker = &self.workers[w];
        let Some(held) = worker.readers[n].batch.front().copied() else { return };
        let pool = worker.pool;
        self.set_phase(w, Part::Reader(n), Phase::Resolving);
        let request = Request::Resolve { task: held.task, token: held.token };
        self.ask(w, Part::Reader(n), pool, request);
    }

    /// Ends the task at the front of the reader's batch.
    fn ended(&mut self, w: usize, n: usize) {
        let worker = &mut self.workers[w];
        if let Some(held) = worker.readers[n].batch.pop_front() {
            worker.in_flight.remove(&held.token);
        }
        self.reader_continue(w, n);
    }

    fn committed(&mut self, w: usize, n: usize) {
        let now = self.local(w);
        let ran = Duration::from_micros(self.now - self.workers[w].readers[n].begun);
        let worker = &self.workers[w];
        if let Some(held) = worker.readers[n].batch.front() {
            let (queue, size) = (&self.server.lanes[held.lane].queue, worker.readers[n].batch_size);
            let batch = u32::try_from(size).unwrap_or(1);
            worker.batch_sizes.record(queue, size, (ran * batch, BUDGET), now);
        }
        self.ended(w, n);
    }

    /// A heartbeat has reported that the claim is no longer valid.
    pub(crate) fn mark_lost(&mut self, w: usize, token: u64) {
        let holds = |reader: &crate::worker::Reader| {
            reader.batch.iter().position(|held| held.token == token)
        };
        let found = self.workers[w].readers.iter().enumerate();
        let found = found.filter_map(|(n, reader)| holds(reader).map(|at| (n, at))).next();
        let Some((n, at)) = found else { return };
        let phase = self.workers[w].phases[index(Part::Reader(n))];
        if at > 0 {
            self.workers[w].readers[n].batch.remove(at);
            self.workers[w].in_flight.remove(&token);
        } else if phase == Phase::Executing {
            if let Some(session) = self.workers[w].readers[n].session.take() {
                self.close(w, session);
            }
            self.ended(w, n);
        }
    }

    fn retry_reader(&mut self, w: usize, n: usize, phase: Phase) {
        self.workers[w].readers[n].retries = phase;
        self.back_off(w, Part::Reader(n));
    }

    pub(crate) fn reader(&mut self, w: usize, n: usize, input: Input) {
        let part = Part::Reader(n);
        let phase = self.workers[w].phases[index(part)];
        match (phase, input) {
            (Phase::Waiting, _) => self.reader_continue(w, n),
            (Phase::Backoff, _) => match self.workers[w].readers[n].retries {
                Phase::Resolving => self.resolve(w, n),
                _ => self.reader_continue(w, n),
            },
            (Phase::Connecting, Input::Answer(Reply::Registered { .. }, session)) => {
                self.workers[w].readers[n].session = session;
                self.reader_continue(w, n);
            }
            (Phase::Executing, Input::Answer(Reply::Done, session)) => {
                let Some(held) = self.workers[w].readers[n].batch.front().copied() else { return };
                self.set_phase(w, part, Phase::Committing);
                let request = Request::Commit { task: held.task, token: held.token };
                self.ask(w, part, session, request);
            }
            (Phase::Committing, Input::Answer(Reply::Committed, _)) => self.committed(w, n),
            (Phase::Resolving, Input::Answer(Reply::StillClaimed, session)) => {
                self.set_pool(w, session);
                self.return_task(w, n);
            }
            (Phase::Resolving, Input::Answer(Reply::Committed | Reply::Lost, session))
            | (Phase::Returning, Input::Answer(Reply::Released(_) | Reply::Lost, session)) => {
                self.set_pool(w, session);
                self.ended(w, n);
            }
            (Phase::Executing | Phase::Committing, Input::Answer(Reply::Lost, _)) => {
                self.ended(w, n);
            }
            // Asks whether the backend still exists.
            (Phase::Executing | Phase::Committing, Input::Deadline) => self.probe(w, n),
            (Phase::Executing | Phase::Committing, Input::Answer(Reply::Gone(false), _)) => {}
            (Phase::Executing | Phase::Committing, Input::Answer(..)) => {
                if let Some(session) = self.workers[w].readers[n].session.take() {
                    self.close(w, session);
                }
                self.resolve(w, n);
            }
            (Phase::Resolving | Phase::Returning, _) => self.retry_reader(w, n, phase),
            _ => self.retry_reader(w, n, Phase::Waiting),
        }
    }
}
