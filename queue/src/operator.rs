//! Settings, jobs and runs, as operators and producers change them.

pub mod group;
pub mod job;
pub mod operate;
pub mod priority;
pub mod profile;
pub mod run;
