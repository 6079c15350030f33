//! Screens about schedules, and actions on a schedule.
//!
//! | screen or part | file |
//! |---|---|
//! | all schedules with their next fire and recent runs | `list` |
//! | calendar of past and coming fires, by day or hour | `calendar` |
//! | one schedule: definition, next fires, runs, backfills, log | `schedule` |
//! | running now, enabling and disabling, dry run | `actions` |
//! | starting a backfill or its dry run; pausing, resuming, cancelling | `backfills` |

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
