//! A failed task is retried as often as configured, and only if a retry makes sense.

use futures_util::future::join_all;

use crate::harness::{Database, Worker, eventually};

const SOON: &str = ", retry_interval => '0'";

async fn start(flags: &[&str]) -> (Database, Worker) {
    let database = Database::new().await;
    let worker =
        Worker::start(&database, &[&["--readers", "4", "--poll-interval", "50ms"], flags].concat());
    (database, worker)
}

/// Returns SQLSTATE and hint of the task's last attempt.
async fn last_error(database: &Database, id: i64) -> (String, String) {
    let sql = "SELECT coalesce(sqlstate, ''), coalesce(hint, '') FROM mill.attempts
               WHERE task_id = $1 ORDER BY finished_at DESC LIMIT 1";
    let row = &database.rows(sql, &[&id]).await[0];
    (row.get(0), row.get(1))
}

/// Returns the seconds from the end of the task's last attempt to its next one.
async fn wait(database: &Database, id: i64) -> f64 {
    let sql = "SELECT extract(epoch FROM t.due_at - max(a.finished_at))::float8
               FROM mill.tasks t JOIN mill.attempts a ON a.task_id = t.id
               WHERE t.id = $1 AND t.state = 'scheduled' GROUP BY t.due_at";
    let mut seconds: Option<f64> = None;
    eventually(&format!("task {id} waits for its retry"), async || {
        seconds = database.rows(sql, &[&id]).await.first().map(|row| row.get(0));
        seconds.is_some()
    })
    .await;
    seconds.unwrap()
}

#[tokio::test]
async fn attempts_are_total_runs_and_the_last_one_is_final() {
    let (database, _worker) = start(&[]).await;
    let thrice = database.enqueue("SELECT 1/0", &format!("{SOON}, max_attempts => 3")).await;
    let once = database.enqueue("SELECT 1/0", &format!("{SOON}, max_attempts => 1")).await;
    let second = "SELECT 1 / (current_setting('mill.attempt')::integer - 1)";
    let second = database.enqueue(second, SOON).await;
    assert_eq!(database.outcome(thrice).await, "failed");
    assert_eq!(database.attempts(thrice).await, "failed failed failed");
    let finals = "SELECT array_agg(final ORDER BY attempt), array_agg(attempt ORDER BY attempt)
                  FROM mill.attempts WHERE task_id = $1";
    let row = &database.rows(finals, &[&thrice]).await[0];
    assert_eq!(row.get::<_, Vec<bool>>(0), [false, false, true]);
    assert_eq!(row.get::<_, Vec<i32>>(1), [1, 2, 3]);
    assert_eq!(database.outcome(once).await, "failed");
    assert_eq!(database.attempts(once).await, "failed");
    assert_eq!(database.outcome(second).await, "succeeded");
    assert_eq!(database.attempts(second).await, "failed succeeded");
}

/// The errors are those of a connection that the statement has opened itself, and of a conflict
/// with another transaction. The session of the worker survives, and the effects of the statements
/// before the error are kept.
#[tokio::test]
async fn an_error_that_an_autocommit_statement_raises_counts_as_its_failure() {
    let (database, _worker) = start(&[]).await;
    database.execute("CREATE TABLE hit (n integer)").await;
    for sqlstate in ["08006", "40001", "40P01", "53400"] {
        let statement = format!(
            "INSERT INTO hit VALUES (1);
             DO $$BEGIN RAISE 'not now' USING ERRCODE = '{sqlstate}'; END$$"
        );
        let id = database.enqueue(&statement, ", mode => 'autocommit', max_attempts => 1").await;
        assert_eq!(database.outcome(id).await, "failed", "{sqlstate}");
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM hit").await, 4);
}

#[tokio::test]
async fn a_state_of_the_server_interrupts_an_attempt_and_uses_up_none() {
    let (database, _worker) = start(&[]).await;
    database.execute("CREATE SEQUENCE starts; GRANT USAGE ON SEQUENCE starts TO PUBLIC").await;
    for (mode, sqlstate) in ["transaction", "autocommit"].into_iter().zip(["53100", "53200"]) {
        database.execute("ALTER SEQUENCE starts RESTART").await;
        let statement = format!(
            "DO $$BEGIN IF nextval('starts') < 3 THEN RAISE 'full' USING ERRCODE = '{sqlstate}'; END IF; END$$"
        );
        let options = format!(", mode => '{mode}', max_attempts => 1");
        let id = database.enqueue(&statement, &options).await;
        assert_eq!(database.outcome(id).await, "succeeded", "{mode}");
        assert_eq!(database.attempts(id).await, "interrupted interrupted succeeded", "{mode}");
    }
    let groups = "SELECT count(*) FROM mill.failure_groups()";
    assert_eq!(database.value::<i64>(groups).await, 0);
}

#[tokio::test]
async fn a_state_of_the_server_that_lasts_counts_at_last() {
    let (database, _worker) = start(&[]).await;
    let full = "DO $$BEGIN RAISE 'full' USING ERRCODE = '53100'; END$$";
    let waiting =
        database.enqueue(full, ", max_attempts => 1, due_at => now() + interval '1 day'").await;
    let used = "UPDATE mill.tasks SET transient_failures = 20";
    database.execute(used).await;
    database.execute(&format!("SELECT mill.retry({waiting})")).await;
    assert_eq!(database.outcome(waiting).await, "failed");
    assert_eq!(database.attempts(waiting).await, "failed");
}

/// The lock of the table that receives the history makes the completion wait, after the work is done.
#[tokio::test]
async fn a_completion_that_waits_too_long_for_a_lock_interrupts_the_attempt() {
    let (database, _worker) = start(&[]).await;
    let other = database.connect().await;
    other.batch_execute("BEGIN; LOCK TABLE mill.attempts IN EXCLUSIVE MODE").await.unwrap();
    let statement = "SET LOCAL lock_timeout = '50ms'; SELECT 1";
    let id = database.enqueue(statement, ", max_attempts => 1").await;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%queue.fail%'";
    eventually("the end of the attempt waits", async || database.value::<i64>(waits).await > 0)
        .await;
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(database.outcome(id).await, "succeeded");
    assert!(database.attempts(id).await.starts_with("interrupted "));
}

#[tokio::test]
async fn the_wait_is_the_interval_or_doubles_with_each_failure() {
    let (database, _worker) = start(&[]).await;
    let options = ", max_attempts => 9, retry_interval => '1 hour', jitter => false, backoff => ";
    for (backoff, hours) in [("'fixed'", [1.0, 1.0, 1.0]), ("'exponential'", [1.0, 2.0, 4.0])] {
        let id = database.enqueue("SELECT 1/0", &format!("{options}{backoff}")).await;
        for hours in hours {
            let seconds = wait(&database, id).await;
            // The wait counts from the start of the transaction that recorded the failure. The
            // recorded end of the attempt is a little later.
            assert!((hours * 3600.0 - 30.0..=hours * 3600.0).contains(&seconds), "{seconds}");
            let sooner: String = database.value(&format!("SELECT mill.retry({id})")).await;
            assert_eq!(sooner, "brought forward");
        }
    }
}

#[tokio::test]
async fn jitter_spreads_the_waits_from_zero_to_the_interval() {
    let (database, _worker) = start(&[]).await;
    let options = ", retry_interval => '1 hour', backoff => 'fixed', jitter => true";
    let mut ids = Vec::new();
    for _ in 0..50 {
        ids.push(database.enqueue("SELECT 1/0", options).await);
    }
    let mut waits = join_all(ids.iter().map(|id| wait(&database, *id))).await;
    waits.sort_by(f64::total_cmp);
    // In one of two million runs of the test, 50 draws leave a quarter of the range empty.
    assert!(waits[0] < 900.0, "{waits:?}");
    assert!((2700.0..=3600.0).contains(&waits[49]), "{waits:?}");
}

#[tokio::test]
async fn an_error_that_a_retry_would_repeat_is_not_retried() {
    let (database, _worker) = start(&[]).await;
    database
        .execute(
            "CREATE TABLE effect (n integer);
             CREATE PROCEDURE committing() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$",
        )
        .await;
    for (statement, sqlstate, hint) in [
        ("SELECT * FROM nowhere", "42P01", ""),
        ("SELEC 1", "42601", ""),
        ("SET LOCAL ROLE pg_monitor; DELETE FROM mill.tasks", "42501", ""),
        ("COMMIT", "0A000", ""),
        ("VACUUM effect", "25001", "mode => 'autocommit'"),
        ("CALL committing()", "2D000", "mode => 'autocommit'"),
        ("DO $$ BEGIN RAISE 'never' USING ERRCODE = 'MT900'; END $$", "MT900", ""),
    ] {
        let id = database.enqueue(statement, SOON).await;
        assert_eq!(database.outcome(id).await, "failed", "{statement}");
        assert_eq!(database.attempts(id).await, "failed", "{statement}");
        let (found, reported) = last_error(&database, id).await;
        assert_eq!(found, sqlstate, "{statement}");
        assert!(reported.contains(hint), "{statement}: {reported}");
    }
    let id = database.enqueue("VACUUM effect", ", mode => 'autocommit'").await;
    assert_eq!(database.outcome(id).await, "succeeded");
}

#[tokio::test]
async fn the_operator_decides_which_errors_are_fatal() {
    let (database, _worker) = start(&["--fatal-sqlstates", "22012,2F"]).await;
    let fatal = database.enqueue("SELECT 1/0", SOON).await;
    let again = format!("{SOON}, max_attempts => 2");
    let again = database.enqueue("SELECT * FROM nowhere", &again).await;
    assert_eq!(database.outcome(fatal).await, "failed");
    assert_eq!(database.attempts(fatal).await, "failed");
    assert_eq!(database.outcome(again).await, "failed");
    assert_eq!(database.attempts(again).await, "failed failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snooze_does_not_start_a_task_of_kind_at_most_once_again() {
    let database = Database::new().await;
    database.execute("CREATE TABLE started ()").await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let snoozes = "INSERT INTO started DEFAULT VALUES;
        DO $$ BEGIN RAISE 'not now' USING ERRCODE = 'MT901'; END $$";
    let options = ", mode => 'autocommit', at_most_once => true, retry_interval => '0 s'";
    let id = database.enqueue(snoozes, options).await;
    assert_eq!(database.outcome(id).await, "failed");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM started").await, 1);
}

#[tokio::test]
async fn a_snoozed_task_is_run_again_and_uses_no_attempt() {
    let (database, _worker) = start(&[]).await;
    database.execute("CREATE SEQUENCE tries").await;
    let later = "DO $$ BEGIN
        IF nextval('tries') < 4 THEN RAISE 'not now' USING ERRCODE = 'MT901'; END IF;
    END $$";
    let options = ", max_attempts => 1, retry_interval => '10 milliseconds'";
    let id = database.enqueue(later, options).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(database.attempts(id).await, "succeeded");
    let tries: i64 = database.value("SELECT last_value FROM tries").await;
    let attempt: i32 = database.value("SELECT attempt FROM mill.attempts").await;
    assert_eq!((tries, attempt), (4, 1));

    database.execute("ALTER SEQUENCE tries RESTART").await;
    let id = database.enqueue(later, ", retry_interval => '1 hour'").await;
    database.until_state(id, "scheduled").await;
    let row = "SELECT attempt, failures, due_at > now() + interval '59 minutes' FROM mill.tasks";
    let row = &database.rows(row, &[]).await[0];
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1), row.get(2)), (0, 0, true));
}

#[tokio::test]
async fn a_serialization_failure_uses_up_no_attempt_up_to_a_bound() {
    let (database, _worker) = start(&[]).await;
    let ids = join_all(["40001", "40P01"].map(async |sqlstate| {
        let statement = format!("DO $$ BEGIN RAISE SQLSTATE '{sqlstate}'; END $$");
        database.enqueue(&statement, &format!("{SOON}, max_attempts => 2")).await
    }))
    .await;
    for id in ids {
        assert_eq!(database.outcome(id).await, "failed");
        let count: i64 = database
            .value(&format!("SELECT count(*) FROM mill.attempts WHERE task_id = {id}"))
            .await;
        assert_eq!(count, 5 + 2);
    }
}

#[tokio::test]
async fn two_tasks_that_deadlock_both_succeed_though_neither_may_fail() {
    let (database, _worker) = start(&[]).await;
    database
        .execute(
            "CREATE TABLE counter (id integer PRIMARY KEY, n integer);
             INSERT INTO counter VALUES (1, 0), (2, 0);
             SELECT pg_advisory_lock(1)",
        )
        .await;
    let cross = async |first: i32, second: i32| {
        let statement = format!(
            "UPDATE counter SET n = n + 1 WHERE id = {first};
             SELECT pg_advisory_xact_lock_shared(1);
             UPDATE counter SET n = n + 1 WHERE id = {second}"
        );
        database.enqueue(&statement, ", max_attempts => 1").await
    };
    let (one, two) = (cross(1, 2).await, cross(2, 1).await);
    database.until_waiting_for_lock(one).await;
    database.until_waiting_for_lock(two).await;
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(one).await, "succeeded");
    assert_eq!(database.outcome(two).await, "succeeded");
    let counted: Vec<i32> = database.value("SELECT array_agg(n) FROM counter").await;
    assert_eq!(counted, [2, 2]);
    let deadlocks: i64 =
        database.value("SELECT count(*) FROM mill.attempts WHERE sqlstate = '40P01'").await;
    assert!(deadlocks > 0, "no deadlock occurred: the test proves nothing");
}

#[tokio::test]
async fn a_finished_task_that_is_retried_keeps_its_id_and_its_history() {
    let (database, _worker) = start(&[]).await;
    database.execute("CREATE TABLE divisor AS SELECT 0 AS n").await;
    let options = ", max_attempts => 1, name => 'report', priority => 'high', key => 'one'";
    let id = database.enqueue("SELECT 1 / n FROM divisor", options).await;
    assert_eq!(database.outcome(id).await, "failed");
    database.execute("UPDATE divisor SET n = 1").await;
    assert_eq!(database.value::<String>(&format!("SELECT mill.retry({id})")).await, "retried");
    eventually("the task has run again", async || {
        database.attempts(id).await == "failed succeeded"
    })
    .await;
    let odd: i64 = database
        .value(
            "SELECT count(*) FROM mill.attempts WHERE name <> 'report' OR priority <> 'high'
             OR NOT final OR attempt <> CASE outcome WHEN 'failed' THEN 1 ELSE 2 END",
        )
        .await;
    assert_eq!(odd, 0);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.dedup_keys").await, 0);
    assert_eq!(database.value::<String>("SELECT mill.retry(-1)").await, "not found");
}

#[tokio::test]
async fn a_finished_task_that_is_retried_has_all_its_attempts_again() {
    let (database, _worker) = start(&[]).await;
    let options = ", max_attempts => 2, retry_interval => '0'";
    let id = database.enqueue("SELECT 1/0", options).await;
    assert_eq!(database.outcome(id).await, "failed");
    assert_eq!(database.value::<String>(&format!("SELECT mill.retry({id})")).await, "retried");
    assert_eq!(database.outcome(id).await, "failed");
    assert_eq!(database.attempts(id).await, "failed failed failed failed");
}

#[tokio::test]
async fn a_task_whose_backend_an_administrator_ends_has_failed() {
    for mode in ["transaction", "autocommit"] {
        let (database, _worker) = start(&[]).await;
        database.execute("SELECT pg_advisory_lock(7)").await;
        let options = format!(", max_attempts => 1, mode => '{mode}'");
        let id = database.enqueue("SELECT pg_advisory_lock_shared(7)", &options).await;
        database.until_waiting_for_lock(id).await;
        database
            .execute(
                "SELECT pg_terminate_backend(session_pid) FROM mill.tasks WHERE state = 'running'",
            )
            .await;
        let record = database.record(id).await;
        record.assert_failed("57P01", "terminating connection due to administrator command");
        assert_eq!(record.attempts, 1, "{mode}");
    }
}

#[tokio::test]
async fn a_task_whose_worker_loses_all_sessions_has_not_failed() {
    let (database, _worker) = start(&[]).await;
    database.execute("SELECT pg_advisory_lock(7)").await;
    let once = ", max_attempts => 1";
    let id = database.enqueue("SELECT pg_advisory_xact_lock_shared(7)", once).await;
    database.until_waiting_for_lock(id).await;
    database
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
                 AND datname = current_database(); SELECT pg_advisory_unlock(7)",
        )
        .await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(database.attempts(id).await, "interrupted succeeded");
}

/// As above, during COMMIT, and the worker finds out late what has become of it.
#[tokio::test]
async fn a_commit_whose_worker_loses_all_sessions_for_a_while_has_not_failed() {
    let (database, _worker) = start(&[]).await;
    database
        .execute(
            "CREATE TABLE rows (n int);
             CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON rows DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION wait();
             SELECT pg_advisory_lock(7)",
        )
        .await;
    let id = database.enqueue("INSERT INTO rows VALUES (1)", ", max_attempts => 1").await;
    database.until_waiting_for_lock(id).await;
    let limit = |n: i32| format!("ALTER DATABASE \"{}\" CONNECTION LIMIT {n}", database.name());
    database
        .execute(&format!(
            "CREATE TABLE ended AS SELECT clock_timestamp() AS at; {};
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
                 AND datname = current_database()",
            limit(0)
        ))
        .await;
    eventually("the worker is without sessions for a while", async || {
        database.value::<bool>("SELECT clock_timestamp() > at + interval '2 s' FROM ended").await
    })
    .await;
    database.execute(&format!("{}; SELECT pg_advisory_unlock(7)", limit(-1))).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(database.attempts(id).await, "interrupted succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_create_the_same_object_all_succeed_though_none_may_fail() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "8", "--poll-interval", "50ms"]);
    for n in 0..3 {
        for create in [
            format!("CREATE TABLE IF NOT EXISTS t{n} (a serial); SELECT pg_sleep(0.05)"),
            format!(
                "CREATE OR REPLACE FUNCTION f{n}() RETURNS int LANGUAGE sql AS 'SELECT 1'; SELECT pg_sleep(0.05)"
            ),
        ] {
            let many = format!(
                "SELECT mill.enqueue($task${create}$task$, max_attempts => 1) FROM generate_series(1, 8)"
            );
            database.execute(&many).await;
        }
    }
    database.until_empty().await;
    let ended =
        "SELECT count(*) FILTER (WHERE outcome = 'succeeded') = 48 FROM mill.attempts WHERE final";
    assert!(database.value::<bool>(ended).await);
    let races = "SELECT count(*) FROM mill.attempts WHERE outcome = 'failed'";
    assert!(database.value::<i64>(races).await > 0, "no race occurred: the test proves nothing");
    // A unique violation of a table of the task is its own.
    database.execute("CREATE TABLE once (id int PRIMARY KEY); INSERT INTO once VALUES (1)").await;
    let id = database.enqueue("INSERT INTO once VALUES (1)", ", max_attempts => 1").await;
    assert_eq!(database.outcome(id).await, "failed");
    assert_eq!(database.attempts(id).await, "failed");
}
