//! History is kept for its retention, and what is old is deleted in parts that keep nobody waiting.

use queue::{TaskId, cancel, prune};

use crate::harness::{Database, Worker, eventually};

const DAYS: &str = "SELECT array_agg(right(relname, 8) ORDER BY relname) FROM pg_class
    JOIN pg_inherits ON inhrelid = oid WHERE inhparent = 'mill.attempts'::regclass";

#[tokio::test]
async fn history_has_a_partition_for_every_day_ahead_and_none_past_retention() {
    let database = Database::new().await;
    let ahead: Vec<String> = database
        .value(
            "SELECT array_agg(to_char((now() AT TIME ZONE 'UTC')::date + n, 'YYYYMMDD') ORDER BY n)
             FROM generate_series(0, 7) AS n",
        )
        .await;
    assert_eq!(database.value::<Vec<String>>(DAYS).await, ahead);
    assert_eq!(prune::prepare_history(database.client(), 7).await.unwrap(), 0);

    for days_ago in [400, 32, 31, 30, 29, 9, 8, 7, 1] {
        database.create_day(days_ago).await;
    }
    database.execute("CREATE TABLE mill.attempts_of_mine (n int)").await;
    // A day is dropped when all of it is older than 30 days. The day that began exactly 30 days ago
    // is kept.
    for left in [(1, 2), (1, 1), (1, 0), (0, 0)] {
        assert_eq!(prune::prune_history(database.client()).await.unwrap(), left);
    }
    database.execute("UPDATE mill.settings SET history_retention = '8 days'").await;
    assert_eq!(database.value::<i32>("SELECT mill.prune()").await, 3);
    assert_eq!(database.value::<Vec<String>>(DAYS).await.len(), 3 + ahead.len());
    database.execute("TABLE mill.attempts_of_mine").await;
}

/// Rows that are older than their retention, of every kind that is deleted because of its age.
const OLD_ROWS: &str = "
    INSERT INTO mill.runs (jobs, params, state, finished_at) VALUES ('{old}', '{}', 'succeeded', now() - interval '40 days');
    ALTER TABLE mill.audit DISABLE TRIGGER USER;
    INSERT INTO mill.audit (at, login, action, subject) VALUES (now() - interval '400 days', 'a', 'b', 'c');
    INSERT INTO mill.worker_starts VALUES (gen_random_uuid(), now() - interval '40 days', 1, 'host', '1', 1);
    INSERT INTO mill.idempotency_keys (caller, key, request, created_at) VALUES ('c', 'k', 'r', now() - interval '2 days');
    SELECT mill.set_schedule('s', timing => 'manual', statement => 'SELECT 1');
    INSERT INTO mill.schedule_log (schedule_id, event, logged_at)
        SELECT s.id, 'fired', now() - interval '400 days' FROM mill.schedules s";
const OLD_ROWS_LEFT: &str =
    "SELECT (SELECT count(*) FROM mill.runs) + (SELECT count(*) FROM mill.audit WHERE login = 'a')
    + (SELECT count(*) FROM mill.worker_starts) + (SELECT count(*) FROM mill.idempotency_keys)
    + (SELECT count(*) FROM mill.schedule_log WHERE logged_at < now() - interval '1 year')
    + (SELECT count(*) FROM pg_inherits WHERE inhparent = 'mill.attempts'::regclass) - 8";

#[tokio::test]
async fn a_clock_that_has_skipped_days_deletes_nothing_for_ten_minutes() {
    let database = Database::new().await;
    database.create_day(40).await;
    database.execute(OLD_ROWS).await;
    let prune = "SELECT mill.prune(), mill.prune_idempotency_keys(), mill.prune_schedule_log(), mill.prune_notifications()";
    // As if the last maintenance had been 60 days ago.
    database.execute("UPDATE mill.history_state SET day = day - 60").await;
    for _ in 0..2 {
        database.execute(prune).await;
        assert_eq!(database.value::<i64>(OLD_ROWS_LEFT).await, 6);
    }
    let wait =
        "SELECT (trusted_from - now())::text > '00:09' AND day = (now() AT TIME ZONE 'UTC')::date
        FROM mill.history_state";
    assert!(database.value::<bool>(wait).await);
    // The clock is right again, after it was ahead.
    database.execute("UPDATE mill.history_state SET day = day + 60, trusted_from = now() + interval '60 days'").await;
    database.execute(prune).await;
    assert_eq!(database.value::<i64>(OLD_ROWS_LEFT).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_registers_although_the_partitions_of_the_next_days_cannot_be_created() {
    let database = Database::new().await;
    database
        .execute(
            "DO $$ BEGIN EXECUTE format('DROP TABLE mill.%I',
                 'attempts_' || to_char((now() AT TIME ZONE 'UTC')::date + 7, 'YYYYMMDD')); END $$",
        )
        .await;
    let other = database.connect().await;
    other
        .batch_execute("BEGIN; LOCK TABLE mill.attempts IN SHARE UPDATE EXCLUSIVE MODE")
        .await
        .unwrap();
    let mut worker = Worker::start(&database, &["--readers", "1"]);
    assert_eq!(database.run("SELECT 1", "").await.outcome, "succeeded");
    other.batch_execute("COMMIT").await.unwrap();
    eventually("the partition is created", async || {
        database
            .value::<i64>(
                "SELECT count(*) FROM pg_inherits WHERE inhparent = 'mill.attempts'::regclass",
            )
            .await
            == 8
    })
    .await;
    assert!(worker.terminate().await.success());
}

#[tokio::test]
async fn a_tablespace_of_the_database_is_not_that_of_a_partition() {
    let database = Database::new().await;
    database.execute("SET default_tablespace = 'pg_global'").await;
    assert_eq!(database.value::<i32>("SELECT mill.prepare_history(9)").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_day_is_created_before_any_claim() {
    let database = Database::new().await;
    let today: String = database
        .value("SELECT 'mill.attempts_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
        .await;
    let drop_today = format!("DROP TABLE IF EXISTS {today}");
    database.execute(&drop_today).await;
    // Cancelling also creates the partition of the day, because perhaps no worker is running.
    let id = database.enqueue("SELECT 1", "").await;
    assert_eq!(cancel::cancel(database.client(), TaskId(id)).await.unwrap(), "cancelled");
    database.execute(&drop_today).await;
    assert_eq!(prune::prepare_history(database.client(), 7).await.unwrap(), 1);
    database.execute(&drop_today).await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    assert_eq!(database.run("SELECT 1", "").await.outcome, "succeeded");
    let default: i64 = database
        .value(
            "SELECT count(*) FROM pg_inherits JOIN pg_class ON oid = inhrelid
             WHERE inhparent = 'mill.attempts'::regclass
                AND pg_get_expr(relpartbound, oid) = 'DEFAULT'",
        )
        .await;
    assert_eq!(default, 0, "a DEFAULT partition would hide a missing day");
}
