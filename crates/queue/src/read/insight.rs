//! Queries of the console. Every statement here is bounded in one of two ways: the number of rows
//! that it reads does not grow with the number of live or finished tasks, or it reads a span of
//! history that the caller chose.
//!
//! | content | file |
//! |---|---|
//! | the session's login, its privileges, and the database clock | `viewer` |
//! | problems that need an operator: blockers, late or slow work, failures | `problems` |
//! | waiting and running tasks per queue and priority, settings of queues | `lanes` |
//! | groups and limits with their use | `capacity` |
//! | lists of tasks by a filter, page by page | `tasks` |
//! | WHERE clause of these lists, and the values that it binds | `condition` |
//! | lists of runs, one run, its tasks compared with earlier runs | `runs` |
//! | expected ends of runs in progress | `eta` |
//! | lists of jobs, one job, versions of a job and their differences | `jobs` |
//! | ended attempts per minute and queue | `throughput` |
//! | waiting tasks per minute | `backlog_history` |
//! | durations by task name; failures by cause | `statistics` |
//! | the last attempts of one task name | `recent_attempts` |
//! | saved plans of tasks, and the plans before them | `saved_plan` |
//! | sizes of tables, lock waits, connections, retention periods | `storage` |

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
