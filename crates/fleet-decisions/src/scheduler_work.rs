//! Decides what the scheduler of a worker has to do, and when.

use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

/// What there is to do, and when.
#[derive(Clone, Copy, Debug, Default)]
pub struct SchedulerWork {
    /// When the next schedule is due.
    pub tick_at: Option<Instant>,
    /// When the next deadline or timeout of a run passes.
    pub deadline_at: Option<Instant>,
    /// Whether a backfill can continue.
    pub backfills: bool,
}

/// What there is to do now.
#[derive(Clone, Copy, Debug)]
pub struct DueWork {
    /// Whether a schedule is due.
    pub tick: bool,
    /// Whether a deadline or timeout of a run has passed.
    pub deadlines: bool,
    /// Whether a backfill can continue.
    pub backfills: bool,
}

impl SchedulerWork {
    /// Returns the time of the next tick or deadline.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.tick_at.into_iter().chain(self.deadline_at).min()
    }

    /// Returns what there is to do now; `None` if there is nothing.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<DueWork> {
        let passed = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let (tick, deadlines) = (passed(self.tick_at), passed(self.deadline_at));
        let backfills = self.backfills;
        (tick || deadlines || backfills).then_some(DueWork { tick, deadlines, backfills })
    }

    /// Records the end of a tick, and the time until the next schedule is due. A schedule that
    /// another worker has locked remains due until that worker commits.
    pub fn ticked(&mut self, next_in: Option<Duration>, now: Instant, random: &mut impl Rng) {
        let min_wait = Duration::from_millis(random.random_range(20..60));
        self.tick_at = next_in.map(|wait| now + wait.max(min_wait));
    }
}
