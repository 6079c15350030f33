//! Backfills: each instant of a period becomes one run, whichever worker dies, and no more runs are in
//! progress than permitted. A backfill does not change the regular fires.

use rand::RngExt;
use serde_json::{Value, json};

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, Fleet, Program, Worker, amount, eventually};
use crate::runs::run::{end, job};
use crate::runs::run_cli::json_of;
use crate::schedules::schedule::{FLAGS, WAITS_FOR_LOCK, planned, schedule};
use crate::schedules::schedule_cli::{output_of, refused};

/// Records its instant.
const RECORDS: &str = "INSERT INTO effect VALUES ($1::timestamptz)";
const KILLED: [&str; 6] =
    ["--readers", "4", "--poll-interval", "50ms", "--heartbeat-interval", "200ms"];
const TAKES_INSTANT: &str = ", task => '{\"params\": [{\"$param\": \"fire_at\"}]}'";

/// Creates a backfill and returns its id.
async fn backfill(database: &Database, name: &str, period: &str, options: &str) -> i64 {
    let (from, to) = period.split_once(" to ").unwrap();
    let sql =
        format!("SELECT mill.backfill_schedule('{name}', '{from}', '{to}', '{options}'::jsonb)");
    database.value(&sql).await
}

async fn state(database: &Database, id: i64) -> String {
    let sql = format!(
        "SELECT concat_ws(' ', state, fired, skipped, instants) FROM mill.backfills WHERE id = {id}"
    );
    database.value(&sql).await
}

async fn until(database: &Database, id: i64, wanted: &str) {
    let mut last = String::new();
    eventually(&format!("backfill {id} is {wanted}"), async || {
        last = state(database, id).await;
        last == wanted
    })
    .await;
}

/// Returns the greatest number of runs of the backfill that were in progress when one of them started.
async fn most_running(database: &Database, id: i64) -> i64 {
    database
        .value(&format!(
            "SELECT max((SELECT count(*) FROM mill.runs o WHERE o.backfill_id = {id} AND o.started_at <= r.started_at
                 AND coalesce(o.finished_at, 'infinity') > r.started_at))
             FROM mill.runs r WHERE r.backfill_id = {id}"
        ))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_year_with_both_clock_changes_runs_once_per_instant_while_workers_are_killed() {
    // Both clocks change on a Sunday.
    let (days, all_days, instants, max_kills) = amount(
        ("days: sun, ", "date '2025-01-05', date '2025-12-31', '7 days'", 52, 3),
        ("", "date '2025-01-01', date '2025-12-31', '1 day'", 365, 12),
    );
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (fire_at timestamptz NOT NULL)").await;
    let timing = format!("daily(02:30, {days}zone: Europe/Berlin)");
    schedule(&database, "nightly", &timing, RECORDS, TAKES_INSTANT).await;
    let period = "2025-01-01 00:00+01 to 2025-12-31 23:59+01";
    let id = backfill(&database, "nightly", period, r#"{"max_running": 4}"#).await;
    let mut fleet = Fleet::start(&database, 3, &KILLED);
    let mut kills = 0;
    let progress = format!(
        "SELECT CASE state WHEN 'finished' THEN 1000 ELSE fired END FROM mill.backfills WHERE id = {id}"
    );
    while kills < max_kills {
        let far = format!("SELECT ({progress}) > {instants} * {kills} / ({max_kills} + 2)");
        eventually("the backfill progresses", async || database.value(&far).await).await;
        fleet.replace(rand::rng().random_range(0..fleet.len()));
        kills += 1;
    }
    until(&database, id, &format!("finished {instants} 0 {instants}")).await;
    println!("{kills} times kill -9");
    // At 02:30 on the first of these days the clock skips the hour, on the second it repeats it.
    let wrong: String = database
        .value(&format!(
            "WITH wanted AS (SELECT CASE d::date WHEN '2025-03-30' THEN '2025-03-30 01:00+00'
                     WHEN '2025-10-26' THEN '2025-10-26 00:30+00'
                     ELSE (d::date + time '02:30') AT TIME ZONE 'Europe/Berlin' END AS at
                 FROM generate_series({all_days}) AS d)
             SELECT concat_ws('; ', (SELECT string_agg(at::text, ' ') FROM wanted
                     WHERE (SELECT count(*) FROM effect WHERE fire_at = at) <> 1),
                 (SELECT string_agg(fire_at::text, ' ') FROM effect WHERE fire_at NOT IN (SELECT at FROM wanted)))"
        ))
        .await;
    assert_eq!(wrong, "", "instants that did not run once");
    assert!(most_running(&database, id).await <= 4);
    let (order, runs): (bool, i64) = {
        let sql = "SELECT bool_and(a = b), count(*) FROM (SELECT row_number() OVER (ORDER BY id) AS a,
                row_number() OVER (ORDER BY fire_at) AS b FROM mill.runs WHERE backfill_id = $1) AS r";
        let row = &database.rows(sql, &[&id]).await[0];
        (row.get(0), row.get(1))
    };
    assert!(runs == instants && order, "in the order of the instants");
    let next = "SELECT last_fire_at IS NULL AND last_state IS NULL AND next_fire_at > now() FROM mill.schedules";
    assert!(database.value::<bool>(next).await, "the schedule itself is as it was");
}

#[tokio::test]
async fn a_paused_backfill_resumes_at_its_next_instant_and_regular_runs_do_not_wait_for_it() {
    let database = Database::new().await;
    let holder = database.connect().await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    schedule(&database, "s", "daily(03:00)", WAITS_FOR_LOCK, "").await;
    let id = backfill(&database, "s", "2026-01-01 to 2026-01-11", r#"{"max_running": 2}"#).await;
    let _worker = Worker::start(&database, &FLAGS);
    until(&database, id, "running 2 0 10").await;
    let reason: String = database.value("SELECT reason FROM mill.schedule_test('s')").await;
    assert!(reason.ends_with("; backfill 1 is in progress, 0 of 10 instants are done"), "{reason}");
    assert_eq!(
        output_of(&database, &["schedule", "pause-backfill", "1"]).await,
        "backfill 1 paused\n"
    );
    // A run of a backfill does not block the schedule.
    planned(&database, "s").await;
    let regular: i64 = database.value("SELECT mill.run_now('s')").await;
    holder.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    assert_eq!(end(&database, regular).await, "succeeded");
    for run in [1, 2] {
        assert_eq!(end(&database, run).await, "succeeded");
    }
    assert_eq!(state(&database, id).await, "paused 2 0 10");
    let seen = json_of(&database, &["schedule", "backfills", "s"]).await;
    assert_eq!(
        (&seen[0]["state"], &seen[0]["succeeded"], &seen[0]["next_at"]),
        (&json!("paused"), &json!(2), &json!("2026-01-03T03:00:00Z"))
    );
    output_of(&database, &["schedule", "resume-backfill", "1"]).await;
    until(&database, id, "finished 10 0 10").await;
    let ended = ["schedule", "cancel-backfill", "1"];
    refused(&database, &ended, 5, &["backfill 1 is finished", "hint: Start another one"]).await;
    let actions: String = database
        .value("SELECT string_agg(action, ' ' ORDER BY id) FROM mill.audit WHERE action LIKE '%backfill%'")
        .await;
    assert_eq!(actions, "backfill_schedule pause_backfill resume_backfill");
}

#[tokio::test]
async fn instants_with_a_run_are_skipped_unless_they_are_to_run_again() {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (fire_at timestamptz NOT NULL)").await;
    schedule(&database, "s", "daily(03:00)", RECORDS, TAKES_INSTANT).await;
    let _worker = Worker::start(&database, &FLAGS);
    let first = backfill(&database, "s", "2026-01-03 to 2026-01-04 03:00Z", "{}").await;
    until(&database, first, "finished 2 0 2").await;
    let command =
        ["schedule", "backfill", "s", "--from", "2026-01-01T03:00Z", "--to", "2026-01-05T00:00Z"];
    let dry_run = json_of(&database, &[&command[..], &["--dry-run"]].concat()).await;
    assert_eq!(
        dry_run,
        json!({
            "schedule": "s", "backfill_id": null, "instants": 4, "dry_run": true,
            "first_at": "2026-01-01T03:00:00Z", "last_at": "2026-01-04T03:00:00Z",
            "skipped": ["2026-01-03T03:00:00Z", "2026-01-04T03:00:00Z"],
        })
    );
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.backfills").await, 1);
    let printed = output_of(&database, &command).await;
    assert!(printed.contains("skipped, because a run exists: 2 instants"), "{printed}");
    until(&database, 3, "finished 2 2 4").await;
    let again = output_of(&database, &[&command[..], &["--again"]].concat()).await;
    assert!(again.starts_with("backfill 4 of schedule s: 4 instants, "), "{again}");
    until(&database, 4, "finished 4 0 4").await;
    let runs = "SELECT string_agg(n::text, ' ' ORDER BY fire_at) FROM (SELECT fire_at, count(*) AS n FROM effect GROUP BY 1) AS e";
    assert_eq!(database.value::<String>(runs).await, "2 2 2 2");
    let list = json_of(&database, &["run", "list", "--backfill", "4"]).await;
    let of_backfill: Vec<&Value> =
        list.as_array().unwrap().iter().map(|run| &run["backfill_id"]).collect();
    assert_eq!(of_backfill, [4, 4, 4, 4]);
    let shown = output_of(&database, &["run", "show", &list[0]["id"].to_string()]).await;
    assert!(shown.contains(": backfill 4\n"), "{shown}");
}

#[tokio::test]
async fn an_error_pauses_a_backfill_at_the_instant_that_did_not_start() {
    let database = Database::new().await;
    job(&database, "load", json!([{"name": "t", "statement": "SELECT 1"}])).await;
    database
        .execute(
            "SELECT mill.set_schedule('s', 'daily(03:00)', jobs => ARRAY['load']), mill.enable_schedule('s', false),
                 mill.enable_job('load', false)",
        )
        .await;
    let id = backfill(&database, "s", "2026-01-01 to 2026-01-04", "{}").await;
    let _worker = Worker::start(&database, &FLAGS);
    until(&database, id, "paused 0 0 3").await;
    let seen = output_of(&database, &["schedule", "backfills"]).await;
    assert!(seen.contains("backfill 1 is paused: job \"load\" is disabled"), "{seen}");
    let why = output_of(&database, &["why", "s"]).await;
    assert!(why.contains("backfill 1 is paused, 0 of 3 instants are done, error: job"), "{why}");
    // A disabled schedule does not fire, but an operator may run it.
    database.execute("SELECT mill.enable_job('load')").await;
    output_of(&database, &["schedule", "resume-backfill", "1"]).await;
    until(&database, id, "finished 3 0 3").await;

    let unknown =
        backfill(&database, "s", "2026-02-01 to 2026-02-04", r#"{"params": {"x": 1}}"#).await;
    until(&database, unknown, "paused 0 0 3").await;
    let error: String = database.value("SELECT error FROM mill.backfills WHERE id = 2").await;
    assert!(error.starts_with("unknown parameter \"x\""), "{error}");
    output_of(&database, &["schedule", "cancel-backfill", "2"]).await;

    database.execute("SELECT mill.remove_schedules('{s}')").await;
    database
        .execute("UPDATE mill.backfills SET state = 'running', finished_at = NULL WHERE id = 2")
        .await;
    until(&database, unknown, "paused 0 0 3").await;
    let error: String = database.value("SELECT error FROM mill.backfills WHERE id = 2").await;
    assert_eq!(error, "the declaration of schedule \"s\" was removed");
}

#[tokio::test]
async fn a_period_or_a_schedule_without_past_instants_is_refused() {
    let database = Database::new().await;
    schedule(&database, "s", "every(1 second)", "SELECT 1", "").await;
    schedule(&database, "m", "manual", "SELECT 1", "").await;
    schedule(&database, "t", "trigger(table: public.x, rows: 1)", "SELECT 1", "").await;
    schedule(&database, "gone", "daily(03:00)", "SELECT 1", "").await;
    database.execute("SELECT mill.remove_schedules('{gone}')").await;
    for (name, from, to, code, text) in [
        ("s", "2026-01-01", "2026-01-03", 5, "more than 100000 instants"),
        ("s", "2026-01-03", "2026-01-01", 5, "begins at"),
        ("s", "2026-01-03", "2036-01-01", 5, "in the future"),
        (
            "m",
            "2026-01-01",
            "2026-01-02",
            5,
            "schedule \"m\" has no instants: its timing is manual",
        ),
        (
            "t",
            "2026-01-01",
            "2026-01-02",
            5,
            "schedule \"t\" has no instants: its timing is a trigger",
        ),
        ("gone", "2026-01-01", "2026-01-02", 5, "the declaration of schedule \"gone\" was removed"),
        ("nobody", "2026-01-01", "2026-01-02", 4, "there is no schedule \"nobody\""),
    ] {
        let command = ["schedule", "backfill", name, "--from", from, "--to", to];
        refused(&database, &command, code, &[text]).await;
        refused(&database, &[&command[..], &["--dry-run"]].concat(), code, &[text]).await;
    }
    refused(&database, &["schedule", "pause-backfill", "9"], 4, &["there is no backfill 9"]).await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.backfills").await, 0);
    // In SQL, only a worker can count the instants.
    let id = backfill(&database, "s", "2026-01-01 to 2026-01-03", "{}").await;
    let _worker = Worker::start(&database, &FLAGS);
    until(&database, id, "paused 0 0").await;
    let error: String = database.value("SELECT error FROM mill.backfills").await;
    assert_eq!(error, "the period has more than 100000 instants");
}

#[tokio::test]
async fn viewers_read_backfills_and_only_operators_start_and_change_them() {
    let database = Database::new().await;
    schedule(&database, "s", "daily(03:00)", "SELECT 1", "").await;
    let viewer = Login::new(&database, "backfill_viewer", "mill_viewer").await;
    let operator = Login::new(&database, "backfill_operator", "mill_operator").await;
    let start = ["schedule", "backfill", "s", "--from", "2026-01-01", "--to", "2026-01-02"];
    for command in [
        &start[..],
        &["schedule", "pause-backfill", "1"],
        &["schedule", "resume-backfill", "1"],
        &["schedule", "cancel-backfill", "1"],
    ] {
        let (code, _, stderr) = Program::pgmill(&database, command).at(&viewer.url()).run().await;
        assert!(code == 5 && stderr.contains("mill_operator"), "{command:?}: {code} {stderr}");
        Program::pgmill(&database, command).at(&operator.url()).succeeds().await;
        let list = ["schedule", "backfills"];
        Program::pgmill(&database, &list).at(&viewer.url()).succeeds().await;
    }
    assert_eq!(state(&database, 1).await, "cancelled 0 0");
    viewer.drop().await;
    operator.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manual_run_takes_parameters_and_an_instant() {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (fire_at timestamptz, day integer, size text)").await;
    let statement = "INSERT INTO effect VALUES ($1::timestamptz, $2::integer, $3::text)";
    let params = json!([{"$param": "fire_at"}, {"$param": "day"}, {"$param": "size"}]);
    job(&database, "load", json!([{"name": "t", "statement": statement, "params": params}])).await;
    database
        .execute(
            r#"SELECT mill.set_schedule('s', 'daily(03:00, zone: Europe/Berlin)', jobs => '{load}',
                   params => '{"day": 1, "size": "small"}')"#,
        )
        .await;
    let _worker = Worker::start(&database, &FLAGS);
    planned(&database, "s").await;
    let command = ["schedule", "run-now", "s", "--param", "day=7", "--at", "2026-01-01T02:00:00Z"];
    output_of(&database, &command).await;
    assert_eq!(end(&database, 1).await, "succeeded");
    let effect = "SELECT string_agg(concat_ws(' ', fire_at AT TIME ZONE 'UTC', day, size), ', ' ORDER BY fire_at, day) FROM effect";
    assert_eq!(database.value::<String>(effect).await, "2026-01-01 02:00:00 7 small");
    let shown = json_of(&database, &["run", "show", "1"]).await;
    assert_eq!(
        (&shown["run"]["schedule"], &shown["run"]["fire_at"], &shown["run"]["reason"]),
        (&json!("s"), &json!("2026-01-01T02:00:00Z"), &json!("manual"))
    );
    refused(&database, &command, 5, &["has a run for 2026-01-01 02:00:00+00 already: run 1"]).await;
    let future = ["schedule", "run-now", "s", "--at", "2096-01-01"];
    refused(&database, &future, 5, &["is in the future"]).await;
    let unknown = ["schedule", "run-now", "s", "--param", "x=1"];
    refused(&database, &unknown, 5, &["unknown parameter \"x\""]).await;
    // The page asks for the same.
    let console = Console::start(&database, &[]).await;
    let page = console.get("/schedules/detail?name=s").await.body;
    for field in ["name=\"param:day\"", "name=\"param:size\"", "name=\"at\"", "(Europe/Berlin)"] {
        assert!(page.contains(field), "{field} in {page}");
    }
    let form = "name=s&param:day=8&param:size=&at=2026-01-01T03:00";
    assert_eq!(console.post("/schedules/run-now", form).await.status, 422);
    let started = console.post("/schedules/run-now", &format!("{form}&force=true")).await;
    assert_eq!(started.status, 303, "{}", started.body);
    eventually("both runs have ended", async || {
        database.value::<i64>("SELECT count(*) FROM effect").await == 2
    })
    .await;
    let both = "2026-01-01 02:00:00 7 small, 2026-01-01 02:00:00 8 small";
    assert_eq!(database.value::<String>(effect).await, both);
}
