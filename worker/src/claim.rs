//! Claims: pending → running. One claimer per process claims tasks for the idle readers.
//!
//! `claimer` is the loop. `lanes` and `weights` choose the order in which the claimer looks for
//! tasks, and `batch_size` chooses the number of tasks of a shared commit. `in_flight` holds the
//! claims of the process and delivers stop signals to their tasks.

pub(crate) mod batch_size;
pub(crate) mod claimer;
pub(crate) mod in_flight;
pub(crate) mod lanes;
pub(crate) mod weights;
