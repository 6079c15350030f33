//! Screens about runs: all runs, one run with its graph, timeline and comparison with earlier runs,
//! and actions on a run.

mod actions;
mod comparison;
mod gantt;
pub(crate) mod list;
pub(crate) mod run;
