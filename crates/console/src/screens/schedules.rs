//! Screens about schedules, and actions on a schedule.
//!
//! | screen or part | file |
//! |---|---|
//! | all schedules with their next fire and recent runs | `list` |
//! | calendar of past and coming fires, by day or hour | `calendar` |
//! | one schedule: definition, next fires, runs, backfills, log | `schedule` |
//! | running now, enabling and disabling, dry run, backfills | `actions` |

use crate::screens::prelude::*;

mod actions;
pub(crate) mod calendar;
pub(crate) mod list;
pub(crate) mod schedule;

pub(crate) fn routes() -> Router<App> {
    list::routes().merge(calendar::routes()).merge(schedule::routes()).merge(actions::routes())
}
