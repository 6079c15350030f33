//! Commands about the fleet: its state, its workers and queues, and their capacity.

pub(crate) mod capacity;
pub(crate) mod console;
mod group_import;
mod group_settings;
pub(crate) mod groups;
pub(crate) mod health;
pub(crate) mod pause;
mod purge;
pub(crate) mod queues;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod workers;
