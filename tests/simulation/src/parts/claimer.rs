//! The claimer, as `worker/src/claim/claimer.rs`.

use std::collections::VecDeque;

use fleet_decisions::lanes::{ClaimRequest, ClaimRound};
use fleet_decisions::notification_kind::claims_when_notified;
use fleet_decisions::weights::Weights;
use queue::TaskId;
use rand::RngExt;

use crate::bug::Bug;
use crate::event::{Part, Reply, Request, SessionId};
use crate::worker::{InFlight, Input, Pass, Phase, index};
use crate::world::World;

const PART: Part = Part::Claimer;

impl World {
    /// Wakes the claimer after a notification, unless enough others claim.
    pub(crate) fn notified(&mut self, w: usize) {
        let peer_count = self.workers[w].sampling.peer_count();
        if claims_when_notified(peer_count, self.rng.random()) {
            self.notify(w);
        }
    }

    /// Wakes the claimer, because there may be new tasks.
    pub(crate) fn notify(&mut self, w: usize) {
        self.workers[w].notified = true;
        if self.workers[w].phases[index(PART)] == Phase::Waiting {
            self.claimer_notified(w);
        }
    }

    fn claimer_notified(&mut self, w: usize) {
        let worker = &mut self.workers[w];
        worker.notified = false;
        worker.cadence.notified(worker.sweep_requested, &mut worker.lanes);
        self.claimer_continue(w);
    }

    pub(crate) fn request_sweep(&mut self, w: usize) {
        self.workers[w].sweep_requested = true;
        self.notify(w);
    }

    /// Starts over: connects, waits for the registration, reconciles, claims, or waits.
    pub(crate) fn claimer_continue(&mut self, w: usize) {
        let now = self.local(w);
        let worker = &mut self.workers[w];
        if worker.draining {
            return self.set_phase(w, PART, Phase::Waiting);
        }
        let Some((session, generation)) = worker.claimer else {
            self.set_phase(w, PART, Phase::Connecting);
            return self.ask(w, PART, None, Request::Connect);
        };
        let Some(server) = worker.registration.server() else {
            worker.claiming = false;
            self.no_wait(w, PART);
            return self.set_phase(w, PART, Phase::Unregistered);
        };
        if server != generation {
            worker.claimer = None;
            self.close(w, session);
            return self.claimer_failed(w);
        }
        let requested = std::mem::take(&mut worker.reconcile);
        if worker.cadence.reconcile_due(requested, now) {
            if self.options.bug == Some(Bug::ClaimsUnreconciled) {
                worker.cadence.reconciled(now);
            } else {
                let (claims, pool) = (worker.claims(), worker.pool);
                self.set_phase(w, PART, Phase::Reconciling);
                let request = Request::ReleaseUnknown { claims };
                return self.ask(w, PART, pool, request);
            }
        }
        if self.workers[w].idle.is_empty() {
            return self.claimer_waits(w);
        }
        if !self.workers[w].claiming {
            self.reader_is_idle();
        }
        let worker = &mut self.workers[w];
        worker.claiming = true;
        let requested = std::mem::take(&mut worker.sweep_requested);
        let sweep = worker.cadence.begin_claim(requested, &worker.lanes, now);
        worker.pass = Pass { swept: sweep, ..Pass::default() };
        self.begin_pass(w, sweep);
    }

    fn claimer_waits(&mut self, w: usize) {
        let now = self.local(w);
        let worker = &mut self.workers[w];
        let polls = worker.cadence.polls(worker.idle.len());
        let poll_at = if self.options.bug == Some(Bug::Lockstep) {
            worker.cadence.next_poll_at(now, &mut crate::world::constant())
        } else {
            worker.cadence.next_poll_at(now, &mut self.rng)
        };
        if worker.notified {
            return self.claimer_notified(w);
        }
        let reconcile_at = worker.cadence.reconcile_at();
        let wake_at = if polls { poll_at.min(reconcile_at) } else { reconcile_at };
        self.set_phase(w, PART, Phase::Waiting);
        self.wake_in(w, PART, wake_at.saturating_duration_since(now));
    }

    fn begin_pass(&mut self, w: usize, sweep: bool) {
        let now = self.local(w);
        let worker = &mut self.workers[w];
        (worker.pass.sweep, worker.pass.from_start) = (sweep, sweep);
        if !sweep {
            return self.next_round(w);
        }
        worker.lanes.begin_sweep(now);
        let session = worker.claimer.map(|(session, _)| session);
        self.set_phase(w, PART, Phase::ReadingLanes);
        self.ask(w, PART, session, Request::Lanes);
    }

    fn next_round(&mut self, w: usize) {
        let worker = &mut self.workers[w];
        if worker.idle.is_empty() {
            return self.end_pass(w);
        }
        let weights = Weights::default();
        let sweep = std::mem::take(&mut worker.pass.from_start);
        let round = ClaimRound {
            readers: worker.idle.len(),
            run_as: "",
            only: None,
            sweep,
            weights: &weights,
        };
        let sizes = &worker.batch_sizes;
        let requests = worker.lanes.requests(&round, |queue| sizes.size(queue), &mut self.rng);
        if requests.is_empty() {
            return self.end_pass(w);
        }
        worker.pass.requests = requests.into();
        self.next_claim(w);
    }

    fn next_claim(&mut self, w: usize) {
        let worker = &mut self.workers[w];
        let Some(request) = worker.pass.requests.pop_front() else { return self.next_round(w) };
        let readers = request.readers.min(worker.idle.len());
        if readers == 0 {
            return self.next_round(w);
        }
        let named = worker.idle[..readers].iter().map(|(_, session)| *session);
        let sessions: Vec<SessionId> = named.cycle().take(request.tasks).collect();
        worker.pass.readers = worker.idle[..readers].to_vec();
        let ranges = request.ranges.clone();
        worker.pass.current = Some(ClaimRequest { ranges, readers: request.readers, ..request });
        let session = worker.claimer.map(|(session, _)| session);
        self.set_phase(w, PART, Phase::Claiming);
        self.ask(w, PART, session, Request::Claim { request, sessions });
    }

    fn claimed(&mut self, w: usize, claimed: Vec<(usize, usize, i64, u64)>) {
        let now = self.local(w);
        let worker = &mut self.workers[w];
        let Some(request) = worker.pass.current.take() else { return };
        if claimed.len() < request.tasks {
            worker.lanes.mark_empty(&request);
        } else if request.sweep {
            for (_, lane, ..) in &claimed {
                worker.lanes.reset_watermark(&self.server.lanes[*lane]);
            }
        }
        worker.pass.found |= !claimed.is_empty();
        worker.tasks_found |= !claimed.is_empty();
        let readers = std::mem::take(&mut worker.pass.readers);
        let mut batches: Vec<VecDeque<InFlight>> =
            readers.iter().map(|_| VecDeque::new()).collect();
        for (n, lane, task, token) in claimed {
            worker.lanes.raise_watermark(self.server.lanes[lane].clone(), TaskId(task), now);
            worker.in_flight.insert(token, task);
            batches[n % readers.len()].push_back(InFlight { task, token, lane });
        }
        let forgets = self.options.bug == Some(Bug::BatchKept);
        let mut starts = Vec::new();
        for (reader, batch) in readers.into_iter().zip(batches) {
            let place = worker.idle.iter().position(|idle| *idle == reader);
            match place {
                _ if batch.is_empty() => {}
                Some(place) => {
                    worker.idle.remove(place);
                    let (n, session) = reader;
                    worker.readers[n].claimed_for = session;
                    worker.readers[n].batch_size = batch.len();
                    worker.readers[n].batch = batch;
                    starts.push(n);
                }
                // The session of the reader was closed during the claim.
                None if forgets => {}
                None => worker.pass.returns.extend(batch.into_iter().map(|held| (held, 0))),
            }
        }
        for reader in starts {
            self.reader_continue(w, reader);
        }
        self.return_unstarted(w);
    }

    fn return_unstarted(&mut self, w: usize) {
        let Some((held, session)) = self.workers[w].pass.returns.last().copied() else {
            return self.next_claim(w);
        };
        self.set_phase(w, PART, Phase::Returning);
        let pool = self.workers[w].pool;
        let request = Request::Return { task: held.task, token: held.token, session };
        self.ask(w, PART, pool, request);
    }

    fn end_pass(&mut self, w: usize) {
        let now = self.local(w);
        let worker = &mut self.workers[w];
        if worker.pass.sweep {
            worker.lanes.end_sweep(now);
        }
        let (swept, idle) = (worker.pass.swept, worker.idle.len());
        if worker.cadence.sweep_again(swept, idle, &worker.lanes, now) {
            worker.pass.swept = true;
            return self.begin_pass(w, true);
        }
        let (found, swept) = (worker.pass.found, worker.pass.swept);
        if let Some(idle) = worker.cadence.end_claim(found, worker.in_flight.len(), swept, now) {
            worker.is_idle = idle;
        }
        if found {
            // As if another worker watched the lanes.
            worker.cadence.watches(false, now);
        }
        worker.backoffs[index(PART)].reset();
        self.claimer_waits(w);
    }

    fn claimer_failed(&mut self, w: usize) {
        let now = self.local(w);
        let worker = &mut self.workers[w];
        worker.claiming = false;
        worker.cadence.failed(now);
        self.back_off(w, PART);
    }

    pub(crate) fn claimer(&mut self, w: usize, input: Input) {
        let now = self.local(w);
        match (self.workers[w].phases[index(PART)], input) {
            (Phase::Waiting, Input::Timer) => {
                let worker = &mut self.workers[w];
                worker.cadence.polled(&mut worker.lanes);
                self.claimer_continue(w);
            }
            (Phase::Backoff, Input::Timer) => self.claimer_continue(w),
            (Phase::Connecting, Input::Answer(Reply::Registered { generation }, Some(session))) => {
                let worker = &mut self.workers[w];
                worker.claimer = Some((session, generation));
                worker.cadence.connected();
                self.claimer_continue(w);
            }
            (Phase::Reconciling, Input::Answer(Reply::Released(count), session)) => {
                self.set_pool(w, session);
                let worker = &mut self.workers[w];
                worker.cadence.reconciled(now);
                if count > 0 {
                    worker.sweep_requested = true;
                }
                self.claimer_continue(w);
            }
            (Phase::ReadingLanes, Input::Answer(Reply::Lanes(lanes), _)) => {
                let lanes = lanes.iter().map(|n| (self.server.lanes[*n].clone(), None)).collect();
                self.workers[w].lanes.set_nonempty(lanes, None, now);
                self.next_round(w);
            }
            (Phase::Claiming, Input::Answer(Reply::Claimed(claimed), _)) => {
                self.claimed(w, claimed);
            }
            (Phase::Returning, Input::Answer(reply, session)) => {
                self.set_pool(w, session);
                if !matches!(reply, Reply::Failed)
                    && let Some((held, _)) = self.workers[w].pass.returns.pop()
                {
                    self.workers[w].in_flight.remove(&held.token);
                }
                self.return_unstarted(w);
            }
            (Phase::Returning, Input::Deadline) => self.return_unstarted(w),
            (Phase::Reconciling, _) => {
                self.drop_pool(w);
                self.workers[w].reconcile = true;
                self.claimer_failed(w);
            }
            (_, Input::Deadline | Input::Answer(..)) => {
                if let Some((session, _)) = self.workers[w].claimer.take() {
                    self.close(w, session);
                }
                self.claimer_failed(w);
            }
            (_, Input::Timer) => {}
        }
    }
}
