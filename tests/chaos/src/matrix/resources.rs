//! Resources of the operating system that the faults need: disks, networks, clocks, poolers,
//! limits of memory.

pub(crate) mod clock;
pub(crate) mod disk;
pub(crate) mod frozen_disk;
pub(crate) mod memory;
pub(crate) mod network;
pub(crate) mod pooler;
pub(crate) mod scratch;
