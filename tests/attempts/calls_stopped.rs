//! A handler that is stopped, or whose process dies, leaves nothing behind, and its call runs again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use pgmill_worker::{Builder, Worker as Library};
use rustix::process::Signal;
use tokio::runtime;
use tokio::sync::{Notify, oneshot};

use crate::harness::{Database, Embedded, Worker, eventually};

/// What the handlers of a test have done.
#[derive(Default)]
struct Seen {
    started: Mutex<u32>,
    dropped: AtomicU32,
    go_on: Notify,
}

/// Counts the drop of a handler.
struct CountDrop(Arc<Seen>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns a worker with three handlers: `wait` waits outside the database, until `go_on`; `lock`
/// waits in the database; `stubborn` ignores errors.
fn waiting(seen: &Arc<Seen>) -> Builder {
    let (first, second, third) = (Arc::clone(seen), Arc::clone(seen), Arc::clone(seen));
    Library::builder()
        .handler("wait", move |call| {
            let seen = Arc::clone(&first);
            Box::pin(async move {
                call.transaction().batch_execute("INSERT INTO effect VALUES (1)").await?;
                let _dropped = CountDrop(Arc::clone(&seen));
                *seen.started.lock() += 1;
                seen.go_on.notified().await;
                Ok(())
            })
        })
        .handler("lock", move |call| {
            let seen = Arc::clone(&second);
            Box::pin(async move {
                let _dropped = CountDrop(Arc::clone(&seen));
                *seen.started.lock() += 1;
                let sql = "INSERT INTO effect VALUES (1); SELECT pg_advisory_xact_lock(1)";
                call.transaction().batch_execute(sql).await?;
                Ok(())
            })
        })
        .handler("stubborn", move |call| {
            let seen = Arc::clone(&third);
            Box::pin(async move {
                let _dropped = CountDrop(Arc::clone(&seen));
                *seen.started.lock() += 1;
                let mut failed = 0;
                while failed < 1_000_000 {
                    let sql = "SELECT pg_advisory_xact_lock(1)";
                    failed += u32::from(call.transaction().batch_execute(sql).await.is_err());
                }
                Ok(())
            })
        })
}

async fn database() -> Database {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (n int); SELECT pg_advisory_lock(1)").await;
    database
}

async fn effects(database: &Database) -> i64 {
    database.value("SELECT count(*) FROM effect").await
}

async fn until_started(seen: &Seen, times: u32) {
    eventually("the handler runs", async || *seen.started.lock() == times).await;
}

/// Waits until no session of a reader runs a statement or has an open transaction.
async fn until_no_open_transaction(database: &Database) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
               AND application_name LIKE '%reader%' AND state <> 'idle'";
    eventually("the sessions are idle", async || database.value::<i64>(sql).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_waits_is_stopped_at_its_timeout() {
    let database = database().await;
    let seen = Arc::<Seen>::default();
    let _worker = Embedded::start(&database, waiting(&seen));
    for (n, name) in (1..).zip(["wait", "lock", "stubborn"]) {
        let options = ", params => '[1]', max_attempts => 1, timeout => '200ms'";
        let call = format!("CALL {name}($1)");
        let mut ran = database.run(&call, options).await;
        // On a busy machine, the time can be up before the handler waits.
        for _ in 1..20 {
            if *seen.started.lock() == n {
                break;
            }
            ran = database.run(&call, options).await;
        }
        assert_eq!(ran.outcome, "timed_out", "{ran:?}");
        assert!(ran.message.starts_with("ran longer than its timeout"), "{ran:?}");
        assert_eq!(ran.detail, "the handler was stopped");
        assert_eq!(seen.dropped.load(Ordering::Relaxed), n, "{name}");
        until_no_open_transaction(&database).await;
    }
    assert_eq!(effects(&database).await, 0);
    assert_eq!(database.run("SELECT 1", "").await.outcome, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_handler_is_stopped() {
    let database = database().await;
    let seen = Arc::<Seen>::default();
    let builder = waiting(&seen).setting("heartbeat_interval", "100ms");
    let _worker = Embedded::start(&database, builder);
    for (n, name) in (1..).zip(["wait", "lock", "stubborn"]) {
        let id = database.enqueue(&format!("CALL {name}($1)"), ", params => '[1]'").await;
        until_started(&seen, n).await;
        database.execute(&format!("SELECT mill.cancel({id})")).await;
        let ended = database.record(id).await;
        assert_eq!((&*ended.outcome, &*ended.detail), ("cancelled", "the handler was stopped"));
        assert_eq!(seen.dropped.load(Ordering::Relaxed), n, "{name}");
        until_no_open_transaction(&database).await;
    }
    assert_eq!(effects(&database).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_whose_backend_is_terminated_is_dropped_and_runs_again() {
    let database = database().await;
    let seen = Arc::<Seen>::default();
    let _worker = Embedded::start(&database, waiting(&seen));
    let id = database.enqueue("CALL wait($1)", ", params => '[1]', max_attempts => 1").await;
    until_started(&seen, 1).await;
    database
        .execute("SELECT pg_terminate_backend(session_pid) FROM mill.tasks WHERE state = 'running'")
        .await;
    until_started(&seen, 2).await;
    assert_eq!(seen.dropped.load(Ordering::Relaxed), 1);
    seen.go_on.notify_one();
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(effects(&database).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_waits_for_a_running_handler() {
    let database = database().await;
    let seen = Arc::<Seen>::default();
    let mut worker = Embedded::start(&database, waiting(&seen));
    let id = database.enqueue("CALL wait($1)", ", params => '[1]'").await;
    until_started(&seen, 1).await;
    worker.shut_down();
    // The claimer closes its session when the worker stops claiming.
    let claimers = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                    AND application_name LIKE '%claimer%'";
    eventually("the worker drains", async || database.value::<i64>(claimers).await == 0).await;
    let after = database.enqueue("SELECT 1", "").await;
    seen.go_on.notify_one();
    worker.ended().await.unwrap();
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(effects(&database).await, 1);
    let state = format!("SELECT state::text FROM mill.tasks WHERE id = {after}");
    assert_eq!(database.value::<String>(&state).await, "pending");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.workers").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_outlasts_the_shutdown_is_released() {
    let database = database().await;
    let seen = Arc::<Seen>::default();
    let builder = waiting(&seen).setting("shutdown_timeout", "100ms");
    let mut worker = Embedded::start(&database, builder);
    let id = database.enqueue("CALL wait($1)", ", params => '[1]', max_attempts => 1").await;
    until_started(&seen, 1).await;
    worker.shut_down();
    worker.ended().await.unwrap();
    assert_eq!(seen.dropped.load(Ordering::Relaxed), 1);
    database.until_state(id, "pending").await;
    assert_eq!(effects(&database).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_worker_releases_its_calls() {
    let database = database().await;
    let seen = Arc::<Seen>::default();
    let worker = Embedded::start(&database, waiting(&seen));
    let id = database.enqueue("CALL wait($1)", ", params => '[1]', max_attempts => 1").await;
    until_started(&seen, 1).await;
    worker.abort().await;
    let _second = Embedded::start(&database, waiting(&seen));
    until_started(&seen, 2).await;
    seen.go_on.notify_one();
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!((database.attempts(id).await.as_str(), effects(&database).await), ("succeeded", 1));
}

const FAST: [(&str, &str); 3] = [
    ("PGMILL_HEARTBEAT_INTERVAL", "200ms"),
    ("PGMILL_ORPHAN_TIMEOUT", "1s"),
    ("PGMILL_POLL_INTERVAL", "50ms"),
];

/// Creates the table of the sample. A trigger makes its handler wait for an advisory lock.
async fn database_of_sample() -> (Database, i64) {
    let database = database().await;
    let sample = include_str!("../../samples/embedded_worker/calls.sql");
    database.execute(sample).await;
    database
        .execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN new; END';
             CREATE TRIGGER wait AFTER INSERT ON sent_invoices FOR EACH ROW EXECUTE FUNCTION wait()",
        )
        .await;
    let id = database.value("SELECT max(id) FROM mill.tasks").await;
    (database, id)
}

async fn sent(database: &Database) -> i64 {
    database.value("SELECT count(*) FROM sent_invoices WHERE invoice = 7").await
}

#[tokio::test]
async fn the_calls_of_a_killed_program_run_again_and_take_effect_once() {
    let (database, id) = database_of_sample().await;
    let mut doomed = Worker::start_sample(&database, &FAST);
    database.until_waiting_for_lock(id).await;
    doomed.kill();
    let mut heir = Worker::start_sample(&database, &FAST);
    eventually("the call runs again", async || {
        let sql = "SELECT count(*) FROM mill.running WHERE attempt = 2 AND wait_event = 'advisory'";
        database.value::<i64>(sql).await == 1
    })
    .await;
    assert_eq!(sent(&database).await, 0);
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(
        (database.attempts(id).await.as_str(), sent(&database).await),
        ("lost succeeded", 1)
    );
    heir.signal(Signal::INT);
    assert!(heir.ended().await.success(), "{}", heir.log());
    assert_eq!(heir.log(), "");
}

#[tokio::test]
async fn a_program_that_resumes_after_the_reclaim_commits_nothing() {
    let (database, id) = database_of_sample().await;
    let frozen = Worker::start_sample(&database, &FAST);
    database.until_waiting_for_lock(id).await;
    frozen.signal(Signal::STOP);
    let _heir = Worker::start_sample(&database, &FAST);
    eventually("the call is reclaimed", async || {
        database.value::<i64>("SELECT count(*) FROM mill.attempts WHERE outcome = 'lost'").await
            == 1
    })
    .await;
    // The program resumes after the end of the call. Earlier, it could consider the heir dead, if a
    // heartbeat of the heir were late.
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    frozen.signal(Signal::CONT);
    database.until_alive(2).await;
    assert_eq!(
        (database.attempts(id).await.as_str(), sent(&database).await),
        ("lost succeeded", 1)
    );
}

#[tokio::test]
async fn a_worker_runs_calls_on_a_runtime_with_one_thread() {
    let database = database().await;
    let seen = Arc::<Seen>::default();
    let mut worker = Embedded::start(&database, waiting(&seen));
    seen.go_on.notify_one();
    let ran = database.run("CALL wait($1)", ", params => '[1]'").await;
    assert_eq!(ran.outcome, "succeeded", "{ran:?}");
    worker.shut_down();
    worker.ended().await.unwrap();
}

/// The worker has no thread left for its heartbeats, so it counts as dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_handler_blocks_the_only_thread_is_reclaimed_and_takes_effect_once() {
    let database = database().await;
    let fast = |builder: Builder| {
        let builder = builder.setting("heartbeat_interval", "200ms");
        builder.setting("orphan_timeout", "1s")
    };
    let insert = "INSERT INTO effect VALUES (1)";
    let (unblock, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let blocking = fast(Library::builder().handler("block", move |call| {
        let blocked = Arc::clone(&blocked);
        Box::pin(async move {
            call.transaction().batch_execute(insert).await?;
            let _ = blocked.lock().recv();
            Ok(())
        })
    }));
    let (shutdown, requested) = oneshot::channel::<()>();
    let (url, tasks) = (database.worker_url(), database.task_url());
    let doomed = std::thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut worker = Embedded::start_at(&url, &tasks, blocking);
            let _ = requested.await;
            worker.shut_down();
            worker.ended().await.unwrap();
        });
    });
    let id = database.enqueue("CALL block($1)", ", params => '[1]', max_attempts => 1").await;
    let inserted = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                    AND state = 'idle in transaction' AND query LIKE 'INSERT%'";
    eventually("the handler blocks", async || database.value::<i64>(inserted).await == 1).await;
    let heir = fast(Library::builder().handler("block", move |call| {
        Box::pin(async move { Ok(call.transaction().batch_execute(insert).await?) })
    }));
    let _heir = Embedded::start(&database, heir);
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(database.attempts(id).await, "lost succeeded");
    drop((unblock, shutdown));
    tokio::task::spawn_blocking(|| doomed.join().unwrap()).await.unwrap();
    assert_eq!(effects(&database).await, 1);
}
