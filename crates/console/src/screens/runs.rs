//! Screens about runs, and actions on a run.
//!
//! | screen or part | file |
//! |---|---|
//! | list of runs, filtered by state, job, schedule and time | `list` |
//! | one run: tasks, dependencies, graph, critical path | `run` |
//! | Gantt chart: waits and attempts of each task | `gantt` |
//! | grid: state of each task in the last runs | `grid` |
//! | cancelling, restarting and rerunning a run; retrying, approving and rejecting one task | `actions` |

use crate::screens::prelude::*;

pub(crate) mod actions;
mod gantt;
pub(crate) mod grid;
pub(crate) mod list;
pub(crate) mod run;

pub(crate) fn routes() -> Router<App> {
    list::routes().merge(run::routes()).merge(actions::routes())
}
