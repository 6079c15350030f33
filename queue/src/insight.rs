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
//! | how attempts ended, minute by minute | `tally` |
//! | how many tasks waited, minute by minute | `waiting` |
//! | how long the tasks of one name take; what fails, by kind | `kinds` |
//! | the last attempts of one name | `lately` |
//! | plans that were kept | `plan` |
//! | tables, locks that are waited for, connections | `storage` |
//! | backends that hold up a task; schedules that were missed | `trouble` |

mod condition;
pub mod groups;
pub mod jobs;
mod kinds;
pub mod lanes;
pub mod lately;
mod plan;
pub mod runs;
pub mod storage;
pub mod tally;
pub mod tasks;
pub mod trouble;
pub mod viewer;
pub mod waiting;

pub use kinds::{Durations, FailureGroup, durations, durations_of, failures};
pub use plan::{KeptPlan, plan, plan_before};
