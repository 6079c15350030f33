//! A transaction that somebody leaves open delays the run that it has changed, and nothing else.

use proxy::{FaultAction, MessageMatch, Proxy};
use queue::poll::{PollOptions, Served, poll};
use queue::release::release_unknown_claims;
use queue::{RunId, WorkerId};
use serde_json::json;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::harness::{Database, Worker, amount, eventually};
use crate::runs::run::{job, start, why};
use crate::targets::target::{Configuration, EFFECT};

/// Starts a run of three tasks, of which two have concurrency keys. Returns its id.
async fn run_with_keys(database: &Database) -> i64 {
    let task =
        |name: &str, key| json!({"name": name, "statement": "SELECT 1", "concurrency_key": key});
    let tasks = [task("free", Some("f")), task("keyed", Some("k")), task("other", None)];
    job(database, "j", json!(tasks)).await;
    start(database, "j").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_waits_for_the_transaction_that_creates_its_limit_and_the_others_run() {
    let database = Database::new().await;
    let operator = database.connect().await;
    operator.batch_execute("BEGIN; SELECT mill.set_max_running('key', 'k', 2)").await.unwrap();
    let run = run_with_keys(&database).await;
    let states = "SELECT string_agg(name || ' ' || state, ', ' ORDER BY name) FROM mill.run_tasks";
    let _worker = Worker::start(&database, &["--readers", "2", "--poll-interval", "50ms"]);
    eventually("the other tasks end", async || {
        database.value::<String>(states).await == "free succeeded, keyed released, other succeeded"
    })
    .await;
    let waits = "it waits until a worker has created the limit of concurrency key \"k\", \
        which another transaction may be creating or removing";
    assert_eq!(why(&database, run, "keyed").await, waits);
    operator.batch_execute("COMMIT").await.unwrap();
    let ended = format!("SELECT state = 'succeeded' FROM mill.runs WHERE id = {run}");
    eventually("the run ends", async || database.value::<bool>(&ended).await).await;
    database.until_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_a_poll_finds_is_advanced_while_tasks_of_a_locked_run_end() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_group('paused', max_running => 0)").await;
    let (count, seconds) = amount((400, 0.3), (2000, 0.1));
    let sleeps = format!("SELECT pg_sleep({seconds})");
    let tasks: Vec<_> = (0..count)
        .map(|n| json!({"name": format!("t{n}"), "statement": sleeps, "priority": "low"}))
        .collect();
    job(&database, "long", json!(tasks)).await;
    let long = start(&database, "long").await;
    let holder = database.connect().await;
    // Each advance of this run waits, and while it does, further tasks of this run end.
    let lock = format!("BEGIN; SELECT FROM mill.runs WHERE id = {long} FOR UPDATE");
    holder.batch_execute(&lock).await.unwrap();
    let paused = json!([{"name": "paused", "statement": "SELECT 1", "group": "paused"}]);
    job(&database, "j", paused).await;
    let found_by_polls = start(&database, "j").await;
    let _worker = Worker::start(&database, &["--readers", "4", "--poll-interval", "50ms"]);
    let attempts = "SELECT count(*) FROM mill.attempts WHERE name LIKE 't%'";
    eventually("tasks end", async || database.value::<i64>(attempts).await > 20).await;
    // No worker has run this task, so none advances its run by itself.
    database.execute("SELECT mill.cancel(id) FROM mill.tasks WHERE name = 'paused'").await;
    let ended = format!("SELECT state = 'cancelled' FROM mill.runs WHERE id = {found_by_polls}");
    eventually("the run ends", async || database.value::<bool>(&ended).await).await;
    let left = format!("SELECT count(*) FROM mill.tasks WHERE run_id = {long}");
    assert!(database.value::<i64>(&left).await > 0, "it was advanced after the other run only");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_whose_task_fails_in_a_locked_run_runs_other_tasks() {
    let database = Database::new().await;
    database.execute("CREATE TABLE gate ()").await;
    let gate = database.connect().await;
    gate.batch_execute("BEGIN; LOCK TABLE gate").await.unwrap();
    let fails = json!([{"name": "t", "statement": "SELECT 1/0 FROM gate RIGHT JOIN (VALUES (1)) AS one ON true",
        "max_attempts": 2, "retry_interval": "0 s"}]);
    job(&database, "j", fails).await;
    let run = start(&database, "j").await;
    let worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "50ms"]);
    let waits =
        "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND relation = 'gate'::regclass";
    eventually("the task waits", async || database.value::<bool>(waits).await).await;
    let holder = database.connect().await;
    let lock = format!("BEGIN; SELECT FROM mill.runs WHERE id = {run} FOR UPDATE");
    holder.batch_execute(&lock).await.unwrap();
    gate.batch_execute("COMMIT").await.unwrap();
    worker.until_logged("recording the end failed, trying again").await;
    let other = database.enqueue("SELECT 1", "").await;
    assert_eq!(database.outcome(other).await, "succeeded");
    holder.batch_execute("COMMIT").await.unwrap();
    let ended = format!("SELECT state = 'failed' FROM mill.runs WHERE id = {run}");
    eventually("the run ends", async || database.value::<bool>(&ended).await).await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.attempts").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn successes_in_a_target_are_recorded_while_many_tasks_fail_in_a_locked_run() {
    let database = Database::new().await;
    let dwh = Database::empty().await;
    let configuration = Configuration::new(&database, &[("dwh", &dwh, dwh.url())]).await;
    let (tasks, successes) = amount((140, 2), (200, 10));
    let fails = |n| json!({"name": format!("t{n}"), "statement": "SELECT 1/0", "max_attempts": 2, "retry_interval": "0 s"});
    job(&database, "j", json!((0..tasks).map(fails).collect::<Vec<_>>())).await;
    let run = start(&database, "j").await;
    let holder = database.connect().await;
    let lock = format!("BEGIN; SELECT FROM mill.runs WHERE id = {run} FOR UPDATE");
    holder.batch_execute(&lock).await.unwrap();
    let path = configuration.path();
    let config = path.to_str().unwrap();
    let flags = ["--readers", "30", "--poll-interval", "50ms", "--config", config];
    let _worker = Worker::start(&database, &flags);
    // A worker leaves up to 100 results to be recorded later; then its readers wait for them.
    let claimed = "SELECT count(*) >= 130 FROM mill.tasks WHERE state = 'running'";
    eventually("the readers wait", async || database.value::<bool>(claimed).await).await;
    for _ in 0..successes {
        let id = database.enqueue(EFFECT, ", run_as => 'dwh'").await;
        assert_eq!(database.outcome(id).await, "succeeded");
    }
    assert!(database.value::<bool>(claimed).await, "the run was not locked");
    holder.batch_execute("COMMIT").await.unwrap();
    let ended = format!("SELECT state = 'failed' FROM mill.runs WHERE id = {run}");
    eventually("the run ends", async || database.value::<bool>(&ended).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_for_closed_sessions_in_a_locked_run_keeps_no_other_task_waiting() {
    let database = Database::new().await;
    let proxy = Proxy::start(&database.url()).await.unwrap();
    let flags = ["--readers", "2", "--poll-interval", "50ms"];
    let _worker = Worker::start_through(&proxy.url(&database.worker_url()), &database, &flags);
    let readers = "SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'pgmill reader %'";
    let pids = async || database.value::<Vec<i32>>(readers).await;
    eventually("the readers wait", async || pids().await.len() == 2).await;
    // Of the requests of a worker, only a claim names the queue.
    proxy.arm(MessageMatch::Text("quarantine".to_owned()), FaultAction::HoldAnswer);
    job(&database, "j", json!([{"name": "t", "statement": "SELECT 1", "queue": "quarantine"}]))
        .await;
    let run = start(&database, "j").await;
    let other = database.enqueue("SELECT 1", ", queue => 'quarantine'").await;
    proxy.fired().await;
    let claimed =
        "SELECT count(*) = 1 FROM mill.tasks WHERE state = 'running' AND node IS NOT NULL";
    eventually("the task is claimed", async || database.value::<bool>(claimed).await).await;
    let holder = database.connect().await;
    let lock = format!("BEGIN; SELECT FROM mill.runs WHERE id = {run} FOR UPDATE");
    holder.batch_execute(&lock).await.unwrap();
    let old = pids().await;
    database.rows("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", &[&old]).await;
    eventually("the readers have new sessions", async || {
        let new = pids().await;
        new.len() == 2 && !new.iter().any(|pid| old.contains(pid))
    })
    .await;
    proxy.release(true);
    assert_eq!(database.outcome(other).await, "succeeded");
    assert!(database.value::<bool>(claimed).await, "the run was not locked");
    holder.batch_execute("COMMIT").await.unwrap();
    let ended = format!("SELECT state = 'succeeded' FROM mill.runs WHERE id = {run}");
    eventually("the run ends", async || database.value::<bool>(&ended).await).await;
}

#[tokio::test]
async fn an_approval_waits_for_no_transaction_that_creates_a_limit() {
    let database = Database::new().await;
    let tasks =
        json!([{"name": "t", "statement": "SELECT 1", "concurrency_key": "k", "approval": true}]);
    job(&database, "j", tasks).await;
    let run = start(&database, "j").await;
    let (holder, operator) = (database.connect().await, database.connect().await);
    holder.batch_execute("BEGIN; SELECT mill.set_max_running('key', 'k', 2)").await.unwrap();
    let approve = format!("SET lock_timeout = '1ms'; SELECT mill.approve({run}, 't')");
    operator.batch_execute(&approve).await.unwrap();
    let state = "SELECT state::text FROM mill.run_tasks";
    assert_eq!(database.value::<String>(state).await, "released");
}

#[tokio::test]
async fn a_run_that_an_open_transaction_changes_is_left_to_a_later_poll() {
    let database = Database::new().await;
    let run = run_with_keys(&database).await;
    database.run_as_worker("name = 'other'").await;
    let holder = database.connect().await;
    holder.batch_execute(&format!("BEGIN; SELECT mill.cancel_run({run})")).await.unwrap();
    let worker = database.connect().await;
    worker.batch_execute("SET lock_timeout = '1ms'").await.unwrap();
    let advance = format!("SELECT more FROM mill.advance_run({run})");
    let more: bool = worker.query_one(&advance, &[]).await.unwrap().get(0);
    assert!(!more, "the advance would be repeated without a pause");
    let events = "SELECT count(*) FROM mill.run_events WHERE node IS NULL";
    assert_eq!(database.value::<i64>(events).await, 1, "the event of the start remains");
    // The attempt of a task of this run cannot end now. It says why, and the worker repeats it.
    let fail = "SELECT mill.fail(id, token, 'failed', 'failure', '1 hour', '{}') FROM mill.tasks WHERE state = 'running'";
    let error = worker.batch_execute(fail).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE));
    let message = format!("other transactions are changing run {run}");
    assert_eq!(error.as_db_error().unwrap().message(), message);
    holder.batch_execute("ROLLBACK").await.unwrap();
    worker.batch_execute(fail).await.unwrap();
    worker.batch_execute(&advance).await.unwrap();
    assert_eq!(database.value::<i64>(events).await, 0);
}

#[tokio::test]
async fn an_unknown_claim_of_a_run_that_an_open_transaction_changes_is_released_later() {
    let database = Database::new().await;
    let run = run_with_keys(&database).await;
    database.run_as_worker("name = 'other'").await;
    let holder = database.connect().await;
    holder.batch_execute(&format!("BEGIN; SELECT mill.cancel_run({run})")).await.unwrap();
    let worker = WorkerId(
        database.value("SELECT claimed_by FROM mill.tasks WHERE claimed_by IS NOT NULL").await,
    );
    let released = async || release_unknown_claims(database.client(), worker, &[]).await.unwrap();
    assert_eq!(released().await, 0);
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(released().await, 1);
}

#[tokio::test]
async fn runs_that_cannot_be_advanced_do_not_hide_the_later_ones() {
    let database = Database::new().await;
    // As many events as if nothing could be done for these runs.
    database.execute("INSERT INTO mill.run_events (run_id) SELECT generate_series(1, 150)").await;
    let mut runs_after = RunId(0);
    for (found, next) in [(1..=100, 100), (101..=150, 0), (1..=100, 100)] {
        let options = PollOptions { peers: false, unregistered: false, pending: false, runs_after };
        let me = WorkerId(Uuid::nil());
        let polled = poll(database.client(), me, &Served::default(), options).await.unwrap();
        assert_eq!(polled.runs, found.map(RunId).collect::<Vec<_>>());
        runs_after = polled.runs_after;
        assert_eq!(runs_after, RunId(next));
    }
}
