//! Screens about jobs: all jobs, one job with its dependencies, and lineage across jobs.

pub(crate) mod job;
pub(crate) mod lineage;
pub(crate) mod list;

use axum::Router;

use crate::http::app::App;

pub(crate) fn routes() -> Router<App> {
    list::routes().merge(job::routes())
}
