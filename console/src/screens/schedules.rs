//! Screens about schedules: all schedules, one schedule with its next fires, runs and log, and
//! actions on a schedule.

mod actions;
pub(crate) mod list;
pub(crate) mod schedule;
