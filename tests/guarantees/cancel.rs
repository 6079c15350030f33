//! A cancel ends its task, and no other task.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::seq::SliceRandom;

use crate::harness::{Database, PrivateDatabase, Worker, amount, eventually};

const FLAGS: [&str; 6] =
    ["--readers", "8", "--poll-interval", "50ms", "--heartbeat-interval", "5s"];

async fn cancel(database: &Database, id: i64) -> String {
    database.rows("SELECT mill.cancel($1)", &[&id]).await[0].get(0)
}

/// Waits until the task's backend is in its statement.
async fn until_active(database: &Database, id: i64, event: &str) {
    eventually(&format!("task {id} is in its statement"), async || {
        let sql = "SELECT FROM mill.running WHERE id = $1 AND wait_event = $2";
        !database.rows(sql, &[&id, &event]).await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_running_statement_is_stopped_in_the_server_within_a_second_and_not_retried() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let id = database.enqueue("SELECT pg_sleep(600)", "").await;
        until_active(&database, id, "PgSleep").await;
        let pid: i32 =
            database.value(&format!("SELECT session_pid FROM mill.tasks WHERE id = {id}")).await;
        assert_eq!(cancel(&database, id).await, "requested");
        let asked = Instant::now();
        eventually("the backend no longer runs the statement", async || {
            let sql = "SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active'";
            database.rows(sql, &[&pid]).await.is_empty()
        })
        .await;
        fastest = fastest.min(asked.elapsed());
        assert_eq!(database.outcome(id).await, "cancelled");
        assert_eq!(database.attempts(id).await, "cancelled");
        assert_eq!(cancel(&database, id).await, "finished");
    }
    println!("cancel to stopped in the server, best of 3: {fastest:?}");
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.cancel_requests").await, 0);
}

#[tokio::test]
async fn a_task_that_traps_the_cancel_is_terminated() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    let stubborn = "DO $$ BEGIN
        LOOP
            BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN NULL; END;
        END LOOP;
    END $$";
    let id = database.enqueue(stubborn, "").await;
    until_active(&database, id, "PgSleep").await;
    let pid: i32 = database.value("SELECT session_pid FROM mill.tasks").await;
    assert_eq!(cancel(&database, id).await, "requested");
    assert_eq!(database.outcome(id).await, "cancelled");
    // The outcome is recorded when the backend reports its end, which is before it is gone.
    let there = "SELECT FROM pg_stat_activity WHERE pid = $1";
    eventually("its backend is gone", async || database.rows(there, &[&pid]).await.is_empty())
        .await;
}

#[tokio::test]
async fn a_waiting_task_is_cancelled_at_once() {
    let database = Database::new().await;
    let pending = database.enqueue("SELECT 1", "").await;
    let scheduled = database.enqueue("SELECT 1", ", due_at => now() + '1 hour'").await;
    for id in [pending, scheduled] {
        assert_eq!(cancel(&database, id).await, "cancelled");
        assert_eq!(database.attempts(id).await, "cancelled");
        assert_eq!(cancel(&database, id).await, "finished");
    }
    assert_eq!(cancel(&database, -1).await, "not found");
    database.until_empty().await;
    let started: i64 = database
        .value("SELECT count(*) FROM mill.attempts WHERE started_at IS NOT NULL OR attempt > 0")
        .await;
    assert_eq!(started, 0);
}

#[tokio::test]
async fn a_task_whose_worker_is_dead_ends_as_cancelled() {
    let database = Database::new().await;
    let mut dead = Worker::start(&database, &FLAGS);
    let id = database.enqueue("SELECT pg_sleep(600)", "").await;
    until_active(&database, id, "PgSleep").await;
    dead.kill();
    assert_eq!(cancel(&database, id).await, "requested");
    let _heir = Worker::start(&database, &FLAGS);
    assert_eq!(database.outcome(id).await, "cancelled");
    assert_eq!(database.attempts(id).await, "cancelled");
}

#[tokio::test]
async fn a_deadline_stops_the_statement_and_counts_as_a_failure() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    let options = ", timeout => '200 milliseconds', max_attempts => 2, retry_interval => '0'";
    let id = database.enqueue("SELECT pg_sleep(600)", options).await;
    assert_eq!(database.outcome(id).await, "timed_out");
    assert_eq!(database.attempts(id).await, "timed_out timed_out");
    let quick = database.enqueue("SELECT 1", options).await;
    assert_eq!(database.outcome(quick).await, "succeeded");
}

/// Cancels the tasks of `victims` as soon as they run, until no task is live. Returns the replies.
async fn cancel_as_they_run(database: &Database, victims: &[i64]) -> HashMap<String, usize> {
    let client = database.connect().await;
    let sql = "SELECT mill.cancel(t.id) FROM mill.tasks t WHERE t.state = 'running'
               AND t.id = ANY ($1) AND NOT EXISTS (
                   SELECT FROM mill.cancel_requests r WHERE r.task_id = t.id)";
    let mut answers = HashMap::new();
    while !client.query("SELECT FROM mill.tasks LIMIT 1", &[]).await.unwrap().is_empty() {
        for row in client.query(sql, &[&victims]).await.unwrap() {
            *answers.entry(row.get(0)).or_default() += 1;
        }
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn quick_cancels_of_many_tasks_hit_none_of_the_others() {
    let half: i64 = amount(200, 1000);
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
    let statement = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
                     SELECT pg_sleep(0.01 * random())";
    database.enqueue_many((2 * half).try_into().unwrap(), statement).await;
    let mut ids: Vec<i64> = database.value("SELECT array_agg(id) FROM mill.tasks").await;
    ids.shuffle(&mut rand::rng());
    let victims = ids.split_off(ids.len() / 2);
    let _worker = Worker::start(&database, &FLAGS);
    let asked = join_all((0..4).map(|_| cancel_as_they_run(&database, &victims))).await;
    let requested: usize = asked.iter().filter_map(|answers| answers.get("requested")).sum();
    let rows = database
        .rows(
            "SELECT outcome::text, task_id = ANY ($1), task_id IN (SELECT task FROM effect), count(*)
             FROM mill.attempts GROUP BY 1, 2, 3",
            &[&victims],
        )
        .await;
    let mut counts: HashMap<(String, bool, bool), i64> = HashMap::new();
    for row in rows {
        counts.insert((row.get(0), row.get(1), row.get(2)), row.get(3));
    }
    println!("{requested} cancels hit a running task; (outcome, victim, effect): {counts:?}");
    let count = |outcome: &str, victim, effect| {
        counts.get(&(outcome.to_owned(), victim, effect)).copied().unwrap_or(0)
    };
    assert_eq!(count("succeeded", false, true), half);
    assert_eq!(count("succeeded", true, true) + count("cancelled", true, false), half);
    assert!(counts.values().sum::<i64>() == 2 * half, "too many attempts: {counts:?}");
    let once: bool = database.value("SELECT count(*) = count(DISTINCT task) FROM effect").await;
    assert!(once, "a duplicate effect");
    assert!(
        requested > amount(20, 100),
        "only {requested} cancels hit a running task: too few for a meaningful test"
    );
}

/// A cancel would end the wait, and the server would report a COMMIT as successful that a failover
/// undoes.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_waits_for_a_synchronous_standby_is_not_cancelled() {
    let server = PrivateDatabase::new(&[("fsync", "off")]).await;
    let database = &server.database;
    database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
    let worker = Worker::start(database, &["--readers", "1", "--poll-interval", "50ms"]);
    worker.until_logged("ready").await;
    database.execute("SET synchronous_commit = local").await;
    database.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await;
    database.execute("SELECT pg_reload_conf()").await;
    // The server applies the setting at some time.
    let waits = "SELECT count(*) = 1 FROM pg_stat_activity
        WHERE wait_event = 'SyncRep' AND application_name LIKE 'pgmill reader %'";
    eventually("a commit waits", async || {
        let effect = "INSERT INTO effect VALUES (current_setting('mill.task_id')::bigint)";
        database.enqueue(effect, ", timeout => '1 s', max_attempts => 1").await;
        database.value::<bool>(waits).await
    })
    .await;
    let running =
        "SELECT id FROM mill.tasks WHERE state = 'running' ORDER BY claimed_at, id LIMIT 1";
    let id = database.value::<i64>(running).await;
    worker.until_logged("COMMIT waits for a synchronous standby").await;
    assert!(database.value::<bool>(waits).await);
    assert_eq!(database.attempts(id).await, "");
    database.execute("ALTER SYSTEM RESET synchronous_standby_names").await;
    database.execute("SELECT pg_reload_conf()").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    database.until_empty().await;
    let doubled = "SELECT count(*) - count(DISTINCT task) FROM effect";
    assert_eq!(database.value::<i64>(doubled).await, 0);
}
