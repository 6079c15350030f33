//! Schedules: every due instant fires once, although several workers tick and some workers fail. An
//! error in one schedule does not affect another schedule.

use rand::RngExt;

use crate::harness::{Database, Fleet, Worker, amount, eventually};
use crate::runs::run::{end, job};

pub(crate) const FLAGS: [&str; 4] = ["--readers", "4", "--poll-interval", "50ms"];

/// Declares a schedule of one statement; `options` has the form `, name => value`.
pub(crate) async fn schedule(
    database: &Database,
    name: &str,
    timing: &str,
    statement: &str,
    options: &str,
) {
    let sql = format!("SELECT mill.set_schedule($1, $2, statement => $3{options})");
    database.rows(&sql, &[&name, &timing, &statement]).await;
}

/// Returns a timing with one instant a day, half a day from now, so that a test that moves the schedule
/// some hours into the past meets no other instant, whatever the time of day is.
pub(crate) async fn daily_in_half_a_day(database: &Database) -> String {
    let text = "to_char(now() AT TIME ZONE 'UTC' + interval '12 hours', '\"daily(\"HH24:MI\")\"')";
    database.value(&format!("SELECT {text}")).await
}

/// Waits until a worker has computed the next fire.
pub(crate) async fn planned(database: &Database, name: &str) {
    eventually(&format!("schedule {name} is planned"), async || {
        database
            .value(&format!(
                "SELECT (next_fire_at IS NOT NULL OR trigger IS NOT NULL OR error IS NOT NULL)
                     AND (new_timing IS NULL OR new_timing_error IS NOT NULL)
                 FROM mill.schedules WHERE name = '{name}'"
            ))
            .await
    })
    .await;
}

/// Moves the schedule into the past, as if no worker had ticked for this time.
async fn nobody_ticked_for(database: &Database, name: &str, time: &str) {
    database
        .execute(&format!(
            "UPDATE mill.schedules SET next_fire_at = date_trunc('minute', now() - interval '{time}'),
                 next_tick_at = now() WHERE name = '{name}'"
        ))
        .await;
}

/// Returns `event count` of a schedule's log, in the order of the enum.
pub(crate) async fn events(database: &Database, name: &str) -> String {
    database
        .value(&format!(
            "SELECT coalesce(string_agg(event || ' ' || n, ', ' ORDER BY event), '') FROM (
                 SELECT l.event, count(*) AS n FROM mill.schedule_log l JOIN mill.schedules s ON s.id = l.schedule_id
                 WHERE s.name = '{name}' GROUP BY l.event) AS e"
        ))
        .await
}

pub(crate) async fn until_events(database: &Database, name: &str, wanted: &str) {
    let mut last = String::new();
    eventually(&format!("the log of {name} has {wanted}"), async || {
        last = events(database, name).await;
        last == wanted
    })
    .await;
}

/// Returns whether the schedule would fire now, and the reason.
pub(crate) async fn test(database: &Database, name: &str) -> (bool, String) {
    let sql = "SELECT would_fire, reason FROM mill.schedule_test($1)";
    let row = &database.rows(sql, &[&name]).await[0];
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn five_workers_that_are_killed_fire_each_instant_once() {
    let (schedules, instants, min_kills) = amount((20, 300, 3), (80, 2000, 1));
    let database = Database::new().await;
    database
        .execute("CREATE TABLE effect (schedule text NOT NULL, fire_at timestamptz NOT NULL)")
        .await;
    let options = ", overlap => 'allow', catch_up => 1000,
        task => '{\"params\": [{\"$param\": \"schedule\"}, {\"$param\": \"fire_at\"}]}'";
    for n in 0..schedules {
        let mark = "INSERT INTO effect VALUES ($1::text, $2::timestamptz)";
        schedule(&database, &format!("s{n}"), "every(1 second)", mark, options).await;
    }
    let mut fleet = Fleet::start(&database, 5, &FLAGS);
    let all = "SELECT count(next_fire_at) = count(*) FROM mill.schedules";
    eventually("all are planned", async || database.value(all).await).await;
    let started = "SELECT count(*) FROM mill.worker_starts";
    eventually("all have started", async || database.value::<i64>(started).await == 5).await;
    // No worker has ticked for some seconds. From here on, no second may be missed.
    database
        .execute(
            "UPDATE mill.schedules SET next_fire_at = next_fire_at - interval '12 seconds', next_tick_at = now()",
        )
        .await;
    database
        .execute(
            "CREATE TABLE first AS SELECT s.id, least(s.next_fire_at, (SELECT min(fire_at) FROM mill.runs r
                 WHERE r.schedule_id = s.id)) AS fire_at FROM mill.schedules s",
        )
        .await;
    let mut kills = 0;
    let fired = "SELECT count(*) FROM mill.runs";
    while kills < min_kills || database.value::<i64>(fired).await < instants {
        fleet.replace(rand::rng().random_range(0..fleet.len()));
        kills += 1;
        let there = format!("SELECT count(*) = 5 + {kills} FROM mill.worker_starts");
        eventually("the next run exists", async || database.value(&there).await).await;
    }
    database.execute("UPDATE mill.schedules SET next_tick_at = NULL").await;
    database.until_empty().await;
    let runs: i64 = database.value(fired).await;
    println!("{runs} fires, {kills} times kill -9");
    let missing: i64 = database
        .value(
            "SELECT count(*) FROM mill.schedules s JOIN first f USING (id)
                 CROSS JOIN generate_series(f.fire_at, s.next_fire_at - interval '1 second', '1 second') AS due(at)
             WHERE NOT EXISTS (SELECT FROM mill.runs r WHERE r.schedule_id = s.id AND r.fire_at = due.at)",
        )
        .await;
    assert_eq!(missing, 0, "instants without a fire");
    let doubled: i64 = database
        .value("SELECT count(*) FROM (SELECT FROM effect GROUP BY schedule, fire_at HAVING count(*) > 1) AS d")
        .await;
    assert_eq!(doubled, 0, "instants with two effects");
    let effects: i64 = database.value("SELECT count(*) FROM effect").await;
    assert_eq!(effects, runs, "one effect for each run");
    let others: String = database
        .value(
            "SELECT coalesce(string_agg(concat_ws(' ', event, fire_at, message), '; '), '')
             FROM mill.schedule_log WHERE event IN ('missed', 'error', 'skipped')",
        )
        .await;
    assert_eq!(others, "");
}

/// Statement that runs as long as the test holds the lock.
pub(crate) const WAITS_FOR_LOCK: &str = "SELECT pg_advisory_xact_lock_shared(7)";

#[tokio::test]
async fn a_fire_during_a_run_is_skipped_or_waits_or_runs_concurrently() {
    let database = Database::new().await;
    let holder = database.connect().await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let _worker = Worker::start(&database, &FLAGS);
    for (name, overlap, wanted) in [
        ("skip", "skip", "fired 1, skipped 2"),
        ("queue", "queue", "fired 1, skipped 1"),
        ("allow", "allow", "fired 3"),
    ] {
        let options = format!(", overlap => '{overlap}'");
        schedule(&database, name, "monthly(1, 00:00)", WAITS_FOR_LOCK, &options).await;
        planned(&database, name).await;
        for n in 1..=3 {
            database
                .execute(&format!(
                    "UPDATE mill.schedules SET next_fire_at = now() - interval '{} milliseconds', next_tick_at = now()
                     WHERE name = '{name}'", 10 - n
                ))
                .await;
            let due =
                format!("SELECT next_fire_at > now() FROM mill.schedules WHERE name = '{name}'");
            eventually("the schedule has been processed", async || database.value(&due).await)
                .await;
        }
        until_events(&database, name, wanted).await;
    }
    let (fires, reason) = test(&database, "skip").await;
    assert!(!fires && reason.starts_with("the next fire is due at"), "{reason}");
    let output: String = database
        .value(
            "SELECT l.message FROM mill.schedule_log l JOIN mill.schedules s ON s.id = l.schedule_id
             WHERE s.name = 'skip' AND event = 'skipped' LIMIT 1",
        )
        .await;
    let run: i64 = database
        .value("SELECT r.id FROM mill.runs r JOIN mill.schedules s ON s.id = r.schedule_id WHERE s.name = 'skip'")
        .await;
    assert!(output.starts_with(&format!("run {run} has been running since ")), "{output}");
    holder.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    until_events(&database, "queue", "fired 2, skipped 1, completed 2").await;
    until_events(&database, "skip", "fired 1, skipped 2, completed 1").await;
    until_events(&database, "allow", "fired 3, completed 3").await;
}

#[tokio::test]
async fn a_schedule_that_cannot_fire_reports_it_and_waits_for_its_next_time_while_others_fire() {
    let database = Database::new().await;
    job(&database, "gone", serde_json::json!([{"name": "t", "statement": "SELECT 1"}])).await;
    database
        .execute(
            "SELECT mill.set_schedule('broken', 'every(1 hour)', jobs => ARRAY['gone']);
             SELECT mill.enable_job('gone', false);
             SELECT mill.set_schedule('unknown', 'daily(25:61)', statement => 'SELECT 1');
             SELECT mill.set_schedule('once', 'once(\"2020-01-01 00:00\")', statement => 'SELECT 1')",
        )
        .await;
    schedule(&database, "sound", "every(1 hour)", "SELECT 1", "").await;
    let _worker = Worker::start(&database, &FLAGS);
    planned(&database, "broken").await;
    planned(&database, "sound").await;
    nobody_ticked_for(&database, "broken", "0").await;
    nobody_ticked_for(&database, "sound", "0").await;
    until_events(&database, "sound", "fired 1, completed 1").await;
    until_events(&database, "broken", "error 1").await;
    let message =
        "SELECT l.message FROM mill.schedule_log l JOIN mill.schedules s ON s.id = l.schedule_id
        WHERE l.event = 'error' AND s.name = ";
    let broken: String = database.value(&format!("{message}'broken'")).await;
    assert_eq!(broken, "job \"gone\" is disabled");
    let next = "SELECT next_fire_at > now() AND next_tick_at > now() FROM mill.schedules WHERE name = 'broken'";
    assert!(database.value::<bool>(next).await, "it is not processed before its next time");
    until_events(&database, "unknown", "error 1").await;
    let unknown: String = database.value(&format!("{message}'unknown'")).await;
    assert!(unknown.contains("\"25:61\" is not a time of day"), "{unknown}");
    assert_eq!(test(&database, "unknown").await, (false, unknown));
    // A schedule that will not fire again is disabled.
    eventually("the one-time schedule is over", async || {
        database.value("SELECT NOT enabled FROM mill.schedules WHERE name = 'once'").await
    })
    .await;
    // After a change, the worker tries the schedule again.
    database
        .execute("SELECT mill.set_schedule('unknown', 'every(1 hour)', statement => 'SELECT 1')")
        .await;
    planned(&database, "unknown").await;
    let error = "SELECT error IS NULL AND next_fire_at IS NOT NULL FROM mill.schedules WHERE name = 'unknown'";
    assert!(database.value::<bool>(error).await);
}

#[tokio::test]
async fn a_schedule_that_takes_too_long_to_start_blocks_no_other() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_max_running('queue', 'held', 1)").await;
    let held = ", task => '{\"queue\": \"held\"}'";
    schedule(&database, "slow", "monthly(1, 03:15)", "SELECT 1", held).await;
    schedule(&database, "sound", "monthly(1, 03:15)", "SELECT 1", "").await;
    let _worker = Worker::start(&database, &FLAGS);
    planned(&database, "slow").await;
    planned(&database, "sound").await;
    database
        .execute(
            "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3600); RETURN NEW; END';
             CREATE TRIGGER hang BEFORE INSERT ON mill.tasks FOR EACH ROW WHEN (NEW.queue = 'held')
                 EXECUTE FUNCTION hang();
             UPDATE mill.schedules SET next_fire_at = now() - interval '1 s' * (name = 'slow')::int, next_tick_at = now()
                 - interval '1 s' * (name = 'slow')::int",
        )
        .await;
    // The cancel raises the same error as a statement timeout (57014), which EXCEPTION WHEN OTHERS
    // does not catch.
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event = 'PgSleep' AND query LIKE '%schedule.tick %'";
    eventually("the slow schedule is abandoned", async || {
        database.value::<i64>(cancel).await;
        events(&database, "slow").await == "error 1"
    })
    .await;
    until_events(&database, "sound", "fired 1, completed 1").await;
    let message: String =
        database.value("SELECT message FROM mill.schedule_log WHERE event = 'error'").await;
    assert!(message.contains("canceling statement due to user request"), "{message}");
    let next = "SELECT bool_and(next_fire_at > now() AND error IS NULL) FROM mill.schedules";
    assert!(database.value::<bool>(next).await);
}

#[tokio::test]
async fn a_log_that_takes_no_rows_stops_no_schedule_and_no_run() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    schedule(&database, "sound", "every(1 hour)", "SELECT 1", "").await;
    schedule(&database, "unknown", "daily(25:61)", "SELECT 1", "").await;
    planned(&database, "sound").await;
    until_events(&database, "unknown", "error 1").await;
    database
        .execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN RAISE EXCEPTION ''no space left on device''; END';
             CREATE TRIGGER full_disk BEFORE INSERT ON mill.schedule_log EXECUTE FUNCTION full_disk();
             UPDATE mill.schedules SET error = NULL, next_tick_at = now()",
        )
        .await;
    nobody_ticked_for(&database, "sound", "2 hours").await;
    let state = "SELECT count(*) FROM mill.schedules
        WHERE last_state = 'succeeded' OR error LIKE '%25:61%' AND next_tick_at IS NULL";
    eventually("each schedule was evaluated", async || database.value::<i64>(state).await == 2)
        .await;
    assert_eq!(events(&database, "sound").await, "");
}

#[tokio::test]
async fn a_one_time_schedule_fires_once_and_is_over() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_schedule('once', to_char(now() AT TIME ZONE 'UTC' + interval '2 s',
                 '\"once(\"YYYY-MM-DD HH24:MI:SS\")\"'), 'SELECT 1')",
        )
        .await;
    let _worker = Worker::start(&database, &FLAGS);
    until_events(&database, "once", "fired 1, completed 1").await;
    let over = "SELECT NOT enabled AND next_tick_at IS NULL AND last_success_at IS NOT NULL
        FROM mill.schedules WHERE name = 'once'";
    assert!(database.value::<bool>(over).await);
    assert_eq!(test(&database, "once").await.1, "it has fired and does not fire again");
}

#[tokio::test]
async fn run_now_leaves_the_timeline_alone_and_jitter_comes_later() {
    let database = Database::new().await;
    let holder = database.connect().await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    schedule(&database, "nightly", "monthly(1, 03:15)", WAITS_FOR_LOCK, ", jitter => '20 hours'")
        .await;
    let _worker = Worker::start(&database, &FLAGS);
    planned(&database, "nightly").await;
    let timeline = "SELECT (next_fire_at, next_tick_at, last_fire_at)::text FROM mill.schedules";
    let before: String = database.value(timeline).await;
    let late =
        "SELECT next_tick_at > next_fire_at AND next_tick_at < next_fire_at + interval '20 hours'
        FROM mill.schedules";
    assert!(database.value::<bool>(late).await);
    let run: i64 = database.value("SELECT mill.run_now('nightly')").await;
    let refused = database.client().query("SELECT mill.run_now('nightly')", &[]).await.unwrap_err();
    let refused = refused.as_db_error().unwrap();
    assert_eq!(
        (refused.code().code(), refused.message()),
        ("55000", &*format!("run {run} of schedule \"nightly\" is still running"))
    );
    database.value::<i64>("SELECT mill.run_now('nightly', force => true)").await;
    // Any client can cancel the run, because the request is a row.
    database.execute(&format!("SELECT mill.cancel_run({run}, true)")).await;
    assert_eq!(end(&database, run).await, "cancelled");
    holder.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    until_events(&database, "nightly", "fired 2, completed 2").await;
    assert_eq!(database.value::<String>(timeline).await, before);
    let reasons = "SELECT string_agg(DISTINCT reason, ' ') FROM mill.schedule_history";
    assert_eq!(database.value::<String>(reasons).await, "manual");
}

#[tokio::test]
async fn a_dead_worker_s_task_is_in_the_log_and_later_fires_continue() {
    let database = Database::new().await;
    let holder = database.connect().await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    schedule(&database, "held", "monthly(1, 03:15)", WAITS_FOR_LOCK, "").await;
    let mut fleet = Fleet::start(
        &database,
        2,
        &["--readers", "1", "--poll-interval", "50ms", "--heartbeat-interval", "200ms"],
    );
    planned(&database, "held").await;
    let run: i64 = database.value("SELECT mill.run_now('held')").await;
    let claimed = "SELECT s.pid FROM mill.tasks t JOIN mill.worker_starts s ON s.id = t.claimed_by";
    eventually("the task runs", async || !database.rows(claimed, &[]).await.is_empty()).await;
    // Both at once: otherwise the second one could reclaim and claim the task before its end.
    fleet.replace_all();
    until_events(&database, "held", "fired 1, reclaimed 1").await;
    holder.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    assert_eq!(end(&database, run).await, "succeeded");
}

#[tokio::test]
async fn a_change_applies_from_its_time_and_a_pause_is_not_caught_up() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    schedule(&database, "s", "every(1 hour)", "SELECT 1", ", catch_up => 100").await;
    planned(&database, "s").await;
    database.execute("SELECT mill.enable_schedule('s', false)").await;
    nobody_ticked_for(&database, "s", "1 hour").await;
    database.execute("UPDATE mill.schedules SET next_tick_at = NULL").await;
    assert_eq!(test(&database, "s").await, (false, "it is disabled".to_owned()));
    database.execute("SELECT mill.enable_schedule('s', true)").await;
    eventually("the schedule is planned again", async || {
        database.value("SELECT coalesce(next_fire_at > now(), false) FROM mill.schedules").await
    })
    .await;
    database
        .execute("SELECT mill.set_schedule('s', 'daily(03:15)', statement => 'SELECT 1')")
        .await;
    planned(&database, "s").await;
    let events = events(&database, "s").await;
    assert!(!events.contains("missed"), "{events}");
    // An identical definition changes nothing. A change of the statement does not change the times.
    let again = "SELECT mill.set_schedule('s', 'daily(03:15)', statement => 'SELECT 1')";
    assert_eq!(database.value::<String>(again).await, "unchanged");
    let plan = "SELECT (planned_from, next_fire_at)::text FROM mill.schedules";
    let before: String = database.value(plan).await;
    let other = "SELECT mill.set_schedule('s', 'daily(03:15)', statement => 'SELECT 2')";
    assert_eq!(database.value::<String>(other).await, "changed");
    assert_eq!(database.value::<String>(plan).await, before);
}

#[tokio::test]
async fn a_worker_configured_not_to_tick_leaves_it_to_others() {
    let database = Database::new().await;
    schedule(&database, "s", "every(1 second)", "SELECT 1", "").await;
    let quiet = Worker::start(&database, &[&FLAGS[..], &["--no-scheduler"]].concat());
    quiet.until_logged("ready").await;
    database.enqueue("SELECT 1", "").await;
    database.until_empty().await;
    assert_eq!(events(&database, "s").await, "");
    let _other = Worker::start(&database, &FLAGS);
    eventually("the other worker fires", async || events(&database, "s").await.contains("fired"))
        .await;
}

#[tokio::test]
async fn the_cost_of_a_tick_depends_on_due_schedules_only() {
    let database = Database::new().await;
    let tick = "SELECT * FROM mill.lock_due_schedules(50)";
    let mut found = Vec::new();
    for count in [100, 10_000] {
        database
            .execute(&format!(
                "INSERT INTO mill.schedules (name, declared_in, definition, jobs, timing, next_fire_at, next_tick_at)
                     SELECT n || ' of {count}', 'call', '{{}}', '{{j}}', 'daily(03:15)', now() + n * interval '1 hour',
                         now() + n * interval '1 hour' FROM generate_series(1, {count}) AS n"
            ))
            .await;
        let mut blocks = i64::MAX;
        for _ in 0..10 {
            blocks = blocks.min(database.blocks_of(tick).await);
        }
        found.push(blocks);
    }
    println!("buffers of a tick with nothing due: {found:?} of 100 and 10,100 schedules");
    assert!(found[1] <= found[0] + 10, "{found:?}");
}

#[tokio::test]
async fn the_log_is_kept_for_the_configured_time() {
    let database = Database::new().await;
    schedule(&database, "s", "manual", "SELECT 1", "").await;
    database
        .execute(
            "INSERT INTO mill.schedule_log (schedule_id, event, logged_at)
                 SELECT s.id, 'fired', now() - n * interval '1 day' FROM mill.schedules s,
                     generate_series(40, 1, -1) AS n",
        )
        .await;
    // The entries of day 30 are deleted, too: they are some microseconds too old.
    assert_eq!(database.value::<i32>("SELECT mill.prune_schedule_log()").await, 11);
    database.execute("UPDATE mill.settings SET schedule_log_retention = '3 days 1 hour'").await;
    assert_eq!(database.value::<i32>("SELECT mill.prune_schedule_log()").await, 26);
    assert_eq!(events(&database, "s").await, "fired 3");
}

#[tokio::test]
async fn the_table_refuses_a_second_run_for_one_fire() {
    let database = Database::new().await;
    schedule(&database, "s", "manual", "SELECT 1", "").await;
    let fire = async |reason: &str| {
        let sql = format!(
            "INSERT INTO mill.runs (jobs, params, schedule_id, fire_at, reason)
             SELECT jobs, '{{}}', id, '2026-01-01', '{reason}' FROM mill.schedules WHERE name = 's'"
        );
        let inserted = database.client().batch_execute(&sql).await;
        inserted.map_err(|error| error.as_db_error().unwrap().constraint().unwrap().to_owned())
    };
    fire("schedule").await.unwrap();
    assert_eq!(fire("schedule").await, Err("runs_fired_once".to_owned()));
    assert_eq!(fire("schedule, queued").await, Err("runs_fired_once".to_owned()));
    // An operator may start further runs for the same instant.
    fire("manual").await.unwrap();
    fire("manual").await.unwrap();
}
