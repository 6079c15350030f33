//! Ticks of schedules, as `worker/src/duties/scheduler.rs`.

use std::time::Duration;

use crate::event::{Part, Reply, Request};
use crate::worker::{Input, Phase, index};
use crate::world::World;

const PART: Part = Part::Scheduler;

impl World {
    /// Ticks if a schedule is due, or waits until one is.
    pub(crate) fn schedule_next(&mut self, w: usize) {
        if self.workers[w].phases[index(PART)] != Phase::Waiting || self.workers[w].draining {
            return;
        }
        let now = self.local(w);
        let work = self.workers[w].work;
        if work.due(now).is_some_and(|due| due.tick) {
            self.send_tick(w);
        } else if let Some(at) = work.next_at() {
            self.wake_in(w, PART, at.saturating_duration_since(now));
        }
    }

    fn send_tick(&mut self, w: usize) {
        self.set_phase(w, PART, Phase::Ticking);
        let session = self.workers[w].scheduler;
        self.ask(w, PART, session, Request::TickBegin);
    }

    pub(crate) fn scheduler(&mut self, w: usize, input: Input) {
        match (self.workers[w].phases[index(PART)], input) {
            (Phase::Waiting, _) => self.schedule_next(w),
            (Phase::Backoff, _) => {
                self.set_phase(w, PART, Phase::Waiting);
                self.schedule_next(w);
            }
            (Phase::Ticking, Input::Answer(Reply::Ticking(due), session)) => {
                self.workers[w].scheduler = session;
                let request = if due { Request::TickCommit } else { Request::NextTick };
                self.set_phase(w, PART, if due { Phase::Firing } else { Phase::Ticking });
                self.ask(w, PART, session, request);
            }
            (Phase::Ticking, Input::Answer(Reply::NextTick(next), _)) => {
                self.workers[w].backoffs[index(PART)].reset();
                let now = self.local(w);
                let worker = &mut self.workers[w];
                worker.work.ticked(next.map(Duration::from_micros), now, &mut self.rng);
                self.set_phase(w, PART, Phase::Waiting);
                self.schedule_next(w);
            }
            // There may be more schedules that are due.
            (Phase::Firing, Input::Answer(Reply::Done, _)) => {
                self.notify(w);
                self.send_tick(w);
            }
            _ => {
                if let Some(session) = self.workers[w].scheduler.take() {
                    self.close(w, session);
                }
                self.back_off(w, PART);
            }
        }
    }
}
