//! Findings about a queue and its fleet, shared by `pgmill` and the console. There are two kinds:
//! the checks of `doctor` on the installation, and the problems that need attention now.
//!
//! Invariant: this crate is pure. Callers read the facts with the crate `queue` and decide how to
//! present the findings. Nothing here waits, prints or reads the clock.

pub mod doctor_checks;
pub mod problems;
