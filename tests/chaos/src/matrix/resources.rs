//! Resources of the operating system that the faults need: disks, networks, limits of memory.

pub(crate) mod disk;
pub(crate) mod memory;
pub(crate) mod network;
pub(crate) mod scratch;
