//! Queries that change nothing: for the console, the command line and the metrics.

pub mod attempt;
pub mod audit;
pub mod critical_path;
pub mod doctor;
pub mod fleet;
pub mod history;
pub mod insight;
pub mod lineage;
pub mod lock_wait;
pub mod names;
pub mod queue_status;
pub mod run_attempts;
pub mod run_queries;
pub mod task_queries;
pub mod workers;
