//! Events in the life of a server: it crashes because of a task, its transaction ids run out, dead rows
//! pile up, tables are rewritten or lose their statistics, disks for temporary files are full, it speaks
//! another language or has other settings, and it is upgraded, restored or replaced.

use crate::harness::{Database, Worker};

pub(crate) mod collations;
pub(crate) mod crash;
pub(crate) mod database_settings;
pub(crate) mod dead_rows;
pub(crate) mod languages;
pub(crate) mod logical_replication;
pub(crate) mod logins_without_rights;
pub(crate) mod plans;
pub(crate) mod restore;
pub(crate) mod retention;
pub(crate) mod rewrites;
pub(crate) mod statistics;
pub(crate) mod temporary_files;
pub(crate) mod transaction_ids;
pub(crate) mod upgrade;

/// Starts a worker that takes another one for dead after this time.
fn worker(database: &Database, readers: &str, orphan_timeout: &str, more: &[&str]) -> Worker {
    let flags = [
        "--readers",
        readers,
        "--poll-interval",
        "50ms",
        "--heartbeat-interval",
        "300ms",
        "--orphan-timeout",
        orphan_timeout,
    ];
    Worker::start(database, &[&flags[..], more].concat())
}
