//! What the claimer knows of the lanes: which there are, and how far each has been read. Pure.
//!
//! The watermarks are hints: safety never depends on them, and liveness depends on the sweep only.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use queue::TaskId;
use queue::claim::Lane;

use crate::pick;

/// How often a claim looks below the watermarks: ids that commit late, retries and promoted tasks
/// lie there.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// A claim that came back short may ask for a sweep this soon after the last one.
const SWEEP_AT_MOST_EVERY: Duration = Duration::from_millis(100);
/// A lane without work is forgotten after this long.
const MEMORY: Duration = Duration::from_secs(60);

/// The lanes of one claimer.
#[derive(Default)]
pub(crate) struct Lanes {
    seen: HashMap<Lane, Seen>,
    swept_at: Option<Instant>,
}

struct Seen {
    watermark: TaskId,
    /// Budget of the queue's shared commits.
    shared: Option<Duration>,
    at: Instant,
}

impl Lanes {
    /// Whether it is time for a sweep.
    pub(crate) fn sweep_due(&self) -> bool {
        self.swept_at.is_none_or(|at| at.elapsed() >= SWEEP_EVERY)
    }

    /// Whether a claim that came back short may sweep.
    pub(crate) fn sweep_allowed(&self) -> bool {
        self.swept_at.is_none_or(|at| at.elapsed() >= SWEEP_AT_MOST_EVERY)
    }

    /// A sweep begins, with these lanes; what has not been seen for long is forgotten.
    pub(crate) fn sweep(&mut self, lanes: Vec<(Lane, Option<Duration>)>) {
        let at = Instant::now();
        self.swept_at = Some(at);
        for (lane, shared) in lanes {
            let unread = Seen { watermark: TaskId(0), shared, at };
            let seen = self.seen.entry(lane).or_insert(unread);
            (seen.shared, seen.at) = (shared, at);
        }
        self.seen.retain(|_, seen| seen.at.elapsed() < MEMORY);
    }

    /// A task was claimed from the lane.
    pub(crate) fn raise(&mut self, lane: Lane, id: TaskId) {
        let at = Instant::now();
        let seen = self.seen.entry(lane).or_insert(Seen { watermark: id, shared: None, at });
        seen.watermark = seen.watermark.max(id);
        seen.at = at;
    }

    /// The lanes in the order of one pick, each with the id after which to look.
    pub(crate) fn pick(&self, sweep: bool) -> Vec<(Lane, TaskId)> {
        let mut lanes: Vec<Lane> = self.seen.keys().cloned().collect();
        pick::order(&mut lanes, &mut rand::rng());
        let after = |lane: &Lane| if sweep { TaskId(0) } else { self.seen[lane].watermark };
        lanes
            .into_iter()
            .map(|lane| {
                let after = after(&lane);
                (lane, after)
            })
            .collect()
    }

    /// The budget of the shared commits of the lane's queue; `None`: each task commits alone.
    pub(crate) fn shared(&self, lane: &Lane) -> Option<Duration> {
        self.seen.get(lane).and_then(|seen| seen.shared)
    }
}

#[cfg(test)]
mod tests {
    use queue::Priority;

    use super::*;

    fn lane(queue: &str) -> Lane {
        Lane { queue: queue.to_owned(), priority: Priority::Normal }
    }

    #[test]
    fn a_watermark_only_rises_and_a_sweep_looks_below_it() {
        let mut lanes = Lanes::default();
        lanes.raise(lane("a"), TaskId(7));
        lanes.raise(lane("a"), TaskId(3));
        assert_eq!(lanes.pick(false), [(lane("a"), TaskId(7))]);
        assert_eq!(lanes.pick(true), [(lane("a"), TaskId(0))]);
    }

    #[test]
    fn a_sweep_brings_new_lanes_and_keeps_the_watermarks() {
        let mut lanes = Lanes::default();
        assert!(lanes.sweep_due());
        lanes.raise(lane("a"), TaskId(7));
        lanes.sweep(vec![(lane("b"), None)]);
        assert!(!lanes.sweep_due());
        let mut picked = lanes.pick(false);
        picked.sort_by_key(|(_, after)| *after);
        assert_eq!(picked, [(lane("b"), TaskId(0)), (lane("a"), TaskId(7))]);
    }
}
