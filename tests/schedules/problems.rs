//! Problems of schedules: each of them is reported, a typing error ends no declaration, and runs that
//! fail are not started again without a pause.

use serde_json::Value;

use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker, eventually};
use crate::schedules::schedule::{FLAGS, events, planned, schedule, test, until_events};

/// Returns the messages of the problems in `pgmill status`.
async fn problems(database: &Database) -> Vec<String> {
    let printed = Program::pgmill(database, &["status", "--json"]).succeeds().await;
    let status: Value = serde_json::from_str(&printed).unwrap();
    let messages = status["problems"].as_array().unwrap().iter();
    messages.map(|it| it["message"].as_str().unwrap().to_owned()).collect()
}

async fn has_problem(database: &Database, message: &str) -> bool {
    problems(database).await.iter().any(|it| it.contains(message))
}

#[tokio::test]
async fn an_error_in_a_comment_is_a_problem_and_its_schedules_stay_as_they_were() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE PROCEDURE nightly() LANGUAGE sql AS 'SELECT 1';
             COMMENT ON PROCEDURE nightly() IS '@daily(03:15)'",
        )
        .await;
    Program::pgmill(&database, &["schedule", "sync"]).succeeds().await;
    let active =
        "SELECT coalesce(string_agg(timing, ' '), '') FROM mill.schedules WHERE removed_at IS NULL";
    for (comment, place) in [
        ("@daily(03:15) @retry(max_attempt: 3)", "1:35: "),
        ("@dayly(03:15)", "1:2: "),
        ("@daily 03:15", "1:2: @daily has no arguments in parentheses"),
    ] {
        database.execute(&format!("COMMENT ON PROCEDURE nightly() IS '{comment}'")).await;
        let (code, _, _) = Program::pgmill(&database, &["schedule", "sync"]).run().await;
        assert_eq!(code, 1, "{comment}");
        assert_eq!(database.value::<String>(active).await, "daily(03:15)", "{comment}");
        let reported = format!("the comment of public.nightly has an error at {place}");
        assert!(
            has_problem(&database, &reported).await,
            "{comment}: {:?}",
            problems(&database).await
        );
    }
    database.execute("COMMENT ON PROCEDURE nightly() IS 'No longer scheduled'").await;
    Program::pgmill(&database, &["schedule", "sync"]).succeeds().await;
    assert_eq!(database.value::<String>(active).await, "");
    assert_eq!(problems(&database).await, [""; 0]);
}

#[tokio::test]
async fn a_schedule_whose_fires_start_no_run_is_in_error_until_one_does() {
    let database = Database::new().await;
    database
        .execute(
            r#"SELECT mill.set_job('one', '[{"name": "a", "statement": "SELECT 1"}]');
               SELECT mill.set_job('two', '[{"name": "b", "statement": "SELECT 1"}]');
               SELECT mill.set_schedule('s', 'every(1 second)', jobs => '{one}');
               SELECT mill.set_schedule('merged', 'manual', jobs => '{one,two}')"#,
        )
        .await;
    let disable = ["job", "disable", "one"];
    let (_, _, warning) = Program::pgmill(&database, &disable).run().await;
    assert!(warning.contains("merged, s"), "{warning}");
    let _worker = Worker::start(&database, &FLAGS);
    let reported = "schedule s does not fire: job \"one\" is disabled";
    eventually("the error is a problem", async || has_problem(&database, reported).await).await;
    let list = Program::pgmill(&database, &["schedule", "list"]).succeeds().await;
    assert!(list.contains("error"), "{list}");
    let why = Program::pgmill(&database, &["why", "s"]).succeeds().await;
    assert!(why.contains("job \"one\" is disabled"), "{why}");
    // A run of several jobs leaves out the disabled one.
    database.execute("SELECT mill.run_now('merged')").await;
    let jobs = "SELECT jobs::text FROM mill.runs WHERE reason = 'manual'";
    assert_eq!(database.value::<String>(jobs).await, "{two}");
    Program::pgmill(&database, &["job", "enable", "one"]).succeeds().await;
    eventually("the problem is gone", async || problems(&database).await.is_empty()).await;
}

#[tokio::test]
async fn an_overdue_schedule_is_a_problem_and_its_dry_run_says_so() {
    let database = Database::new().await;
    schedule(&database, "s", "daily(03:15)", "SELECT 1", "").await;
    let worker = Worker::start(&database, &FLAGS);
    planned(&database, "s").await;
    drop(worker);
    database
        .execute("UPDATE mill.schedules SET next_fire_at = now() - interval '1 hour', next_tick_at = now() - interval '1 hour'")
        .await;
    assert!(has_problem(&database, "schedule s is due, and no worker has processed it").await);
    let status = "SELECT status FROM mill.schedule_status";
    assert_eq!(database.value::<String>(status).await, "overdue");
    let tested = Program::pgmill(&database, &["schedule", "test", "s"]).succeeds().await;
    assert!(tested.starts_with("would not fire: it has been due since"), "{tested}");
    // A viewer may ask as well.
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    let client = viewer.connect().await;
    let row = client.query_one("SELECT reason FROM mill.schedule_test('s')", &[]).await.unwrap();
    assert!(row.get::<_, String>(0).starts_with("it has been due since"));
    drop(client);
    viewer.drop().await;
}

#[tokio::test]
async fn missed_fires_are_a_problem_until_a_later_run_succeeds() {
    let database = Database::new().await;
    schedule(&database, "s", "daily(03:15)", "SELECT 1", "").await;
    database
        .execute("INSERT INTO mill.schedule_log (schedule_id, event, count) SELECT id, 'missed', 3 FROM mill.schedules")
        .await;
    assert!(has_problem(&database, "schedule s missed fires").await);
    let _worker = Worker::start(&database, &FLAGS);
    database.execute("SELECT mill.run_now('s')").await;
    eventually("the problem is gone", async || problems(&database).await.is_empty()).await;
}

#[tokio::test]
async fn a_time_in_the_past_is_refused_or_reported() {
    let database = Database::new().await;
    let set =
        ["schedule", "set", "s", "--timing", "once(2020-01-01 09:00)", "--statement", "SELECT 1"];
    let (code, _, stderr) = Program::pgmill(&database, &set).run().await;
    assert!(code == 5 && stderr.contains("has no time in the future"), "{code} {stderr}");
    // SQL cannot parse a timing, so a worker reports it.
    schedule(&database, "s", "once(2020-01-01 09:00)", "SELECT 1", "").await;
    let _worker = Worker::start(&database, &FLAGS);
    until_events(&database, "s", "error 1").await;
    let shown = Program::pgmill(&database, &["schedule", "show", "s"]).succeeds().await;
    assert!(shown.contains("its timing has no time in the future"), "{shown}");
}

#[tokio::test]
async fn the_command_line_refuses_statements_that_a_worker_would_refuse() {
    let database = Database::new().await;
    let set = ["schedule", "set", "s", "--timing", "manual", "--statement"];
    let (code, _, stderr) =
        Program::pgmill(&database, &[&set[..], &["BEGIN; SELECT 1"]].concat()).run().await;
    assert!(code == 2 && stderr.contains("mode"), "{code} {stderr}");
    Program::pgmill(&database, &[&set[..], &["VACUUM", "--mode", "autocommit"]].concat())
        .succeeds()
        .await;
    let mode = "SELECT mode::text FROM mill.visible_job_tasks WHERE disabled_at IS NULL";
    assert_eq!(database.value::<String>(mode).await, "autocommit");
    // The parameters of a replaced statement are replaced as well.
    database
        .execute("SELECT mill.set_schedule('s', 'manual', 'SELECT $1::int', task => '{\"params\": [1]}')")
        .await;
    Program::pgmill(&database, &["schedule", "set", "s", "--statement", "SELECT 2"])
        .succeeds()
        .await;
    let params = "SELECT count(params) FROM mill.job_tasks WHERE disabled_at IS NULL";
    assert_eq!(database.value::<i64>(params).await, 0);
}

#[tokio::test]
async fn fires_that_are_caught_up_run_one_after_another() {
    for overlap in ["skip", "queue"] {
        let database = Database::new().await;
        let _worker = Worker::start(&database, &FLAGS);
        let options = format!(", catch_up => 4, overlap => '{overlap}'");
        schedule(&database, "s", "daily(03:15)", "SELECT 1", &options).await;
        planned(&database, "s").await;
        database
            .execute(
                "UPDATE mill.schedules SET next_fire_at = next_fire_at - interval '6 days', next_tick_at = now()",
            )
            .await;
        eventually("four runs succeeded", async || {
            events(&database, "s").await.contains("completed 4")
        })
        .await;
        let apart = "SELECT count(*) FILTER (WHERE started_at < earlier) FROM (SELECT started_at,
            lag(finished_at) OVER (ORDER BY fire_at) AS earlier FROM mill.runs WHERE state = 'succeeded') AS r";
        assert_eq!(database.value::<i64>(apart).await, 0, "{overlap}");
        let found = events(&database, "s").await;
        assert!(found.starts_with("fired 4, completed 4"), "{overlap}: {found}");
    }
}

#[tokio::test]
async fn a_trigger_whose_runs_fail_fires_with_growing_pauses() {
    let database = Database::new().await;
    database.execute("CREATE TABLE inbox (n integer); INSERT INTO inbox VALUES (1)").await;
    let timing = "trigger(table: inbox, rows: 1, every: 1s)";
    schedule(&database, "s", timing, "SELECT 1/0", ", task => '{\"max_attempts\": 1}'").await;
    let _worker = Worker::start(&database, &FLAGS);
    // Each failed run doubles the pause of 10 s. A busy machine can be so slow that a pause ends before the
    // test sees it. So each pass takes the failed runs that it finds.
    let mut seen = 0;
    eventually("the pause after four failed runs", async || {
        // The lock keeps workers from firing, and the transaction has one time.
        database.execute("BEGIN; SELECT FROM mill.schedules FOR UPDATE").await;
        let failed: i32 = database.value("SELECT mill.failed_runs(s) FROM mill.schedules s").await;
        if failed > seen {
            let pause = 10 << (failed - 1);
            let last_run_finished = async |ago: &str| {
                let set = "UPDATE mill.schedules SET last_finished_at = now() - interval";
                database.execute(&format!("{set} '{ago}'")).await;
                test(&database, "s").await
            };
            let (fires, reason) = last_run_finished(&format!("{pause} s -1 ms")).await;
            let runs = if failed == 1 { "run".to_owned() } else { format!("{failed} runs") };
            let waits = reason.contains(&format!("its last {runs} failed, so it waits until"));
            assert!(!fires && waits, "{failed}: {reason}");
            let (fires, reason) = last_run_finished(&format!("{pause} s")).await;
            assert!(fires, "{failed}: {reason}");
            let logged = events(&database, "s").await;
            for event in ["fired", "completed"] {
                assert!(logged.contains(&format!("{event} {failed}")), "{logged}");
            }
            seen = failed;
        }
        database.execute("COMMIT").await;
        seen >= 4
    })
    .await;
}

#[tokio::test]
async fn a_run_that_is_retried_shows_its_attempt_and_its_last_error() {
    let database = Database::new().await;
    let task = ", task => '{\"retry_interval\": \"1 hour\", \"jitter\": false}'";
    schedule(&database, "s", "manual", "SELECT 1/0", task).await;
    let _worker = Worker::start(&database, &FLAGS);
    database.execute("SELECT mill.run_now('s')").await;
    let shown = "SELECT concat_ws(' ', attempts, state, message) FROM mill.schedule_history";
    eventually("the first attempt has failed", async || {
        database.value::<String>(shown).await == "1 running division by zero"
    })
    .await;
}

#[tokio::test]
async fn a_jitter_above_the_interval_causes_no_missed_fires() {
    let database = Database::new().await;
    let options = ", jitter => '1 hour', overlap => 'allow', catch_up => 0";
    schedule(&database, "s", "every(1 second)", "SELECT 1", options).await;
    let _worker = Worker::start(&database, &FLAGS);
    planned(&database, "s").await;
    database
        .execute(
            "UPDATE mill.schedules SET next_fire_at = date_trunc('second', now()) - interval '50 minutes',
                 next_tick_at = now()",
        )
        .await;
    // Each fire is delayed by a random part of an hour, so most of the following ones are due at once.
    let fired = "SELECT count(*) >= 5 FROM mill.runs";
    eventually("five fires", async || {
        database
            .execute("UPDATE mill.schedules SET next_tick_at = least(next_tick_at, now())")
            .await;
        database.value(fired).await
    })
    .await;
    let missed = "SELECT count(*) FROM mill.schedule_log WHERE event = 'missed'";
    assert_eq!(database.value::<i64>(missed).await, 0);
}

#[tokio::test]
async fn values_out_of_range_are_refused_by_name() {
    let database = Database::new().await;
    for (option, message) in [
        ("catch_up => -1", "schedule \"s\": catch_up must be from 0 to 1000"),
        ("max_lateness => '2 years'", "schedule \"s\": max_lateness must be from 0 to 365 days"),
        ("jitter => '25 hours'", "schedule \"s\": jitter must be from 0 to 1 day"),
    ] {
        let sql = format!("SELECT mill.set_schedule('s', 'manual', 'SELECT 1', {option})");
        let error = database.client().query(&sql, &[]).await.unwrap_err();
        assert_eq!(error.as_db_error().unwrap().message(), message);
    }
}

#[tokio::test]
async fn a_single_time_that_was_missed_is_the_answer_of_why() {
    let database = Database::new().await;
    schedule(&database, "s", "once(2100-01-01 09:00)", "SELECT 1", ", catch_up => 0").await;
    let worker = Worker::start(&database, &FLAGS);
    planned(&database, "s").await;
    drop(worker);
    database
        .execute(
            "UPDATE mill.schedules SET timing = 'once(2020-01-01 09:00)', next_tick_at = now(),
                 next_fire_at = '2020-01-01 09:00Z'",
        )
        .await;
    let _worker = Worker::start(&database, &FLAGS);
    until_events(&database, "s", "missed 1").await;
    let why = Program::pgmill(&database, &["why", "s"]).succeeds().await;
    assert_eq!(why, "its time has passed without a fire, because no worker ticked in time\n");
}
