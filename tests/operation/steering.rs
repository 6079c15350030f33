//! Operators steer what waits: they pause the fleet, change waiting tasks, and purge queues.

pub(crate) mod change_task;
pub(crate) mod maintenance;
pub(crate) mod purge;
