//! Targets that were restored to an earlier time, or are held back.

use jiff::Timestamp;
use serde::Serialize;

use crate::row::from_row;

/// Up to 20 targets that were restored and not yet accepted.
pub(super) const RESTORED: &str = "SELECT /* queue.insight_restored_targets */ t.name, t.restored_at AS at FROM mill.targets t WHERE t.restored_at IS NOT NULL ORDER BY 2, 1 LIMIT 20";

/// A target that was restored to an earlier time, so that effects of tasks may be missing.
#[derive(Clone, Debug, Serialize)]
pub struct RestoredTarget {
    /// Name of the target.
    pub name: String,
    /// Time at which a worker found it.
    pub at: Timestamp,
}

from_row! { RestoredTarget { name, at } }

/// Up to 20 targets that are held back.
pub(super) const HELD: &str = "SELECT /* queue.insight_held_targets */ c.name, c.held_back AS reason FROM mill.target_checks c WHERE c.held_back IS NOT NULL ORDER BY 1 LIMIT 20";

/// A target one of whose conditions does not hold, so that workers claim none of its tasks.
#[derive(Clone, Debug, Serialize)]
pub struct HeldTarget {
    /// Name of the target.
    pub name: String,
    /// Which condition does not hold.
    pub reason: String,
}

from_row! { HeldTarget { name, reason } }
