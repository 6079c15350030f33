//! Screens about the fleet: overview with problems, workers, queues, limits, priorities,
//! groups, subscriptions, and the database.

pub(crate) mod database;
pub(crate) mod groups;
pub(crate) mod limits;
pub(crate) mod overview;
mod pause;
pub(crate) mod priorities;
pub(crate) mod problems;
mod purge;
pub(crate) mod queue_stats;
pub(crate) mod queues;
pub(crate) mod subscriptions;
pub(crate) mod workers;
