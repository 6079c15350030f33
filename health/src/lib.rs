//! Findings about a queue and its fleet, shared by `pgmill` and the console: the checks of `doctor`
//! on the installation, and the problems that need attention now.
//!
//! Invariant: pure. Callers read the facts with the crate `queue` and decide how to present the
//! findings; nothing here waits, prints or knows the time.

pub mod doctor_checks;
pub mod problems;
