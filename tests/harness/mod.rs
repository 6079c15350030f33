//! Test harness: a database per test, worker processes, and waiting for a condition.

pub(crate) mod console;
pub(crate) mod database;
pub(crate) mod exposition;
pub(crate) mod http;
pub(crate) mod login;
pub(crate) mod pooler;
pub(crate) mod private;
pub(crate) mod program;
pub(crate) mod prometheus;
pub(crate) mod receiver;
pub(crate) mod record;
pub(crate) mod routes;
pub(crate) mod terminal;
pub(crate) mod worker;

use std::time::{Duration, Instant};

pub(crate) use database::{Database, open_url};
pub(crate) use pooler::Pooler;
pub(crate) use private::PrivateDatabase;
pub(crate) use program::Program;
pub(crate) use prometheus::Prometheus;
pub(crate) use receiver::Receiver;
pub(crate) use worker::{Embedded, Fleet, Worker};

/// Time limit of [`eventually`]. It is much longer than any operation takes, also on a slow
/// machine, so a test that reaches it has failed.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Waits until the condition holds and returns the time taken; panics after the time limit.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < TIMEOUT, "condition not met after {TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    begun.elapsed()
}

/// Repeats the run of a test until its tasks have shared transactions. On a busy machine, the time
/// budget of a shared commit can be too short for a second task.
pub(crate) async fn until_shared(mut run: impl AsyncFnMut() -> bool) {
    for _ in 0..20 {
        if run().await {
            return;
        }
    }
    panic!("each task had its own transaction in 20 runs");
}
