//! What the API takes from the screens of runs, schedules, jobs and lineage.

pub(crate) use super::job::data as job;
pub(crate) use super::jobs::data as jobs;
pub(crate) use super::lineage::{Known as Lineage, data as lineage};
pub(crate) use super::run::{Known as KnownRun, data as run, no_such_run, run_id};
pub(crate) use super::runs::{Ask as RunAsk, data as runs};
pub(crate) use super::schedule::data as schedule;
pub(crate) use super::schedules::data as schedules;
