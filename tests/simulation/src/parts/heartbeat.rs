//! Registration, heartbeats and LISTEN, as `worker/src/duties/heartbeat.rs` and `listener.rs`.

use fleet_decisions::timing::HEARTBEAT_INTERVAL;

use crate::bug::Bug;
use crate::event::{Part, Reply, Request};
use crate::worker::{Input, Phase, index};
use crate::world::World;

const PART: Part = Part::Heartbeat;

impl World {
    pub(crate) fn heartbeat(&mut self, w: usize, input: Input) {
        match (self.workers[w].phases[index(PART)], input) {
            // After a second registration, the session has not changed, so neither has the server.
            (Phase::Waiting | Phase::Backoff, _)
            | (Phase::Connecting, Input::Answer(Reply::Registered { .. }, _)) => {
                self.send_heartbeat(w);
            }
            (Phase::Registering, Input::Answer(Reply::Registered { generation }, session)) => {
                self.workers[w].control = session;
                self.workers[w].control_ended = false;
                self.registered(w, generation);
                self.send_heartbeat(w);
            }
            (Phase::Beating, Input::Answer(Reply::Heartbeat(Some(lost)), _)) => {
                self.workers[w].backoffs[index(PART)].reset();
                for token in lost {
                    self.mark_lost(w, token);
                }
                self.set_phase(w, PART, Phase::Waiting);
                let at = self.workers[w].heartbeat_at;
                self.wake_at(w, PART, at);
            }
            (Phase::Beating, Input::Answer(Reply::Heartbeat(None), _)) => {
                self.set_phase(w, PART, Phase::Connecting);
                let session = self.workers[w].control;
                self.ask(w, PART, session, Request::Register);
            }
            _ => {
                self.workers[w].registration.lost();
                if let Some(session) = self.workers[w].control.take() {
                    self.close(w, session);
                }
                self.back_off(w, PART);
            }
        }
    }

    fn send_heartbeat(&mut self, w: usize) {
        let Some(session) = self.workers[w].control else {
            self.set_phase(w, PART, Phase::Registering);
            return self.ask(w, PART, None, Request::Register);
        };
        self.workers[w].heartbeat_at = self.now + self.global(w, HEARTBEAT_INTERVAL);
        self.set_phase(w, PART, Phase::Beating);
        let claims = self.workers[w].claims();
        self.ask(w, PART, Some(session), Request::Heartbeat { claims });
    }

    fn registered(&mut self, w: usize, generation: u32) {
        let moved = self.workers[w].registration.registered(generation);
        if moved && self.options.bug != Some(Bug::FrozenPrimary) {
            self.close_all(w);
        }
        // The back-offs end, because the queue answers again.
        for n in 1..self.workers[w].phases.len() {
            let part = crate::worker::part(n);
            match self.workers[w].phases[n] {
                Phase::Unregistered => self.claimer_continue(w),
                Phase::Backoff if self.workers[w].asking[n].is_none() => {
                    self.step(w, part, Input::Timer);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn listener(&mut self, w: usize, input: Input) {
        match (self.workers[w].phases[index(Part::Listener)], input) {
            (Phase::Connecting, Input::Answer(Reply::Done, session)) => {
                self.workers[w].listener = session;
                self.workers[w].backoffs[index(Part::Listener)].reset();
                self.set_phase(w, Part::Listener, Phase::Waiting);
                self.notify(w);
            }
            (Phase::Backoff, Input::Timer) => {
                self.set_phase(w, Part::Listener, Phase::Connecting);
                self.ask(w, Part::Listener, None, Request::Listen);
            }
            _ => self.back_off(w, Part::Listener),
        }
    }
}
