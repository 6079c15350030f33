//! Statements of a worker process about itself and the fleet.

pub mod heartbeat;
pub mod poll;
pub mod progress;
pub mod prune;
pub mod server;
