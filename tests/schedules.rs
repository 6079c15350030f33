//! Schedules, from declaration to fire.

pub(crate) mod annotation;
pub(crate) mod backfill;
pub(crate) mod dropped_fires;
mod ended;
pub(crate) mod new_timing;
pub(crate) mod problems;
pub(crate) mod removed;
pub(crate) mod schedule;
pub(crate) mod schedule_cli;
pub(crate) mod schedule_details;
pub(crate) mod schedule_files;
pub(crate) mod schedule_views;
pub(crate) mod trigger;
