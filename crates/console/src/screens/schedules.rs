//! Screens about schedules: all schedules as a list and as a calendar, one schedule with its next
//! fires, runs, backfills and log, and actions on a schedule.

mod actions;
mod backfills;
pub(crate) mod calendar;
pub(crate) mod list;
pub(crate) mod schedule;

use axum::Router;

use crate::http::app::App;

pub(crate) fn routes() -> Router<App> {
    list::routes()
        .merge(calendar::routes())
        .merge(schedule::routes())
        .merge(actions::routes())
        .merge(backfills::routes())
}
