//! Triggers: a schedule fires, with the reason, when the condition on a table is met. The probe can
//! only read, and a trigger that fails does not affect the other triggers.

use crate::harness::{Database, Worker, eventually};
use crate::schedules::schedule::{FLAGS, events, schedule};

/// Inserts pending rows of this age in seconds.
async fn rows(database: &Database, count: i32, age: &str) {
    database
        .execute(&format!(
            "INSERT INTO inbox (came_at) SELECT now() - interval '{age}' FROM generate_series(1, {count})"
        ))
        .await;
}

async fn inbox(database: &Database) {
    database
        .execute(
            "CREATE TABLE inbox (came_at timestamptz NOT NULL, done boolean NOT NULL DEFAULT false)",
        )
        .await;
}

const TABLE: &str = "table: inbox, filter: \"NOT done\", age: came_at, every: 1s";
const EMPTY: &str = "UPDATE inbox SET done = true";

async fn last_reason(database: &Database, name: &str) -> Option<String> {
    let sql = "SELECT r.reason FROM mill.runs r JOIN mill.schedules s ON s.id = r.schedule_id
        WHERE s.name = $1 ORDER BY r.id DESC LIMIT 1";
    database.rows(sql, &[&name]).await.first().map(|row| row.get(0))
}

async fn until_reason(database: &Database, name: &str, begins: &str) {
    eventually(&format!("{name} fires because of {begins}"), async || {
        last_reason(database, name).await.is_some_and(|reason| reason.starts_with(begins))
    })
    .await;
    database.until_empty().await;
    eventually("its run has ended", async || {
        database.value("SELECT bool_and(state <> 'running') FROM mill.runs").await
    })
    .await;
}

/// Returns `would_fire reason pending` of the dry run.
async fn test(database: &Database, name: &str) -> (bool, String, Option<i64>) {
    let sql = "SELECT would_fire, reason, pending_rows FROM mill.schedule_test($1)";
    let row = &database.rows(sql, &[&name]).await[0];
    (row.get(0), row.get(1), row.get(2))
}

async fn until_read(database: &Database, name: &str) {
    let read = format!("SELECT trigger IS NOT NULL FROM mill.schedules WHERE name = '{name}'");
    eventually("a worker has read the trigger", async || database.value(&read).await).await;
}

/// Returns a database with a trigger that a worker has read. No worker runs any more.
async fn without_worker() -> Database {
    let database = Database::new().await;
    inbox(&database).await;
    schedule(&database, "s", &format!("trigger({TABLE}, rows: 1)"), EMPTY, "").await;
    let mut worker = Worker::start(&database, &FLAGS);
    until_read(&database, "s").await;
    worker.kill();
    database
}

#[tokio::test]
async fn a_measurement_from_before_the_end_of_a_run_fires_nothing() {
    let database = without_worker().await;
    // The run has processed the row that the probe counted.
    let measured = "SELECT t.fired FROM mill.schedules s, mill.tick_trigger(s.id, s.version, s.last_finished_at";
    for (since_the_end, fires) in [("0 s", 0), ("1 us", 1)] {
        database.execute("UPDATE mill.schedules SET last_finished_at = now()").await;
        let tick = format!("{measured} + interval '{since_the_end}', 1, 5, NULL) AS t");
        assert_eq!(database.value::<i32>(&tick).await, fires, "{since_the_end}");
    }
}

#[tokio::test]
async fn a_measurement_from_before_a_pause_of_the_fleet_fires_nothing() {
    let database = without_worker().await;
    let tick = "SELECT t.fired FROM mill.schedules s, mill.tick_trigger(s.id, s.version, now(), 1, 5, NULL) AS t";
    for (change, fires) in [("mill.pause_fleet()", 0), ("mill.resume_fleet()", 1)] {
        database.execute(&format!("SELECT {change}")).await;
        assert_eq!(database.value::<i32>(tick).await, fires, "{change}");
    }
}

#[tokio::test]
async fn threshold_comes_before_idle_and_idle_before_new_rows() {
    let database = Database::new().await;
    inbox(&database).await;
    let timing = format!("trigger({TABLE}, rows: 5, idle: 10 min, new_rows: true, debounce: 1 h)");
    schedule(&database, "inbox", &timing, EMPTY, "").await;
    let _worker = Worker::start(&database, &FLAGS);
    until_read(&database, "inbox").await;
    assert_eq!(
        test(&database, "inbox").await,
        (false, "no trigger condition is met: pending rows 0 < 5".to_owned(), Some(0))
    );
    rows(&database, 1, "0").await;
    until_reason(&database, "inbox", "new rows: pending rows 1, no previous fire").await;
    // The condition new_rows cannot be met again within an hour, but the other conditions can.
    rows(&database, 4, "0").await;
    let (fires, reason, pending) = test(&database, "inbox").await;
    assert!(!fires && pending == Some(4), "{reason}");
    let unmet = "no trigger condition is met: pending rows 4 < 5, age of the oldest row 00:00:";
    assert!(reason.starts_with(unmet), "{reason}");
    assert!(reason.contains("last fire 00:0") && reason.ends_with(" ago < 01:00:00"), "{reason}");
    rows(&database, 1, "0").await;
    until_reason(&database, "inbox", "row threshold: pending rows 5 >= 5").await;
    rows(&database, 2, "11 minutes").await;
    until_reason(&database, "inbox", "idle: age of the oldest row 00:11:").await;
    // The conditions rows and idle are met: the reason names rows.
    rows(&database, 7, "11 minutes").await;
    until_reason(&database, "inbox", "row threshold: pending rows 7 >= 5").await;
    let logged: String = database
        .value(
            "SELECT string_agg(concat_ws(' ', split_part(reason, ':', 1), rows), ', ' ORDER BY id)
             FROM mill.schedule_log WHERE event = 'fired'",
        )
        .await;
    assert_eq!(logged, "new rows 1, row threshold 5, idle 2, row threshold 7");
    // The time of the debounce counts from the last fire.
    database
        .execute("UPDATE mill.schedules SET last_fire_at = now() - interval '61 minutes'")
        .await;
    rows(&database, 1, "0").await;
    until_reason(&database, "inbox", "new rows: pending rows 1, last fire 01:01:").await;
}

#[tokio::test]
async fn a_trigger_that_stays_met_during_a_run_is_logged_once() {
    let database = Database::new().await;
    inbox(&database).await;
    let holder = database.connect().await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let held = "SELECT pg_advisory_xact_lock_shared(7); UPDATE inbox SET done = true";
    schedule(&database, "inbox", &format!("trigger({TABLE}, rows: 1)"), held, "").await;
    rows(&database, 1, "0").await;
    let _worker = Worker::start(&database, &FLAGS);
    eventually("the fire is skipped", async || {
        events(&database, "inbox").await == "fired 1, skipped 1"
    })
    .await;
    let (fires, reason, _) = test(&database, "inbox").await;
    assert!(
        !fires
            && reason
                .starts_with("row threshold: pending rows 1 >= 1; run 1 has been running since"),
        "{reason}"
    );
    let next_tick = "SELECT next_tick_at FROM mill.schedules";
    let before: jiff::Timestamp = database.value(next_tick).await;
    eventually("the trigger is probed again", async || {
        database.value::<jiff::Timestamp>(next_tick).await > before
    })
    .await;
    let again: jiff::Timestamp = database.value(next_tick).await;
    eventually("the trigger is probed a third time", async || {
        database.value::<jiff::Timestamp>(next_tick).await > again
    })
    .await;
    assert_eq!(events(&database, "inbox").await, "fired 1, skipped 1");
    holder.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    eventually("the run ends", async || {
        events(&database, "inbox").await == "fired 1, skipped 1, completed 1"
    })
    .await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a list of attempts")]
async fn names_are_quoted_and_a_probe_can_neither_hang_nor_write_nor_disturb_others() {
    let database = Database::new().await;
    database
        .execute(
            r#"CREATE SCHEMA "sel""ect";
            CREATE TABLE "sel""ect"."order; DROP TABLE victim" ("from" timestamptz NOT NULL, "user" int);
            INSERT INTO "sel""ect"."order; DROP TABLE victim" VALUES (now() - interval '1 hour', 1);
            GRANT USAGE ON SCHEMA "sel""ect" TO mill_test_tasks;
            GRANT SELECT ON "sel""ect"."order; DROP TABLE victim" TO mill_test_tasks;
            CREATE TABLE victim (n int);
            CREATE FUNCTION writes() RETURNS bigint LANGUAGE sql AS 'INSERT INTO victim VALUES (1) RETURNING 1::bigint'"#,
        )
        .await;
    let odd = r#"trigger(table: """sel""""ect"".""order; DROP TABLE victim""", age: from, idle: 1 min, every: 1s)"#;
    schedule(&database, "odd", odd, "SELECT 1", "").await;
    let probes = [
        ("hangs", "SELECT 1 FROM pg_sleep(3600)", "the trigger allows its probe 500ms (timeout)"),
        ("fails", "SELECT 1 / 0", "division by zero"),
        ("missing", "SELECT count(*) FROM nowhere", "relation \"nowhere\" does not exist"),
        ("nothing", "SELECT 1 WHERE false", "the probe returned no row"),
        ("null", "SELECT NULL::int", "the probe returned no number"),
        ("many", "SELECT generate_series(1, 3)", "the probe returned several rows"),
        ("words", "SELECT 'many'", "invalid input syntax for type numeric: \"many\""),
        (
            "no instant",
            "SELECT 1, 'yesterday evening'",
            "invalid input syntax for type timestamp with time zone",
        ),
        ("writes", "SELECT writes()", "cannot execute INSERT in a read-only transaction"),
        (
            "with",
            "WITH gone AS (DELETE FROM victim RETURNING 1) SELECT count(*) FROM gone",
            "WITH clause containing a data-modifying statement must be at the top level",
        ),
        ("two", "SELECT 1) AS x; DROP TABLE victim; SELECT (1", "syntax error at or near \";\""),
        (
            "unset",
            "SELECT count(set_config('transaction_read_only', 'off', false))",
            "transaction read-write mode must be set before any query",
        ),
        ("commits", "COMMIT", "syntax error at or near"),
    ];
    for (name, probe, _) in probes {
        let probe = probe.replace('"', "\"\"");
        // On a busy machine, any probe may take half a second.
        let timeout = if name == "hangs" { ", timeout: 500 ms" } else { "" };
        let timing = format!("trigger(probe: \"{probe}\", rows: 1, every: 1s{timeout})");
        schedule(&database, name, &timing, "SELECT 1", "").await;
    }
    for (name, table, filter) in [
        ("injected", "victim; DROP TABLE victim", "true"),
        ("through the filter", "victim", "true); DROP TABLE victim; SELECT (true"),
        ("a comment", "victim", "false --"),
    ] {
        let timing =
            format!("trigger(table: \"{table}\", filter: \"{filter}\", rows: 1, every: 1s)");
        schedule(&database, name, &timing, "SELECT 1", "").await;
    }
    let _worker = Worker::start(&database, &FLAGS);
    until_reason(&database, "odd", "idle: age of the oldest row 01:0").await;
    for (name, _, error) in probes {
        eventually(&format!("{name} reports {error}"), async || {
            let output =
                format!("SELECT coalesce(error, '') FROM mill.schedules WHERE name = '{name}'");
            database.value::<String>(&output).await.contains(error)
        })
        .await;
        assert_eq!(events(&database, name).await, "error 1", "{name}: once");
        assert_eq!(last_reason(&database, name).await, None, "{name}");
    }
    for (name, error) in [
        ("injected", "relation \"victim; DROP TABLE victim\" does not exist"),
        ("through the filter", "cannot insert multiple commands into a prepared statement"),
    ] {
        let output =
            format!("SELECT coalesce(error, '') FROM mill.schedules WHERE name = '{name}'");
        eventually(name, async || database.value::<String>(&output).await.contains(error)).await;
    }
    until_read(&database, "a comment").await;
    assert_eq!(
        test(&database, "a comment").await.1,
        "no trigger condition is met: pending rows 0 < 1"
    );
    assert_eq!(database.value::<i64>("SELECT count(*) FROM victim").await, 0);
    // The dry run has the same restrictions, and reports the same errors.
    for (name, _, error) in probes.iter().filter(|(name, ..)| !["hangs", "unset"].contains(name)) {
        let asked =
            database.client().query("SELECT reason FROM mill.schedule_test($1)", &[name]).await;
        let output = match asked {
            Ok(rows) => rows[0].get::<_, String>(0),
            Err(error) => error.as_db_error().unwrap().message().to_owned(),
        };
        let refused = ["INSERT is not allowed", "cannot open multi-query plan as cursor"];
        assert!(
            output.contains(error) || refused.iter().any(|it| output.contains(it)),
            "{name}: {output}"
        );
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM victim").await, 0);
}

#[tokio::test]
async fn probes_run_under_the_login_of_the_tasks() {
    let database = Database::new().await;
    let role = format!("probe_{}", database.name());
    database
        .execute(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'x'; CREATE TABLE secret AS SELECT 1;
             CREATE TABLE open AS SELECT now() AS at; GRANT SELECT ON open TO {role}"
        ))
        .await;
    for (name, table) in [("secret", "secret"), ("open", "open"), ("queue", "mill.tasks")] {
        let timing = format!("trigger(table: {table}, rows: 1, every: 1s)");
        schedule(&database, name, &timing, "SELECT 1", "").await;
    }
    let as_role = database.url_as(&role, "x");
    let worker = Worker::start(&database, &[&FLAGS[..], &["--task-url", &as_role]].concat());
    until_reason(&database, "open", "row threshold: pending rows 1 >= 1").await;
    for (name, error) in [
        ("secret", "permission denied for table secret"),
        ("queue", "permission denied for table tasks"),
    ] {
        let output =
            format!("SELECT coalesce(error, '') FROM mill.schedules WHERE name = '{name}'");
        eventually(name, async || database.value::<String>(&output).await.contains(error)).await;
    }
    drop(worker);
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn a_slow_probe_of_a_schedule_that_has_been_changed_fires_nothing() {
    let database = Database::new().await;
    let holder = database.connect().await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let slow = "trigger(probe: \"SELECT 1 FROM pg_advisory_lock_shared(7)\", rows: 1, every: 1 h, timeout: 2 min)";
    schedule(&database, "slow", slow, "SELECT 1", "").await;
    let _worker = Worker::start(&database, &FLAGS);
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'
        AND wait_event = 'advisory' AND datname = current_database())";
    eventually("the probe waits", async || database.value(waits).await).await;
    schedule(&database, "slow", "manual", "SELECT 1", "").await;
    holder.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    let gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
        AND query LIKE '%pg_advisory_lock_shared(7)%' AND pid <> pg_backend_pid())";
    eventually("the probe has ended", async || database.value(gone).await).await;
    let evaluated = "SELECT next_tick_at IS NULL FROM mill.schedules";
    eventually("the change is planned", async || database.value(evaluated).await).await;
    assert_eq!(events(&database, "slow").await, "");
    assert_eq!(test(&database, "slow").await.1, "it fires only when started manually");
}

#[tokio::test]
async fn a_probe_that_hangs_is_not_started_again_before_it_has_ended() {
    let database = Database::new().await;
    let holder = database.connect().await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let slow = "trigger(probe: \"SELECT 1 FROM pg_advisory_lock_shared(7)\", rows: 1, every: 1s, timeout: 2 min)";
    schedule(&database, "slow", slow, "SELECT 1", "").await;
    let _worker = Worker::start(&database, &FLAGS);
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
        AND wait_event = 'advisory' AND datname = current_database()";
    eventually("the probe hangs", async || database.value::<i64>(waiting).await > 0).await;
    for _ in 0..3 {
        let next_tick = "SELECT next_tick_at FROM mill.schedules";
        let before: jiff::Timestamp = database.value(next_tick).await;
        eventually("the schedule is processed again", async || {
            database.value::<jiff::Timestamp>(next_tick).await > before
        })
        .await;
    }
    assert_eq!(database.value::<i64>(waiting).await, 1);
    holder.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    eventually("the schedule fires", async || events(&database, "slow").await.contains("fired"))
        .await;
}
