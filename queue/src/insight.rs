//! What the console shows. Every statement here is bounded: it reads a number of rows that does not
//! grow with what is live or was ever done, or a span of history that its caller chose.
//!
//! | what | file |
//! |---|---|
//! | who looks, and what they may do | `viewer` |
//! | what waits in each queue and priority | `lanes` |
//! | what each group has | `groups` |
//! | lists of tasks by a filter, page by page | `tasks`, `condition` |
//! | lists of runs, one run as far as a page can show it, its tasks beside those of earlier runs | `runs` |
//! | lists of jobs | `jobs` |
//! | how attempts ended, minute by minute | `throughput` |
//! | how many tasks waited, minute by minute | `backlog_history` |
//! | how long the tasks of one name take; what fails, by kind | `statistics` |
//! | the last attempts of one name | `recent_attempts` |
//! | plans that were kept | `saved_plan` |
//! | tables, locks that are waited for, connections | `storage` |
//! | backends that hold up a task; schedules that were missed | `problems` |

pub mod backlog_history;
mod condition;
pub mod groups;
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

pub use saved_plan::{SavedPlan, previous_plan, saved_plan};
pub use statistics::{Durations, FailureGroup, durations, durations_of, failures};
