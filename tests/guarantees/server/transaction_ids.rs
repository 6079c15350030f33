//! The server runs out of transaction ids, and its transaction ids start over.

use tokio_postgres::error::SqlState;

use super::worker;
use crate::harness::exposition::{parse, sum};
use crate::harness::http::{free_address, get};
use crate::harness::{Database, PrivateDatabase, Program, Worker, amount, eventually};

/// Autovacuum freezes old rows at once.
const SETTINGS: &[(&str, &str)] = &[
    ("wal_level", "logical"),
    ("fsync", "off"),
    ("autovacuum_naptime", "1s"),
    ("autovacuum_vacuum_cost_delay", "0"),
];

/// A task that needs two transaction ids: one of them for a subtransaction.
const TWO_IDS: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
    DO $$BEGIN
        INSERT INTO noise VALUES (1);
    EXCEPTION WHEN unique_violation THEN
        RAISE;
    END$$";

const WAITS_FOR_LOCK: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
    SELECT pg_advisory_xact_lock_shared(1)";

/// A task that needs its second id after it has waited.
const LATE_ID: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
    SELECT pg_advisory_xact_lock_shared(1);
    DO $$BEGIN
        INSERT INTO noise VALUES (1);
    EXCEPTION WHEN unique_violation THEN
        RAISE;
    END$$";

const REFUSED: &str = "to avoid wraparound data loss";

/// The server assigns no ids that are older than the oldest row by more than this.
const LIMIT: i64 = (1 << 31) - 1 - 3_000_000;

/// Number of ids that are left when the workers start.
const LEFT: i64 = 700;

/// Number of tasks that need more ids than are left.
fn tasks() -> i64 {
    amount(450, 800)
}

async fn stage() -> PrivateDatabase {
    let private = PrivateDatabase::new(SETTINGS).await;
    private
        .database
        .execute("CREATE TABLE effect (task bigint NOT NULL); CREATE TABLE noise (n integer)")
        .await;
    private
}

async fn jump(private: &mut PrivateDatabase, next: i64) {
    private.cluster.set_next_transaction_id(next.try_into().unwrap()).unwrap();
    private.database.reconnect().await;
}

/// Waits until the oldest rows of all databases are as recent as possible.
async fn until_frozen(database: &Database, condition: &str) {
    let frozen = format!("SELECT bool_and({condition}) FROM pg_database");
    eventually("all old rows are frozen", async || database.value(&frozen).await).await;
}

async fn submit(database: &Database) {
    let sql =
        "SELECT count(mill.enqueue($1, max_attempts => 1)) FROM generate_series(1, $2::bigint)";
    database.rows(sql, &[&TWO_IDS, &tasks()]).await;
}

async fn write(database: &Database) -> Result<(), tokio_postgres::Error> {
    database.client().batch_execute("INSERT INTO noise VALUES (1)").await
}

/// Asserts that each task has succeeded, with its effect once, and that no worker was considered dead.
async fn each_task_once(database: &Database, tasks: i64) {
    database.until_empty().await;
    let odd = "SELECT coalesce(string_agg(DISTINCT concat_ws(' ', outcome, final, attempt, sqlstate, message), '; '), '')
        FROM mill.attempts WHERE outcome <> 'succeeded' AND (final OR outcome <> 'interrupted' OR sqlstate <> '54000')";
    assert_eq!(database.value::<String>(odd).await, "");
    let counts = "SELECT ARRAY[(SELECT count(*) FROM mill.attempts WHERE final),
        (SELECT count(*) FROM effect), (SELECT count(DISTINCT task) FROM effect)]";
    assert_eq!(database.value::<Vec<i64>>(counts).await, [tasks; 3]);
}

/// Returns the number of heartbeats of a worker that failed.
async fn failed_heartbeats(address: &str) -> f64 {
    let answer = get(address, "/metrics").await.expect("the worker serves its metrics");
    sum(&parse(&answer.body), "pgmill_heartbeats_total", &[("result", "error")])
}

/// Starts a server that has few ids left, because a slot without a consumer keeps old rows from being
/// frozen.
async fn near_the_limit() -> PrivateDatabase {
    let mut private = stage().await;
    let slot = "SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')";
    private.database.execute(slot).await;
    let oldest = "SELECT catalog_xmin::text::bigint FROM pg_replication_slots";
    let oldest: i64 = private.database.value(oldest).await;
    jump(&mut private, oldest + LIMIT - LEFT).await;
    until_frozen(&private.database, &format!("datfrozenxid = '{oldest}'")).await;
    private
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_transaction_ids_stops_the_fleet_but_loses_nothing() {
    let private = near_the_limit().await;
    let database = &private.database;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let held = database.enqueue(WAITS_FOR_LOCK, ", max_attempts => 1").await;
    let address = free_address();
    let start = |more: &[&str]| worker(database, "2", "5s", more);
    let mut workers = [start(&["--http", address.as_str()]), start(&[])];
    let late = database.enqueue(LATE_ID, ", max_attempts => 1").await;
    database.until_waiting_for_lock(held).await;
    database.until_waiting_for_lock(late).await;
    submit(database).await;
    for worker in &workers {
        worker.until_logged(REFUSED).await;
    }
    // No worker can send heartbeats, and each can see that. None of them considers the others dead.
    let silent =
        "SELECT count(*) = 2 AND bool_and(now() - heartbeat_at > '15 seconds') FROM mill.workers";
    eventually("no heartbeat for three orphan timeouts", async || database.value(silent).await)
        .await;
    assert!(failed_heartbeats(&address).await > 0.0);
    operators_see_the_cause(database).await;
    // A task that has its id already can commit.
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(held).await, "succeeded");
    let error = write(database).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::PROGRAM_LIMIT_EXCEEDED));
    assert!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await > 0);

    database.execute("SELECT pg_drop_replication_slot('forgotten')").await;
    each_task_once(database, tasks() + 2).await;
    // The error of the server did not use up the only attempt.
    assert_eq!(database.attempts(late).await, "interrupted succeeded");
    for worker in &mut workers {
        let log = worker.log();
        assert!(!log.contains("dead worker") && !log.contains("worker dead"), "{log}");
        assert!(worker.terminate().await.success());
    }
    let (_, printed, _) = Program::pgmill(database, &["doctor"]).run().await;
    assert!(printed.contains("ok       transaction ids"), "{printed}");
}

/// Programs for operators show why nothing runs. A refused enqueue can be repeated later.
async fn operators_see_the_cause(database: &Database) {
    let (code, printed, _) = Program::pgmill(database, &["doctor"]).run().await;
    assert_eq!(code, 1, "{printed}");
    assert!(printed.contains("problem  transaction ids"), "{printed}");
    assert!(printed.contains("the server refuses every transaction that writes"), "{printed}");
    assert!(printed.contains("replication slot forgotten"), "{printed}");
    Program::pgmill(database, &["status"]).succeeds().await;
    let (code, _, printed) = Program::enqueue(database, &["SELECT 1"]).run().await;
    assert_eq!(code, 75, "{printed}");
    assert!(printed.contains(REFUSED), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_ids_that_start_over_change_nothing() {
    const END: i64 = 1 << 32;
    let mut private = stage().await;
    for next in [END / 3, END / 3 * 2, END - 300] {
        jump(&mut private, next).await;
        until_frozen(&private.database, "age(datfrozenxid) < 1000000").await;
    }
    let database = &private.database;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let mut killed = Worker::start(database, &["--readers", "1"]);
    let held = database.enqueue(WAITS_FOR_LOCK, "").await;
    database.until_waiting_for_lock(held).await;
    let mut worker = Worker::start(database, &["--readers", "2"]);
    let across = database.enqueue(WAITS_FOR_LOCK, ", max_attempts => 1").await;
    database.until_waiting_for_lock(across).await;
    let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    assert!(database.value::<i64>(next).await < END, "the tasks run before the end");
    submit(database).await;
    eventually("the ids have started over", async || database.value::<i64>(next).await > END).await;
    // The claim comes from before the end, and is reclaimed after the end.
    killed.kill();
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(across).await, "succeeded");
    assert_eq!(database.outcome(held).await, "succeeded");
    assert_eq!(database.attempts(held).await, "lost succeeded");
    database.until_empty().await;
    let counts = "SELECT ARRAY[count(*), count(DISTINCT task)] FROM effect";
    assert_eq!(database.value::<Vec<i64>>(counts).await, [tasks() + 2; 2]);
    let odd = "SELECT count(*) FROM mill.attempts WHERE outcome <> 'succeeded'";
    assert_eq!(database.value::<i64>(odd).await, 1, "only the attempt of the killed worker");
    Program::pgmill(database, &["status"]).succeeds().await;
    let (_, printed, _) = Program::pgmill(database, &["doctor"]).run().await;
    assert!(printed.contains("ok       transaction ids"), "{printed}");
    assert!(worker.terminate().await.success());
}
