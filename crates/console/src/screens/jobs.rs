//! Screens about jobs, and actions on a job.
//!
//! | screen or part | file |
//! |---|---|
//! | all jobs, each with its newest run | `list` |
//! | one job: last runs as a grid, schedules, tasks, dependencies | `job` |
//! | plot of durations of a job, or of one task, in the last runs | `durations` |
//! | start of a run; enabling and disabling a job or one task | `actions` |
//! | versions of a job, and the differences between two versions | `versions` |
//! | upstream and downstream tasks of a task, across all jobs | `lineage` |

use crate::screens::prelude::*;

mod actions;
mod durations;
pub(crate) mod job;
pub(crate) mod lineage;
pub(crate) mod list;
pub(crate) mod versions;

pub(crate) fn routes() -> Router<App> {
    list::routes().merge(job::routes()).merge(versions::routes()).merge(actions::routes())
}
