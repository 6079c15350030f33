//! Scenarios about stability: faults, recovery, memory, and a long mixed load.
//!
//! | scenario | file |
//! |---|---|
//! | recovery time after a killed worker, a frozen worker, a database restart | `recovery` |
//! | memory of a worker: a long drain, a huge result, many notices | `memory` |
//! | mixed load at a steady rate, with a failover in the middle | `soak` |

pub(crate) mod memory;
pub(crate) mod recovery;
pub(crate) mod soak;
