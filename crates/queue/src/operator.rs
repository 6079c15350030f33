//! Changes of settings, jobs and runs by operators and producers.
//!
//! | task | file |
//! |---|---|
//! | definitions of jobs, and dependencies between tasks | `job` |
//! | start, advance, approval, cancel, retry and restart of runs | `run` |
//! | groups: default priority, limit per run, active period | `group` |
//! | weights of priorities, share of reserved readers | `priority` |
//! | pause and settings of a queue, drain of a worker, rights of a login | `operate` |
//! | maintenance windows: pauses of the whole fleet | `maintenance` |
//! | profiles: logins under which tasks may run | `profile` |
//! | targets: other databases in which tasks run | `target` |
//! | subscriptions to events, and their notifications | `subscription` |
//! | idempotency keys: the first answer, for a repeated request | `idempotency` |
//! | session settings that can have caused a refusal by the server | `session` |

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
