//! Polls and reclaims, as `worker/src/duties/poll.rs` and `reclaimer.rs`.

use std::time::Duration;

use fleet_decisions::failure_detector::PeerSnapshot;
use fleet_decisions::poll_cadence::{is_current, next_poll_in};
use fleet_decisions::timing::{MAX_POLL_INTERVAL, TERMINATE_POLL_INTERVAL};
use queue::reclaim::Peer;
use rand::RngExt;

use crate::bug::Bug;
use crate::event::{Part, Reply, Request, SessionId, Time};
use crate::worker::{Input, Phase, index};
use crate::world::World;

impl World {
    pub(crate) fn poll(&mut self, w: usize, input: Input) {
        let now = self.local(w);
        match (self.workers[w].phases[index(Part::Poll)], input) {
            (
                Phase::Polling,
                Input::Answer(Reply::Polled { peers, pending, next_tick_in }, session),
            ) => {
                self.set_pool(w, session);
                self.polled(w, peers, pending, next_tick_in);
                self.poll_later(w);
            }
            (Phase::Polling, _) => {
                self.drop_pool(w);
                self.workers[w].continuity.begin_again(now);
                self.poll_later(w);
            }
            _ => self.begin_poll(w),
        }
    }

    fn begin_poll(&mut self, w: usize) {
        let now = self.local(w);
        let draw = self.rng.random();
        let worker = &mut self.workers[w];
        worker.polled_at = now;
        let busy = std::mem::take(&mut worker.tasks_found) && !worker.is_idle;
        let (peers, unregistered) = worker.sampling.include_peers(draw);
        worker.poll_wanted_pending = !busy;
        let session = worker.pool;
        self.set_phase(w, Part::Poll, Phase::Polling);
        let request = Request::Poll { peers, unregistered, pending: !busy };
        self.ask(w, Part::Poll, session, request);
    }

    fn poll_later(&mut self, w: usize) {
        self.set_phase(w, Part::Poll, Phase::Waiting);
        let wait = if self.options.bug == Some(Bug::Lockstep) {
            MAX_POLL_INTERVAL
        } else {
            next_poll_in(MAX_POLL_INTERVAL, &mut self.rng)
        };
        self.wake_in(w, Part::Poll, wait);
    }

    fn polled(&mut self, w: usize, peers: Option<Vec<Peer>>, pending: bool, tick_in: Option<Time>) {
        let now = self.local(w);
        let draw = self.rng.random();
        let worker = &mut self.workers[w];
        worker.last_poll = self.now;
        let pending = pending && self.options.bug != Some(Bug::PendingUnreported);
        let sweep = pending && worker.poll_wanted_pending;
        worker.sampling.record(peers.as_deref(), draw);
        let polled_at = worker.polled_at;
        worker.work.tick_at = tick_in.map(|wait| polled_at + Duration::from_micros(wait));
        let current = is_current(polled_at, now);
        worker.continuity.record_answer(current, now);
        if let Some(mut peers) = peers.filter(|_| current) {
            if self.options.bug != Some(Bug::RestartUnreported) {
                let registered = worker.registration.server().is_some();
                let lost_sessions = worker.registration.lost_sessions();
                worker.continuity.record_registration(registered, lost_sessions, now);
            }
            let mut continuity = worker.continuity;
            if self.options.bug == Some(Bug::OutageUnreported) {
                continuity.after_outage = false;
                continuity.unbroken_since = self.base;
            }
            if self.options.bug == Some(Bug::FutureHeartbeatClamped) {
                for peer in &mut peers {
                    let registered = peer.heartbeat.map(|_| Duration::ZERO);
                    peer.heartbeat_age = peer.heartbeat_age.or(registered);
                }
            }
            if self.options.bug == Some(Bug::HeartbeatAgeIgnored) {
                for peer in &mut peers {
                    peer.heartbeat_age = peer.heartbeat_age.map(|_| Duration::from_secs(3600));
                }
            }
            worker.snapshot = Some(PeerSnapshot { peers, continuity });
            self.reclaim_next(w);
        }
        self.schedule_next(w);
        if sweep {
            self.request_sweep(w);
        }
    }

    /// Processes the dead workers of the last snapshot, then the next snapshot.
    fn reclaim_next(&mut self, w: usize) {
        if self.workers[w].phases[index(Part::Reclaimer)] != Phase::Waiting {
            return;
        }
        let now = self.local(w);
        let worker = &mut self.workers[w];
        if worker.dead.is_empty()
            && let Some(snapshot) = worker.snapshot.take()
        {
            let dead = worker.detector.observe(&snapshot, now);
            worker.effort.retain(&dead);
            worker.dead = dead.into();
        }
        if let Some(dead) = worker.dead.pop_front() {
            worker.reclaiming = Some((dead, worker.effort.checks(dead.worker)));
            self.send_reclaim(w);
        }
    }

    fn send_reclaim(&mut self, w: usize) {
        let Some((dead, _)) = self.workers[w].reclaiming else { return };
        self.set_phase(w, Part::Reclaimer, Phase::Reclaiming);
        let session = self.workers[w].pool;
        let request = Request::Reclaim { dead };
        self.ask(w, Part::Reclaimer, session, request);
    }

    pub(crate) fn reclaimer(&mut self, w: usize, input: Input) {
        let phase = self.workers[w].phases[index(Part::Reclaimer)];
        let Some((dead, checks)) = self.workers[w].reclaiming else { return };
        match (phase, input) {
            (Phase::Backoff, _) => return self.send_reclaim(w),
            (_, Input::Answer(Reply::Reclaimed { released, remaining }, session)) => {
                self.set_pool(w, session);
                if released > 0 {
                    self.request_sweep(w);
                }
                if remaining > 0 && checks > 1 {
                    self.workers[w].reclaiming = Some((dead, checks - 1));
                    self.set_phase(w, Part::Reclaimer, Phase::Backoff);
                    return self.wake_in(w, Part::Reclaimer, TERMINATE_POLL_INTERVAL);
                }
                if remaining > 0 {
                    self.workers[w].effort.mark_still_running(dead.worker);
                }
            }
            _ => self.drop_pool(w),
        }
        self.workers[w].reclaiming = None;
        self.set_phase(w, Part::Reclaimer, Phase::Waiting);
        self.reclaim_next(w);
    }

    /// Keeps the session of an answer for further statements, unless there is one.
    pub(crate) fn set_pool(&mut self, w: usize, session: Option<SessionId>) {
        let pool = &mut self.workers[w].pool;
        *pool = pool.or(session);
    }

    pub(crate) fn drop_pool(&mut self, w: usize) {
        if let Some(session) = self.workers[w].pool.take() {
            self.close(w, session);
        }
    }
}
