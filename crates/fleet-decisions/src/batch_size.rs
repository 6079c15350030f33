//! Adaptive batch size: the number of tasks of a queue that a reader takes at once, into a shared
//! commit or a chain.
//! The worker learns it from run times, separately for each queue. All readers of the process share
//! it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::timing::BATCH_COOL_DOWN;

/// Maximum number of tasks of a chain.
pub const MAX_CHAIN: usize = 8;

/// Maximum batch size. Each savepoint with writes is a subtransaction, and a backend with more than
/// 64 open subtransactions slows down every snapshot in the cluster (PGPROC_MAX_CACHED_SUBXIDS).
const MAX_TASKS: usize = 50;

/// Batch sizes by queue, shared by claimer and readers.
#[derive(Clone, Debug, Default)]
pub struct BatchSizes {
    queues: Arc<Mutex<HashMap<String, BatchSize>>>,
}

#[derive(Clone, Copy, Debug)]
struct BatchSize {
    size: usize,
    cool_down_until: Option<Instant>,
}

impl Default for BatchSize {
    fn default() -> Self {
        Self { size: 1, cool_down_until: None }
    }
}

impl BatchSizes {
    /// Returns the number of tasks of the queue to take at once.
    #[must_use]
    pub fn size(&self, queue: &str) -> usize {
        self.queues.lock().get(queue).map_or(1, |batch_size| batch_size.size)
    }

    /// Records that `tasks` tasks of the queue ran one after another in `duration`. Doubles the
    /// batch size if the tasks took at most half of the budget, and halves it if they exceeded the
    /// budget.
    pub fn record(
        &self,
        queue: &str,
        tasks: usize,
        (duration, budget): (Duration, Duration),
        now: Instant,
    ) {
        let mut queues = self.queues.lock();
        let batch_size = queues.entry(queue.to_owned()).or_default();
        if batch_size.cool_down_until.is_some_and(|until| until > now) {
            return;
        }
        batch_size.cool_down_until = None;
        if duration > budget {
            batch_size.size = (batch_size.size / 2).max(1);
        } else if duration <= budget / 2 && tasks >= batch_size.size {
            batch_size.size = (batch_size.size * 2).min(MAX_TASKS);
        }
    }

    /// Sets the batch size to 1 for [`BATCH_COOL_DOWN`].
    pub fn cool_down(&self, queue: &str, now: Instant) {
        let cool_down_until = Some(now + BATCH_COOL_DOWN);
        self.queues.lock().insert(queue.to_owned(), BatchSize { size: 1, cool_down_until });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_millis(10);

    #[test]
    fn size_doubles_within_half_of_the_budget_and_halves_beyond_the_budget() {
        let batch_sizes = BatchSizes::default();
        assert_eq!(batch_sizes.size("a"), 1);
        for size in [1, 2, 4] {
            batch_sizes.record("a", size, (BUDGET / 4, BUDGET), Instant::now());
        }
        assert_eq!(batch_sizes.size("a"), 8);
        batch_sizes.record("a", 3, (BUDGET / 4, BUDGET), Instant::now());
        assert_eq!(batch_sizes.size("a"), 8, "an incomplete batch does not grow the size");
        batch_sizes.record("a", 8, (BUDGET * 2, BUDGET), Instant::now());
        assert_eq!(batch_sizes.size("a"), 4);
        assert_eq!(batch_sizes.size("b"), 1);
    }

    #[test]
    fn size_never_exceeds_the_servers_subtransaction_cache() {
        let batch_sizes = BatchSizes::default();
        for _ in 0..20 {
            batch_sizes.record("a", MAX_TASKS, (Duration::ZERO, BUDGET), Instant::now());
        }
        assert_eq!(batch_sizes.size("a"), MAX_TASKS);
    }

    #[test]
    fn a_queue_in_cool_down_stays_at_one() {
        let batch_sizes = BatchSizes::default();
        batch_sizes.record("a", 1, (Duration::ZERO, BUDGET), Instant::now());
        batch_sizes.cool_down("a", Instant::now());
        batch_sizes.record("a", 1, (Duration::ZERO, BUDGET), Instant::now());
        assert_eq!(batch_sizes.size("a"), 1);
    }
}
