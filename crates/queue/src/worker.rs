//! Statements of a worker process that concern the worker itself and the fleet.
//!
//! | task | file |
//! |---|---|
//! | identity of the server and the database of a session | `server` |
//! | registration, heartbeats, and requests in their responses | `heartbeat` |
//! | poll of an idle worker: work, due times, runs, other workers | `poll` |
//! | progress reports of running tasks | `progress` |
//! | attempts whose worker died, for traces | `lost_attempts` |
//! | check of the conditions under which queues are claimed | `queue_conditions` |
//! | the same check for a target, in the target | `target_conditions` |
//! | claim, delivery and result of notifications | `notification` |
//! | partitions of history, and deletion of old rows | `prune` |

pub mod heartbeat;
pub mod lost_attempts;
pub mod notification;
pub mod poll;
pub mod progress;
pub mod prune;
pub mod queue_conditions;
pub mod server;
pub mod target_conditions;
