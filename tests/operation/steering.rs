//! Operators steer what waits: they pause the fleet, change waiting tasks, purge queues, and set conditions of queues.

pub(crate) mod change_task;
pub(crate) mod maintenance;
pub(crate) mod purge;
pub(crate) mod queue_conditions;
