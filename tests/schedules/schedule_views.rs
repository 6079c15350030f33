//! Views of schedules for operators: lists, details, reasons, runs with their schedule, and doctor
//! findings.

use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::harness::{Database, Program, Worker, eventually};
use crate::runs::run::{end, job};
use crate::runs::run_cli::json_of;
use crate::schedules::schedule::{FLAGS, planned, schedule, until_events};
use crate::schedules::schedule_cli::{annotated, kept, output_of};

#[tokio::test]
async fn the_list_shows_the_status_of_each_schedule_and_its_errors() {
    let database = Database::new().await;
    let list = async || Program::pgmill(&database, &["schedule", "list"]).run().await;
    assert_eq!(list().await, (0, String::new(), "there are no schedules\n".to_owned()));
    assert_eq!(
        json_of(&database, &["schedule", "list"]).await,
        json!({"schedules": [], "declaration_errors": []})
    );
    schedule(&database, "a", "daily(03:15, days: weekdays)", "SELECT 1", "").await;
    schedule(&database, "b", "manual", "SELECT 1", "").await;
    output_of(&database, &["schedule", "disable", "b"]).await;
    output_of(&database, &["schedule", "run-now", "a"]).await;
    annotated(&database, "nightly", "@daily(03:15, days: none)").await;
    assert_eq!(Program::pgmill(&database, &["schedule", "sync"]).run().await.0, 1);
    let (code, rows, reported) = list().await;
    let rows: Vec<&str> = rows.lines().collect();
    assert_eq!((code, rows.len()), (0, 3), "{rows:?}");
    assert!(
        rows[1].contains("running") && rows[1].contains("every weekday at 03:15"),
        "{}",
        rows[1]
    );
    assert!(rows[2].contains("disabled"), "{}", rows[2]);
    assert!(reported.starts_with("error in the comment of public.nightly, 1:"), "{reported}");
    let list = json_of(&database, &["schedule", "list"]).await;
    assert_eq!(list["schedules"][0]["running_run_id"], 1);
    assert_eq!(list["declaration_errors"][0]["declared_as"], "public.nightly");
}

#[tokio::test]
async fn one_schedule_is_shown_with_its_description_next_fires_runs_and_log() {
    let database = Database::new().await;
    let options = ", overlap => 'queue', max_lateness => '30 min', jitter => '1 min'";
    schedule(&database, "s", "daily(03:15, zone: Europe/Berlin)", "SELECT 1", options).await;
    output_of(
        &database,
        &["schedule", "set", "s", "--max-attempts", "7", "--retry-interval", "5s"],
    )
    .await;
    output_of(&database, &["schedule", "run-now", "s"]).await;
    let shown = output_of(&database, &["schedule", "show", "s"]).await;
    for words in [
        "schedule s: running, every day at 03:15 Europe/Berlin\n",
        "timing daily(03:15, zone: Europe/Berlin), declared by a call\n",
        "runs s, overlap queue, catch up 1 no later than 30m 0s, jitter 1m 0s, max attempts 7, retry interval 5.0s\n",
        "run 1 is in progress: pgmill run show 1\n",
        " 03:15:00 CE",
        "manual",
        "fired",
    ] {
        assert!(shown.contains(words), "{words} in\n{shown}");
    }
    let shown = json_of(&database, &["schedule", "show", "s"]).await;
    assert_eq!(shown["timing_description"], "every day at 03:15 Europe/Berlin");
    let lengths = ["fires", "history", "log"].map(|key| shown[key].as_array().unwrap().len());
    assert_eq!(lengths, [5, 1, 1]);
    annotated(&database, "nightly", "@trigger(table: t, rows: 5)").await;
    output_of(&database, &["schedule", "sync"]).await;
    let shown = output_of(&database, &["schedule", "show", "public.nightly/trigger_t"]).await;
    assert!(
        shown.contains("when t has 5 rows")
            && shown.contains("declared in the comment of public.nightly"),
        "{shown}"
    );
}

#[tokio::test]
async fn the_next_fires_follow_the_timing() {
    let database = Database::new().await;
    let next = async |arguments: &[&str]| {
        json_of(&database, &[&["schedule", "next"], arguments].concat()).await["fires"].clone()
    };
    let timing = "nth(last, fri, 18:00, zone: America/New_York)";
    let fires = next(&["--timing", timing, "--count", "12"]).await;
    let fires: Vec<Timestamp> = serde_json::from_value(fires).unwrap();
    assert_eq!(fires.len(), 12);
    for at in &fires {
        let there = at.to_zoned(TimeZone::get("America/New_York").unwrap());
        let last = there.day() + 7 > there.days_in_month();
        assert!(there.weekday() == Weekday::Friday && there.hour() == 18 && last, "{there}");
    }
    schedule(&database, "s", timing, "SELECT 1", "").await;
    assert_eq!(next(&["s"]).await, json!(fires[..5]));
    let text = output_of(&database, &["schedule", "next", "s", "--count", "2"]).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        (lines[0], lines.len()),
        ("on the last Friday of the month at 18:00 America/New_York", 4),
        "{text}"
    );
    assert!(lines[2].starts_with("Fri ") && lines[2].contains(&fires[0].to_string()), "{text}");
    let over = ["schedule", "next", "--timing", "once(2020-01-01 00:00)"];
    let (code, text, reported) = Program::pgmill(&database, &over).run().await;
    assert_eq!(
        (code, text.as_str(), reported.as_str()),
        (0, "once at 2020-01-01 00:00\n", "no more fires\n")
    );
    assert_eq!(json_of(&database, &over).await["fires"], json!([]));
}

#[tokio::test]
async fn times_on_the_command_line_may_be_days() {
    let database = Database::new().await;
    schedule(&database, "s", "manual", "SELECT 1", "").await;
    output_of(&database, &["schedule", "run-now", "s"]).await;
    for (bounds, runs) in [
        (&["--from", "yesterday"][..], 1),
        (&["--from", "2026-01-01", "--to", "tomorrow 03:00"], 1),
        (&["--from", "tomorrow"], 0),
        (&["--to", "yesterday"], 0),
    ] {
        let history = [&["schedule", "history", "s"], bounds].concat();
        let found = json_of(&database, &history).await;
        assert_eq!(found.as_array().unwrap().len(), runs, "{bounds:?}");
    }
    // The clock change of 2027: 02:30 does not exist on 28 March.
    let gap = ["--timing", "daily(02:30, zone: Europe/Berlin)", "--from", "2027-03-27 12:00 UTC"];
    let next = [&["schedule", "next", "--count", "1"], &gap[..]].concat();
    assert_eq!(json_of(&database, &next).await["fires"], json!(["2027-03-28T01:00:00Z"]));
    let wrong = ["schedule", "history", "--from", "2h"];
    let (code, _, reported) = Program::pgmill(&database, &wrong).run().await;
    assert!(code == 2 && reported.contains("a duration, not a time"), "{code} {reported}");
}

#[tokio::test]
async fn test_and_why_report_whether_a_schedule_would_fire_and_fire_nothing() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE TABLE t AS SELECT now() - interval '90 minutes' AS at;
             GRANT SELECT ON t TO mill_test_operator",
        )
        .await;
    schedule(&database, "clock", "daily(03:15)", "SELECT 1", "").await;
    schedule(&database, "hand", "manual", "SELECT 1", "").await;
    schedule(
        &database,
        "rows",
        "trigger(table: t, age: at, rows: 1000, idle: 1 day)",
        "SELECT 1",
        "",
    )
    .await;
    let why = async |name: &str| output_of(&database, &["why", name]).await;
    assert_eq!(why("clock").await, "no worker has computed its next fire since it was changed\n");
    assert_eq!(why("hand").await, "it fires only when started manually\n");
    {
        let _worker = Worker::start(&database, &FLAGS);
        planned(&database, "clock").await;
        planned(&database, "rows").await;
    }
    assert!(why("clock").await.starts_with("the next fire is due at "));
    assert_eq!(json_of(&database, &["why", "hand"]).await["schedule"], "hand");
    let rows = output_of(&database, &["schedule", "test", "rows"]).await;
    let lines: Vec<&str> = rows.lines().collect();
    assert!(
        lines[0].starts_with("would not fire: no trigger condition is met: pending rows 1 < 1000"),
        "{rows}"
    );
    assert_eq!(lines[1], "pending rows: 1");
    assert!(lines[2].starts_with("oldest row: 1h "), "{rows}");
    database.execute("INSERT INTO t SELECT now() FROM generate_series(1, 1000)").await;
    let before = kept(&database).await;
    let rows = json_of(&database, &["schedule", "test", "rows"]).await;
    assert_eq!(
        (&rows["would_fire"], &rows["reason"], &rows["pending_rows"]),
        (&json!(true), &json!("row threshold: pending rows 1001 >= 1000"), &json!(1001))
    );
    assert_eq!(why("rows").await, "row threshold: pending rows 1001 >= 1000\n");
    let clock = json_of(&database, &["schedule", "test", "clock"]).await;
    assert!(clock["would_fire"] == false && clock["next_fire_at"].is_string(), "{clock}");
    assert_eq!(kept(&database).await, before);
    output_of(&database, &["schedule", "disable", "rows"]).await;
    let disabled = "it is disabled; if it were enabled: row threshold: pending rows 1001 >= 1000\n";
    assert_eq!(why("rows").await, disabled);
    // A schedule that has never been enabled, so that no worker has parsed its timing.
    let trigger = "trigger(table: t, rows: 5000)";
    schedule(&database, "new", trigger, "SELECT 1", ", enabled => false").await;
    let disabled = "it is disabled; if it were enabled: no trigger condition is met: pending rows 1001 < 5000\n";
    assert_eq!(why("new").await, disabled);
    assert_eq!(json_of(&database, &["schedule", "test", "new"]).await["pending_rows"], 1001);
}

#[tokio::test]
async fn a_run_shows_its_schedule_its_instant_and_the_reason() {
    let database = Database::new().await;
    job(&database, "daily", json!([{"name": "load", "statement": "SELECT 1"}])).await;
    let _worker = Worker::start(&database, &FLAGS);
    schedule(&database, "purge", "monthly(1, 00:00)", "SELECT 1", "").await;
    planned(&database, "purge").await;
    database
        .execute("UPDATE mill.schedules SET next_fire_at = now() - interval '5 milliseconds', next_tick_at = now()")
        .await;
    until_events(&database, "purge", "fired 1, completed 1").await;
    database
        .execute(
            "SELECT mill.set_schedule('vault', 'manual', jobs => ARRAY['daily']);
             SELECT mill.run_now('vault');
             SELECT mill.start_run(ARRAY['daily'])",
        )
        .await;
    for run in 2..=3 {
        assert_eq!(end(&database, run).await, "succeeded");
    }
    let list = output_of(&database, &["run", "list"]).await;
    let lines: Vec<&str> = list.lines().collect();
    for (line, words) in [(1, " daily "), (2, " schedule vault (daily) "), (3, " schedule purge ")]
    {
        assert!(lines[line].contains(words), "{list}");
    }
    assert!(!lines[1].contains("schedule"), "{list}");
    let list = json_of(&database, &["run", "list"]).await;
    let fired = |n: usize| (&list[n]["schedule"], &list[n]["reason"]);
    assert_eq!(fired(0), (&json!(null), &json!(null)));
    assert_eq!(fired(1), (&json!("vault"), &json!("manual")));
    assert_eq!(fired(2), (&json!("purge"), &json!("schedule")));
    let fire_at: Timestamp = serde_json::from_value(list[2]["fire_at"].clone()).unwrap();
    let fire_at = fire_at.to_zoned(TimeZone::system()).strftime("%F %T %Z").to_string();
    let shown = output_of(&database, &["run", "show", "1"]).await;
    let fired = format!("fired for {fire_at}: schedule\n");
    assert!(
        shown.starts_with("run 1 of schedule purge: succeeded, ") && shown.contains(&fired),
        "{shown}"
    );
    assert!(!output_of(&database, &["run", "show", "3"]).await.contains("fired"));
    assert_eq!(json_of(&database, &["run", "show", "2"]).await["run"]["schedule"], "vault");
    for (run, words) in [
        (1, &*format!("run       1 of schedule purge, fired for {fire_at}: schedule\n")),
        (2, "run       2 of schedule vault (daily), fired for "),
        (3, "run       3 of daily\n"),
    ] {
        let task: i64 = database
            .value(&format!("SELECT task_id FROM mill.run_tasks WHERE run_id = {run}"))
            .await;
        let shown = output_of(&database, &["task", "show", &task.to_string()]).await;
        assert!(shown.contains(words), "{words} in\n{shown}");
        assert_eq!(
            json_of(&database, &["task", "show", &task.to_string()]).await["run"]["id"],
            run
        );
    }
    let jobs = output_of(&database, &["job", "list"]).await;
    assert!(
        jobs.lines().any(|line| line.starts_with("purge ") && line.contains("succeeded")),
        "{jobs}"
    );
}

/// Returns the doctor's finding about schedules: verdict and message.
async fn finding(database: &Database) -> (String, String) {
    let (_, document, reported) = Program::pgmill(database, &["doctor", "--json"]).run().await;
    let document: Value = serde_json::from_str(&document).unwrap_or_else(|_| panic!("{reported}"));
    let checks = document["checks"].as_array().unwrap();
    let found = checks.iter().find(|it| it["check"] == "schedules").unwrap();
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"))
}

#[tokio::test]
async fn the_doctor_reports_errors_mistakes_and_schedules_without_a_tick() {
    let database = Database::new().await;
    let found = async |verdict: &str, message: &str| {
        assert_eq!(finding(&database).await, (verdict.to_owned(), message.to_owned()));
    };
    found("ok", "0 enabled, 0 disabled").await;
    schedule(&database, "s", "daily(03:15)", "SELECT 1", "").await;
    schedule(&database, "off", "daily(03:15)", "SELECT 1", ", enabled => false").await;
    schedule(&database, "unread", "daily(25:61)", "SELECT 1", "").await;
    {
        let _worker = Worker::start(&database, &FLAGS);
        planned(&database, "s").await;
        until_events(&database, "unread", "error 1").await;
    }
    found("warning", "1 enabled, 1 disabled; 1 in error, 0 declaration errors").await;
    output_of(&database, &["schedule", "remove", "unread"]).await;
    annotated(&database, "nightly", "@daily(26:00)").await;
    assert_eq!(Program::pgmill(&database, &["schedule", "sync"]).run().await.0, 1);
    found("warning", "1 enabled, 1 disabled; 0 in error, 1 declaration error").await;
    annotated(&database, "nightly", "none").await;
    output_of(&database, &["schedule", "sync"]).await;
    let overdue = async |seconds: u32| {
        let sql = "UPDATE mill.schedules SET next_tick_at = now() - interval";
        database.execute(&format!("{sql} '{seconds} seconds' WHERE name = 's'")).await;
    };
    overdue(30).await;
    found("ok", "1 enabled, 1 disabled").await;
    overdue(7205).await;
    let (code, reported, _) = Program::pgmill(&database, &["doctor"]).run().await;
    assert_eq!(code, 1, "{reported}");
    for text in [
        "problem  schedules        1 enabled, 1 disabled; a tick is overdue by 2h 0m\n",
        "hint: Start a worker without --no-scheduler.\n",
    ] {
        assert!(reported.contains(text), "{reported}");
    }
    let _worker = Worker::start(&database, &FLAGS);
    let ticked =
        "SELECT coalesce(next_tick_at > now(), false) FROM mill.schedules WHERE name = 's'";
    eventually("a worker has ticked", async || database.value(ticked).await).await;
    found("ok", "1 enabled, 1 disabled").await;
}

#[tokio::test]
async fn the_calendar_lists_past_and_coming_fires_of_all_schedules_in_order() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_schedule('daily', 'daily(12:00, zone: UTC)', 'SELECT 1'),
                mill.set_schedule('hourly', 'every(1 hours)', 'SELECT 1'), mill.set_schedule('other', 'manual', 'SELECT 1');
             SELECT mill.run_now('other');
             UPDATE mill.runs SET fire_at = '2026-03-25 23:15Z'",
        )
        .await;
    let arguments = [
        "schedule",
        "calendar",
        "--from",
        "2026-03-25T00:00Z",
        "--to",
        "2999-01-02T12:30Z",
        "--limit",
        "3",
    ];
    let text = Program::pgmill(&database, &[&arguments[..], &["--json"]].concat()).succeeds().await;
    let fires: Vec<Value> = serde_json::from_str(&text).unwrap();
    let of = |name: &str| fires.iter().filter(|it| it["schedule"] == name).count();
    assert_eq!([of("other"), of("daily"), of("hourly")], [1, 3, 3], "{text}");
    assert_eq!((&fires[0]["run_id"], &fires[0]["state"]), (&1.into(), &"running".into()));
    assert!(fires.is_sorted_by_key(|it| it["fire_at"].as_str().unwrap().to_owned()), "{text}");
    let table = Program::pgmill(&database, &arguments).succeeds().await;
    assert!(table.contains("coming") && table.contains("running"), "{table}");
}
