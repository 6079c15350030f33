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

use std::io::Write;
use std::sync::{LazyLock, Once};
use std::time::{Duration, Instant};

pub(crate) use database::{Database, claim_as_worker, open_url};
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

/// Returns an amount of work: `short` in `make test`, `long` in `make test LONG=1`, which is a part of
/// `make check-all`. Both forms assert the same.
pub(crate) fn amount<T>(short: T, long: T) -> T {
    static LONG: LazyLock<bool> = LazyLock::new(|| {
        #[expect(clippy::disallowed_methods, reason = "set by `make test LONG=1`")]
        std::env::var_os("PGMILL_LONG_TESTS").is_some()
    });
    if *LONG { long } else { short }
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

/// From now on, prints the failure of a test at once, too. The test program itself prints it when all
/// tests have ended, which never happens if the run reaches a time limit.
pub(crate) fn print_failures_at_once() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // The threads of tests are named after them. Other threads may panic on purpose.
            if let Some(name) = std::thread::current().name().filter(|name| name.contains("::")) {
                // `eprintln!` would be captured.
                let _ = writeln!(std::io::stderr(), "test {name}: {panic}");
            }
            default_hook(panic);
        }));
    });
}
