//! Statements of a worker process that concern the worker itself and the fleet.

pub mod heartbeat;
pub mod lost_attempts;
pub mod notification;
pub mod poll;
pub mod progress;
pub mod prune;
pub mod queue_conditions;
pub mod server;
pub mod target_conditions;
