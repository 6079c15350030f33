//! Commands about the fleet: its state, its workers and queues, and their capacity.
//!
//! | command | file |
//! |---|---|
//! | `pgmill status`: problems, queues, workers, outcomes of the last hour | `status` |
//! | `pgmill top`: the same live in the terminal, with keys to act | `top` |
//! | `pgmill console`: serves the web console until a signal | `console` |
//! | `pgmill worker`: lists workers, and drains them | `workers` |
//! | `pgmill health`: asks one worker over HTTP, without a database | `health` |
//! | `pgmill pause` and `resume`: maintenance windows of the whole fleet | `pause` |
//! | `pgmill queue`: lists, pauses, resumes and configures queues | `queues` |
//! | `pgmill queue purge`: cancels the waiting tasks of a queue in chunks | `purge` |
//! | `pgmill priority` and `limit`: weights, reserved readers, limits, rates | `capacity` |
//! | `pgmill group`: lists, changes and removes groups; the default group | `groups` |
//! | `pgmill group import`: groups of a CSV file, all or none | `group_import` |
//! | the settings of one group, which `group set` and `group import` apply | `group_settings` |

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
