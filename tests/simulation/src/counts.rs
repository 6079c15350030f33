//! Counts of what the fleet sends, and what the invariants need to know of the past.

use std::collections::BTreeMap;

use queue::WorkerId;

use crate::event::{Part, SECOND, SessionId, Time};

/// Time after the last fault of the server until which a wait is blamed on the fault.
const CALM: Time = 30 * SECOND;

#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub(crate) violation: Option<String>,
    pub(crate) statements: BTreeMap<&'static str, u64>,
    /// All statements in their order, if they are recorded.
    pub(crate) order: Option<Vec<(Part, &'static str)>>,
    pub(crate) notifications: u64,
    pub(crate) peers_read: u64,
    /// Number of active faults of the server.
    pub(crate) server_faults: usize,
    /// When the last of them ended.
    pub(crate) server_back_at: Time,
    /// When workers were killed.
    pub(crate) killed: BTreeMap<WorkerId, Time>,
    /// Times from the kill of a worker until its tasks were pending again.
    pub(crate) recoveries: Vec<Time>,
    /// Time since which a quarter of the readers has been idle: in a busy fleet, tasks wait for a
    /// reader.
    pub(crate) idle_since: Time,
    pub(crate) reclaims: u64,
    pub(crate) longest_wait: Time,
    /// Statements in the current tenth of a second, and the most in one.
    tenth: (Time, u64),
    pub(crate) peak: u64,
    /// Polls in the current tenth of a second.
    polls: u64,
    /// The session that last began to execute a task, by task.
    pub(crate) executing: BTreeMap<i64, SessionId>,
}

impl Checks {
    /// Counts a statement. Returns the number of polls in this tenth of a second, if the fleet is
    /// calm.
    pub(crate) fn statement(&mut self, kind: &'static str, now: Time) -> u64 {
        *self.statements.entry(kind).or_default() += 1;
        let tenth = now / (SECOND / 10);
        if self.tenth.0 != tenth {
            self.tenth = (tenth, 0);
            self.polls = 0;
        }
        self.tenth.1 += 1;
        self.peak = self.peak.max(self.tenth.1);
        self.polls += u64::from(kind == "poll");
        if self.is_calm_since(now.saturating_sub(60 * SECOND)) { self.polls } else { 0 }
    }

    pub(crate) fn is_calm_since(&self, since: Time) -> bool {
        self.server_faults == 0 && self.server_back_at + CALM < since
    }
}
