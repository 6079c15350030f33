//! Decides how often a reclaimer checks whether the terminated backends of a dead worker are gone.

use std::collections::HashSet;

use queue::WorkerId;
use queue::reclaim::DeadWorker;

/// Number of checks whether the terminated backends are gone. If they are not, the next poll of the
/// peers tries again.
const TERMINATE_POLLS: u32 = 20;
/// Number of these checks in later attempts. It is low, because a backend that does not end at once
/// may never end, and every worker checks it.
const TERMINATE_POLLS_REPEATED: u32 = 1;

/// The dead workers whose backends did not all end at once.
#[derive(Debug, Default)]
pub struct ReclaimEffort {
    still_running: HashSet<WorkerId>,
}

impl ReclaimEffort {
    /// Forgets the workers that are no longer dead.
    pub fn retain(&mut self, dead: &[DeadWorker]) {
        self.still_running.retain(|worker| dead.iter().any(|dead| dead.worker == *worker));
    }

    /// Returns the number of checks of the next attempt.
    #[must_use]
    pub fn checks(&self, worker: WorkerId) -> u32 {
        if self.still_running.contains(&worker) {
            TERMINATE_POLLS_REPEATED
        } else {
            TERMINATE_POLLS
        }
    }

    /// Records that backends of the worker remained after all checks.
    pub fn mark_still_running(&mut self, worker: WorkerId) {
        self.still_running.insert(worker);
    }
}
