//! Screens about jobs: all jobs, one job with its runs, its versions, and lineage across jobs.

mod actions;
mod durations;
pub(crate) mod job;
pub(crate) mod lineage;
pub(crate) mod list;
pub(crate) mod versions;

use axum::Router;

use crate::http::app::App;

pub(crate) fn routes() -> Router<App> {
    list::routes().merge(job::routes()).merge(versions::routes()).merge(actions::routes())
}
