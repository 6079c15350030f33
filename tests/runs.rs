//! Jobs and runs.

mod added_tasks;
pub(crate) mod apply;
pub(crate) mod approvals;
pub(crate) mod deadlines;
pub(crate) mod eta;
pub(crate) mod job_versions;
mod open_transactions;
pub(crate) mod run;
pub(crate) mod run_cli;
pub(crate) mod run_control;
pub(crate) mod run_model;
pub(crate) mod run_races;
pub(crate) mod run_replay;
mod run_results;
pub(crate) mod timeouts;
