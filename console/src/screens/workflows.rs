//! Re-exports of the run, schedule, job and lineage screens for the API.

pub(crate) use super::job::data as job;
pub(crate) use super::jobs::data as jobs;
pub(crate) use super::lineage::{LineageDetail, data as lineage};
pub(crate) use super::run::{RunDetail, data as run, no_such_run, run_id};
pub(crate) use super::runs::{RunsParams, data as runs};
pub(crate) use super::schedule::data as schedule;
pub(crate) use super::schedules::data as schedules;
