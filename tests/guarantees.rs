//! Exactly-once execution while workers, servers and connections fail: claims, fences, recovery,
//! outages.

pub(crate) mod cancel;
pub(crate) mod checker_detection;
pub(crate) mod checker_mutants;
pub(crate) mod claim;
pub(crate) mod clock;
pub(crate) mod exactly_once;
pub(crate) mod failover;
pub(crate) mod fence;
pub(crate) mod memory;
pub(crate) mod outage;
pub(crate) mod overhead;
pub(crate) mod recovery;
pub(crate) mod retry;
pub(crate) mod server;
pub(crate) mod shared_commit;
