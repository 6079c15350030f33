//! Changes of settings, jobs and runs by operators and producers.

pub mod group;
pub mod idempotency;
pub mod job;
pub mod maintenance;
pub mod operate;
pub mod priority;
pub mod profile;
pub mod run;
pub mod session;
pub mod subscription;
pub mod target;
