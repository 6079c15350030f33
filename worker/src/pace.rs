//! How many tasks of a queue a reader takes into one transaction: learned from how long they take,
//! one for all readers of the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Each savepoint that writes is a subtransaction, and a backend that has more than 64 open slows
/// every snapshot in the cluster down (PGPROC_MAX_CACHED_SUBXIDS).
const MOST: usize = 50;
/// A queue whose tasks turned out too slow, or got into each other's way, is left alone for this long.
const REST: Duration = Duration::from_secs(10);

/// Shared by claimer and readers.
#[derive(Clone, Default)]
pub(crate) struct Paces {
    queues: Arc<Mutex<HashMap<String, Pace>>>,
}

#[derive(Clone, Copy, Debug)]
struct Pace {
    size: usize,
    rests_until: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { size: 1, rests_until: None }
    }
}

impl Paces {
    /// How many tasks of the queue to take at once.
    pub(crate) fn size(&self, queue: &str) -> usize {
        self.lock().get(queue).map_or(1, |pace| pace.size)
    }

    /// So many tasks of the queue ran, one after another, in so much time. Doubles within half of
    /// the budget, halves beyond it.
    pub(crate) fn ran(&self, queue: &str, tasks: usize, took: Duration, budget: Duration) {
        let mut queues = self.lock();
        let pace = queues.entry(queue.to_owned()).or_default();
        if pace.rests_until.is_some_and(|until| until > Instant::now()) {
            return;
        }
        pace.rests_until = None;
        if took > budget {
            pace.size = (pace.size / 2).max(1);
        } else if took <= budget / 2 && tasks >= pace.size {
            pace.size = (pace.size * 2).min(MOST);
        }
    }

    /// Tasks of the queue do not go together well: one by one for a while.
    pub(crate) fn rest(&self, queue: &str) {
        let rests_until = Some(Instant::now() + REST);
        self.lock().insert(queue.to_owned(), Pace { size: 1, rests_until });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Pace>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_millis(10);

    #[test]
    fn it_grows_within_half_of_the_budget_and_shrinks_beyond_it() {
        let paces = Paces::default();
        assert_eq!(paces.size("a"), 1);
        for size in [1, 2, 4] {
            paces.ran("a", size, BUDGET / 4, BUDGET);
        }
        assert_eq!(paces.size("a"), 8);
        paces.ran("a", 3, BUDGET / 4, BUDGET);
        assert_eq!(paces.size("a"), 8, "a group that was not full says nothing about a larger one");
        paces.ran("a", 8, BUDGET * 2, BUDGET);
        assert_eq!(paces.size("a"), 4);
        assert_eq!(paces.size("b"), 1);
    }

    #[test]
    fn it_never_grows_past_what_the_server_keeps_in_memory() {
        let paces = Paces::default();
        for _ in 0..20 {
            paces.ran("a", MOST, Duration::ZERO, BUDGET);
        }
        assert_eq!(paces.size("a"), MOST);
    }

    #[test]
    fn a_queue_at_rest_stays_at_one() {
        let paces = Paces::default();
        paces.ran("a", 1, Duration::ZERO, BUDGET);
        paces.rest("a");
        paces.ran("a", 1, Duration::ZERO, BUDGET);
        assert_eq!(paces.size("a"), 1);
    }
}
