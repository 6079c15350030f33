//! Scenarios about stability: faults, recovery, memory, and a long mixed load.

pub(crate) mod memory;
pub(crate) mod recovery;
pub(crate) mod soak;
