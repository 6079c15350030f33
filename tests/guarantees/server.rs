//! Events in the life of a server: its transaction ids run out, dead rows pile up, tables are rewritten
//! or lose their statistics, disks for temporary files are full, and the server is upgraded, restored
//! or replaced.

use crate::harness::{Database, Worker};

pub(crate) mod dead_rows;
pub(crate) mod logical_replication;
pub(crate) mod mixed_versions;
pub(crate) mod restore;
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
