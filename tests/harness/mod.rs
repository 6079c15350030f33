//! What every test needs: a database of its own, workers, and a way to wait for a condition.

pub(crate) mod console;
pub(crate) mod database;
pub(crate) mod exposition;
pub(crate) mod http;
pub(crate) mod login;
pub(crate) mod pooler;
pub(crate) mod private;
pub(crate) mod program;
pub(crate) mod prometheus;
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
pub(crate) use worker::{Fleet, Worker};

/// Far longer than anything takes: a test that reaches it has failed, however slow the machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Returns once the condition holds, and what it took; panics if it never does.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < TIMEOUT, "waited {TIMEOUT:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    begun.elapsed()
}
