//! Claims: pending → running. One claimer per process claims tasks for the idle readers.
//!
//! `claimer` is the loop. The crate `fleet-decisions` chooses the order in which the claimer looks
//! for tasks, and the number of tasks of a shared commit. `in_flight` holds the claims of the process
//! and delivers stop signals to their tasks. `load` fetches what a claim left out.

pub(crate) mod claimer;
pub(crate) mod in_flight;
pub(crate) mod load;
