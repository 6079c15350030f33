//! Invariants.

use std::collections::BTreeMap;
use std::time::Duration;

use fleet_decisions::timing::SESSION_GRACE;
use queue::WorkerId;

use crate::event::{Event, Part, SECOND, SessionId, Time};
use crate::faults::SILENT_BOUND;
use crate::worker::{Worker, index};
use crate::world::World;

/// Longest time for which a pending task waits in a calm fleet with idle readers: a poll of the
/// idle workers, and a claim.
const START_BOUND: Time = 3 * SECOND;
/// Time after which a worker that was stopped or cut off works as before.
const SETTLING: Time = 10 * SECOND;
/// Time that the fleet has to finish everything after the last fault.
pub(crate) const DRAIN: Time = 360 * SECOND;

impl World {
    pub(crate) fn violated(&mut self, what: &str) {
        let at = self.now as f64 / SECOND as f64;
        // What the claimers and the readers do, as a hint at the cause.
        let mut doing: BTreeMap<String, usize> = BTreeMap::new();
        for worker in self.workers.iter().filter(|worker| worker.alive && !worker.stopped) {
            for n in [index(Part::Claimer), index(Part::Reader(0))] {
                let part = if n == index(Part::Claimer) { "claimer" } else { "reader" };
                *doing.entry(format!("{part} {:?}", worker.phases[n])).or_default() += 1;
            }
        }
        self.checks
            .violation
            .get_or_insert_with(|| format!("at {at:.3} s: {what}; workers: {doing:?}"));
    }

    /// Checks how long the tasks of a claim have waited.
    pub(crate) fn claims(&mut self, claimed: &[(usize, usize, i64, u64)]) {
        for (_, _, task, _) in claimed {
            let Some(since) = self.server.tasks.get(task).map(|task| task.pending_since) else {
                continue;
            };
            let waited = self.now - since.max(self.checks.idle_since);
            if self.checks.is_calm_since(since) {
                self.checks.longest_wait = self.checks.longest_wait.max(waited);
                if waited > START_BOUND {
                    let waited = waited / 1000;
                    self.violated(&format!("task {task} waited {waited} ms in a calm fleet"));
                }
            }
        }
    }

    /// Records that a reader becomes idle, or that its worker begins to claim.
    pub(crate) fn reader_is_idle(&mut self) {
        // A worker that was stopped or cut off may have sessions that the server has ended.
        let settled = |worker: &&Worker| {
            let recent = worker.disturbed_at > 0 && worker.disturbed_at + SETTLING > self.now;
            worker.claiming && worker.is_undisturbed() && !recent
        };
        let idle = self.workers.iter().filter(settled).map(|worker| worker.idle.len());
        if idle.sum::<usize>() < self.options.workers * self.options.readers / 4 {
            self.checks.idle_since = self.now;
        }
    }

    /// Checks that no other session executes the task.
    pub(crate) fn executes(&mut self, session: SessionId, task: i64) {
        if let Some(other) = self.checks.executing.insert(task, session) {
            let state = self.server.sessions.get(&other);
            let open = state.and_then(|state| state.open).is_some_and(|(open, _)| open == task);
            if open && other != session {
                self.violated(&format!("two sessions execute task {task}"));
            }
        }
    }

    /// Checks that a task has one effect.
    pub(crate) fn commits(&mut self, task: i64) {
        self.checks.executing.remove(&task);
        if self.server.effects[usize::try_from(task).unwrap_or(0)] > 1 {
            self.violated(&format!("the effect of task {task} was committed twice"));
        }
    }

    /// Checks that a schedule fires once for an instant.
    pub(crate) fn fires(&mut self, schedule: usize, instant: Time) {
        let fires = self.server.fires.entry((schedule, instant)).or_default();
        *fires += 1;
        if *fires > 1 {
            let at = instant / SECOND;
            self.violated(&format!("schedule {schedule} fired twice for second {at}"));
        }
    }

    /// Checks that a reclaimed task belonged to a dead worker.
    pub(crate) fn reclaimed(&mut self, worker: WorkerId, task: i64) {
        self.checks.reclaims += 1;
        if let Some(at) = self.checks.killed.get(&worker) {
            self.checks.recoveries.push(self.now - at);
        }
        let heartbeat = self.server.workers.get(&worker).map(|row| self.now - row.at);
        if heartbeat.is_some_and(|age| age < micros(SESSION_GRACE)) {
            return self.violated(&format!("task {task} was reclaimed right after a heartbeat"));
        }
        let owner = self.workers.iter().position(|other| other.id == worker && other.alive);
        let Some(w) = owner else { return };
        let owner = &self.workers[w];
        let disturbed = owner.disturbed_at > 0 && owner.disturbed_at + SETTLING > self.now;
        // Its session was ended, and a slow or crowded server did not let it register in time.
        let recent = self.now < self.checks.server_back_at + 10 * SECOND;
        let refused = owner.control_ended && recent;
        let of_server = self.server.refusals > 0 || self.slow > 0;
        let unreachable = of_server || refused || !owner.is_undisturbed();
        if !unreachable && !disturbed {
            self.violated(&format!("task {task} of the living worker {w} was reclaimed"));
        }
    }

    /// Checks that tasks of a dead worker are pending again.
    pub(crate) fn expect_runnable(&mut self, tasks: &[(i64, u64)], since: Time) {
        if !self.checks.is_calm_since(since) {
            return;
        }
        let step = self.server.set_back_at;
        if step > since {
            // The observation of the worker has started over. A silent one may have returned.
            let killed = |task: &i64| {
                let claim = self.server.tasks.get(task).and_then(|task| task.claim.as_ref());
                claim.is_some_and(|claim| self.checks.killed.contains_key(&claim.worker))
            };
            let tasks = tasks.iter().copied().filter(|(task, _)| killed(task)).collect();
            let again = Event::ExpectRunnable { tasks, since: step };
            return self.events.add(self.now.max(step + SILENT_BOUND), again);
        }
        let late = tasks.iter().find(|(task, token)| self.server.is_claimed(*task, *token));
        if let Some((task, _)) = late {
            let seconds = (self.now - since) / SECOND;
            self.violated(&format!(
                "task {task} of a dead worker is not pending after {seconds} s"
            ));
        }
    }

    /// Checks that every worker has polled since the server came back.
    pub(crate) fn expect_polls(&mut self, since: Time) {
        if self.checks.server_faults > 0 || self.checks.server_back_at > since {
            return;
        }
        let hangs = |worker: &Worker| {
            worker.is_undisturbed() && worker.disturbed_at <= since && worker.last_poll < since
        };
        if let Some(w) = self.workers.iter().position(hangs) {
            let seconds = (self.now - since) / SECOND;
            self.violated(&format!("worker {w} has not polled for {seconds} s"));
        }
    }

    /// Checks that no task is claimed for much longer than it runs: the orphan timeout, the longest
    /// fault, and the time until a worker compares its claims with those in the database.
    pub(crate) fn check_claims(&mut self) {
        let forgotten = self.server.tasks.iter().find(|(_, task)| {
            let claimed_at = task.claim.as_ref().map(|claim| claim.at);
            claimed_at.is_some_and(|at| at + task.duration + 300 * SECOND < self.now)
        });
        if let Some((id, _)) = forgotten {
            self.violated(&format!("task {id} is claimed, but nobody runs it"));
        }
    }

    /// Checks after the last fault that nothing is stuck.
    pub(crate) fn check_end(&mut self) {
        let recent = self.now.saturating_sub(60 * SECOND);
        let tasks = self.server.tasks.iter();
        let stuck = tasks
            .filter(|(_, task)| match &task.claim {
                Some(claim) => claim.at + task.duration < recent,
                None => task.pending_since < recent,
            })
            .count();
        if stuck > 0 {
            self.violated(&format!("{stuck} tasks are stuck"));
        }
        let silent = |worker: &Worker| worker.alive && worker.last_poll < recent;
        if let Some(w) = self.workers.iter().position(silent) {
            self.violated(&format!("worker {w} does not poll any more"));
        }
        for n in 0..self.server.schedules.len() {
            let every = self.server.schedules[n].every;
            let mut instant = every;
            while instant < recent {
                let fires = self.server.fires.get(&(n, instant)).copied().unwrap_or(0);
                if fires != 1 {
                    let at = instant / SECOND;
                    self.violated(&format!("schedule {n} fired {fires} times for second {at}"));
                }
                instant += every;
            }
        }
    }
}

fn micros(duration: Duration) -> Time {
    Time::try_from(duration.as_micros()).unwrap_or(Time::MAX)
}
