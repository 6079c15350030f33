//! Screens about runs, and actions on a run.
//!
//! | screen or part | file |
//! |---|---|
//! | list of runs, filtered by state, job, schedule and time | `list` |
//! | one run: tasks, dependencies, graph, critical path | `run` |
//! | Gantt chart: waits and attempts of each task | `gantt` |
//! | grid: state of each task in the last runs | `grid` |
//! | cancelling, restarting and rerunning a run; retrying one task | `actions` |
//! | approving and rejecting a task of a run | `approvals` |

mod actions;
mod approvals;
mod gantt;
pub(crate) mod grid;
pub(crate) mod list;
pub(crate) mod run;

use axum::Router;

use crate::http::app::App;

pub(crate) fn routes() -> Router<App> {
    list::routes().merge(run::routes()).merge(actions::routes()).merge(approvals::routes())
}
