//! Values that the claimer observes: the policy of the fleet, from each poll, and the orders of an
//! operator for this worker, from each heartbeat.

use std::collections::BTreeMap;

use fleet_decisions::weights::Weights;

/// What the poller finds that claims depend on.
#[derive(Default)]
pub(crate) struct ClaimPolicy {
    /// Weights of the priorities.
    pub(crate) weights: Weights,
    /// Targets that are held back: nothing is claimed for their readers.
    pub(crate) held_targets: Vec<String>,
    /// Number of the other workers.
    pub(crate) peer_count: usize,
}

/// What the heartbeat receives.
#[derive(Default)]
pub(crate) struct Orders {
    /// Whether an operator has drained this worker.
    pub(crate) draining: bool,
    /// How many readers of each profile run only tasks of priority reserved; these are the first readers
    /// of the profile.
    pub(crate) reserved_readers: BTreeMap<String, u32>,
}
