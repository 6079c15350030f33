//! Screens of the web console.

pub(crate) mod console_databases;
pub(crate) mod console_environment;
pub(crate) mod console_job;
pub(crate) mod console_limits;
pub(crate) mod console_lists;
pub(crate) mod console_plans;
pub(crate) mod console_plots;
pub(crate) mod console_rerun;
pub(crate) mod console_runs;
pub(crate) mod console_schedules;
pub(crate) mod console_task;
pub(crate) mod pages;
