//! Claims: pending → running. One claimer per process claims tasks for the idle readers.
//!
//! `claimer` is the loop. The crate `fleet-decisions` chooses the order in which the claimer looks
//! for tasks, and the number of tasks of a shared commit. `policy` is what the claimer observes,
//! and `release` releases claims.

pub(crate) mod claimer;
pub(crate) mod policy;
pub(crate) mod release;
