//! Screens about the fleet: its state, and actions on queues, workers, limits and more.
//!
//! | screen or part | file |
//! |---|---|
//! | overview: problems, queues and throughput plots | `overview` |
//! | problems that need attention, each with a link to a screen | `problems` |
//! | counts, rates and last hour of each queue and priority | `queue_stats` |
//! | workers with their running tasks, and their drain | `workers` |
//! | queues: task counts, pause, purge, limits, shared commits, conditions | `queues` |
//! | pause of the whole fleet, at once or planned | `pause` |
//! | limits of queues, groups and concurrency keys, with their use | `limits` |
//! | weights of priorities, and reserved readers | `priorities` |
//! | groups: limit per run, priority, active period | `groups` |
//! | subscriptions, and notifications that were not delivered | `subscriptions` |
//! | database: server, checks of `pgmill doctor`, tables, connections, lock waits | `database` |

pub(crate) mod database;
pub(crate) mod groups;
pub(crate) mod limits;
pub(crate) mod overview;
mod pause;
pub(crate) mod priorities;
pub(crate) mod problems;
pub(crate) mod queue_stats;
pub(crate) mod queues;
pub(crate) mod subscriptions;
pub(crate) mod workers;
