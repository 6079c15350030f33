//! Screens about runs: all runs, one run with its graph, timeline and grid of earlier runs,
//! actions on a run, and approvals of its tasks.

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
