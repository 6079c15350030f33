//! Screens about jobs: all jobs, one job with its dependencies, and lineage across jobs.

pub(crate) mod job;
pub(crate) mod lineage;
pub(crate) mod list;
