//! Queries of the console. Every statement here is bounded in one of two ways: the number of rows
//! that it reads does not grow with the number of live or finished tasks, or it reads a span of
//! history that the caller chose.
//!
//! | content | file |
//! |---|---|
//! | the session's login and its privileges | `viewer` |
//! | counts per queue and priority | `lanes` |
//! | counts per group | `capacity::groups` |
//! | limits with their use | `capacity::limits` |
//! | lists of tasks by a filter, page by page | `tasks`, `condition` |
//! | lists of runs, bounded queries on one run, its tasks compared with earlier runs | `runs` |
//! | lists of jobs | `jobs` |
//! | versions of a job and their differences | `jobs::versions` |
//! | ended attempts per minute | `throughput` |
//! | waiting tasks per minute | `backlog_history` |
//! | durations by task name; failures by cause | `statistics` |
//! | the last attempts of one task name | `recent_attempts` |
//! | saved plans | `saved_plan` |
//! | tables, lock waits, connections | `storage` |
//! | backends that block a task; slow tasks and runs; limits that hold tasks back; missed schedules; failed runs | `problems` |

pub mod backlog_history;
mod capacity;
mod condition;
pub mod eta;
pub mod jobs;
pub mod lanes;
pub mod problems;
pub mod recent_attempts;
pub mod runs;
mod saved_plan;
mod statistics;
pub mod storage;
pub mod tasks;
pub mod throughput;
pub mod viewer;

pub use capacity::{groups, limits};
pub use saved_plan::{SavedPlan, previous_plan, saved_plan};
pub use statistics::{Durations, FailureGroup, durations, durations_of, failures};
