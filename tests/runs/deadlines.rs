//! Deadlines and expected durations: a run that misses its deadline is late once and stays so, and both
//! are problems.

use serde_json::{Value, json};

use crate::harness::console::Console;
use crate::harness::{Database, Program, Worker, eventually};
use crate::operation::problems::problems;
use crate::runs::apply::Folder;
use crate::runs::run::{FLAGS, end, job, start};
use crate::runs::run_cli::json_of;
use crate::schedules::schedule::{WAITS_FOR_LOCK, daily_in_half_a_day, planned, schedule};
use crate::schedules::schedule_cli::output_of;

const FILE: &str = r#"
[job.load]
expected_duration = "20m"
deadline = "2h"
[job.load.task.read]
statement = "SELECT 1"
expected_duration = "5m"
[job.other]
deadline = "1h"
[job.other.task.write]
statement = "SELECT 2"
[schedule.nightly]
timing = "manual"
jobs = ["load", "other"]
expected_duration = "45 min"
"#;

/// Returns expected duration, deadline since the start, and whether the run is late.
async fn limits(database: &Database, run: i64) -> String {
    database
        .value(&format!(
            "SELECT concat_ws(' ', expected_duration, date_trunc('minute', late_at - started_at + interval '1 s'),
                 late_since IS NOT NULL) FROM mill.runs WHERE id = {run}"
        ))
        .await
}

/// Moves a run and its deadline into the past.
async fn started_ago(database: &Database, run: i64, time: &str) {
    database
        .execute(&format!(
            "UPDATE mill.runs SET started_at = started_at - interval '{time}', late_at = late_at - interval '{time}'
             WHERE id = {run}"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_takes_over_what_its_schedule_or_its_jobs_declare() {
    let database = Database::new().await;
    let folder = Folder::new(&[("jobs.toml", FILE)]);
    output_of(&database, &["apply", folder.path()]).await;
    let again = json_of(&database, &["apply", folder.path(), "--dry-run"]).await;
    assert_eq!(again["plan"]["jobs"].as_array().map_or(0, Vec::len), 0, "{again}");
    let both = start(&database, "load,other").await;
    assert_eq!(limits(&database, both).await, "00:20:00 01:00:00 f");
    let task = "SELECT expected_duration::text FROM mill.run_tasks WHERE name = 'read'";
    assert_eq!(database.value::<String>(task).await, "00:05:00");
    let fired: i64 = database.value("SELECT mill.run_now('nightly')").await;
    assert_eq!(limits(&database, fired).await, "00:45:00 01:00:00 f");
    let shown = json_of(&database, &["schedule", "show", "nightly"]).await;
    assert_eq!(
        (&shown["schedule"]["expected_duration_seconds"], &shown["schedule"]["deadline_seconds"]),
        (&json!(2700.0), &json!(3600.0))
    );
    let set = ["schedule", "set", "own", "--timing", "manual", "--statement", "SELECT 1"];
    output_of(&database, &[&set[..], &["--deadline", "3h", "--expected-duration", "1m"]].concat())
        .await;
    let own: i64 = database.value("SELECT mill.run_now('own')").await;
    assert_eq!(limits(&database, own).await, "00:01:00 03:00:00 f");
    database
        .execute(
            "CREATE PROCEDURE sweep() LANGUAGE sql AS 'SELECT 1';
             COMMENT ON PROCEDURE sweep() IS 'Sweeps. @daily(03:15) @expected(20m) @deadline(2h)'",
        )
        .await;
    output_of(&database, &["schedule", "sync"]).await;
    let kept = "SELECT concat_ws(' ', expected_duration, deadline) FROM mill.schedules WHERE name = 'public.sweep/daily_03_15'";
    assert_eq!(database.value::<String>(kept).await, "00:20:00 02:00:00");
    for wrong in ["{\"deadline\": \"0 s\"}", "{\"expected_duration\": \"400 days\"}"] {
        let sql = format!("SELECT mill.set_job('load', '[]', options => '{wrong}')");
        let error = database.client().query(&sql, &[]).await.unwrap_err();
        let message = error.as_db_error().unwrap().message().to_owned();
        assert!(message.ends_with("must be from 1 millisecond to 365 days"), "{message}");
    }
}

/// Returns the first line of `pgmill why`. Further lines tell how to end the wait for a lock.
async fn why(database: &Database, subject: String) -> String {
    let text = output_of(database, &["why", &subject]).await;
    text.lines().next().unwrap_or_default().to_owned()
}

/// Checks what `pgmill why` says of two runs in progress, and returns the deadline of the late one.
async fn since_when_late(database: &Database, late: i64, on_time: i64) -> String {
    let since: String = database
        .value(&format!(
            "SELECT date_trunc('second', late_at)::text FROM mill.runs WHERE id = {late}"
        ))
        .await;
    let task: i64 =
        database.value(&format!("SELECT task_id FROM mill.run_tasks WHERE run_id = {late}")).await;
    database.until_waiting_for_lock(task).await;
    for subject in [task.to_string(), format!("{late}/t")] {
        let text = why(database, subject).await;
        let wanted = format!("; its run {late} has been late since {since}");
        assert!(text.starts_with("it is running on ") && text.ends_with(&wanted), "{text}");
    }
    let text = why(database, format!("run:{late}")).await;
    let wanted = format!(
        ": 0 of 1 tasks have ended, 1 in the queue or running; it has been late since {since}"
    );
    assert!(text.starts_with("it is in progress since ") && text.ends_with(&wanted), "{text}");
    let text = why(database, format!("{on_time}/t")).await
        + &why(database, format!("run:{on_time}")).await;
    assert!(!text.contains("late"), "{text}");
    since
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_becomes_late_once_and_stays_late_after_its_end() {
    let database = Database::new().await;
    job(&database, "load", json!([{"name": "t", "statement": WAITS_FOR_LOCK}])).await;
    database.execute("UPDATE mill.jobs SET deadline = '1 hour'; SELECT pg_advisory_lock(7)").await;
    let _worker = Worker::start(&database, &FLAGS);
    let (late, on_time) = (start(&database, "load").await, start(&database, "load").await);
    started_ago(&database, late, "61 minutes").await;
    let marked = format!("SELECT late_since = late_at FROM mill.runs WHERE id = {late}");
    eventually("the run is marked", async || {
        database.value::<Option<bool>>(&marked).await == Some(true)
    })
    .await;
    // Only one call reports the change.
    let again = format!("SELECT mill.mark_late({late}), mill.mark_late_runs()");
    let row = &database.rows(&again, &[]).await[0];
    assert_eq!((row.get::<_, bool>(0), row.get::<_, i64>(1)), (false, 0));
    let found = problems(&database).await;
    let wanted = format!("run {late} of load is late: it missed its deadline 1m ");
    assert!(found.iter().any(|it| it.starts_with(&wanted)), "{found:?}");
    let ids = async || {
        let list = json_of(&database, &["run", "list", "--late"]).await;
        list.as_array().unwrap().iter().map(|run| run["id"].clone()).collect::<Vec<Value>>()
    };
    assert_eq!(ids().await, [late]);
    let since = since_when_late(&database, late, on_time).await;
    let console = Console::start(&database, &[]).await;
    for path in ["/runs".to_owned(), format!("/runs/{late}"), "/".to_owned()] {
        assert!(console.get(&path).await.body.contains("late"), "{path}");
    }
    database.execute("SELECT pg_advisory_unlock_all()").await;
    for run in [late, on_time] {
        assert_eq!(end(&database, run).await, "succeeded");
    }
    assert_eq!(limits(&database, on_time).await, "01:00:00 f");
    assert_eq!(ids().await, [late]);
    let shown = output_of(&database, &["run", "show", &late.to_string()]).await;
    assert!(shown.contains("\nlate: the deadline was "), "{shown}");
    let text = why(&database, format!("run:{late}")).await;
    let wanted = format!("; it was late, its deadline was {since}");
    assert!(text.starts_with("it is finished: succeeded at ") && text.ends_with(&wanted), "{text}");
    let text = why(&database, format!("{late}/t")).await;
    assert!(text.starts_with("it is finished: succeeded at ") && !text.contains("late"), "{text}");
    let found = problems(&database).await;
    assert!(
        !found.iter().any(|it| it.contains("late")),
        "a run that has ended is no problem: {found:?}"
    );
    // The deadline of a restarted run that was on time counts from the restart.
    started_ago(&database, on_time, "61 minutes").await;
    database.execute(&format!("SELECT mill.rerun_run({on_time})")).await;
    let later = format!(
        "SELECT late_at > now() + interval '59 minutes' FROM mill.runs WHERE id = {on_time}"
    );
    assert!(database.value::<bool>(&later).await);
    assert_eq!(end(&database, on_time).await, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ends_late_is_marked_at_its_end_without_a_scheduler() {
    let database = Database::new().await;
    job(&database, "load", json!([{"name": "t", "statement": "SELECT 1"}])).await;
    database.execute("UPDATE mill.jobs SET deadline = '1 hour'").await;
    let run = start(&database, "load").await;
    started_ago(&database, run, "2 hours").await;
    let _worker = Worker::start(&database, &[&FLAGS[..], &["--no-scheduler"]].concat());
    assert_eq!(end(&database, run).await, "succeeded");
    assert_eq!(limits(&database, run).await, "01:00:00 t");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_a_fire_counts_from_its_instant_even_while_it_waits() {
    let database = Database::new().await;
    database.execute("SELECT pg_advisory_lock(7)").await;
    let options = ", overlap => 'queue', options => '{\"deadline\": \"1 hour\"}'";
    let timing = daily_in_half_a_day(&database).await;
    schedule(&database, "s", &timing, WAITS_FOR_LOCK, options).await;
    let _worker = Worker::start(&database, &FLAGS);
    planned(&database, "s").await;
    for hours in [3, 2] {
        database
            .execute(&format!(
                "UPDATE mill.schedules SET next_fire_at = date_trunc('second', now()) - interval '{hours} hours',
                     next_tick_at = now()"
            ))
            .await;
        let due = "SELECT next_fire_at > now() FROM mill.schedules";
        eventually("the schedule has been processed", async || database.value(due).await).await;
    }
    let late = "SELECT count(*) FROM mill.late_runs WHERE schedule = 's' AND late_since = fire_at + interval '1 hour'";
    eventually("the run is late", async || database.value::<i64>(late).await == 1).await;
    let found = problems(&database).await;
    for wanted in ["run 1 of schedule s is late", "a fire of schedule s is late: it waits"] {
        assert!(found.iter().any(|it| it.starts_with(wanted)), "{wanted}: {found:?}");
    }
    let why = output_of(&database, &["why", "s"]).await;
    assert!(why.contains("; run 1 has been late since "), "{why}");
    database.execute("SELECT pg_advisory_unlock_all()").await;
    let ended = "SELECT count(*) FROM mill.runs WHERE state = 'succeeded'";
    eventually("both runs end", async || database.value::<i64>(ended).await == 2).await;
    let shown = Program::pgmill(&database, &["schedule", "show", "s"]).succeeds().await;
    assert!(shown.contains("\n2 runs late") && shown.contains("succeeded, late"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_and_a_task_that_exceed_their_declared_duration_are_slower_than_expected() {
    let database = Database::new().await;
    let tasks = json!([{"name": "t", "statement": WAITS_FOR_LOCK, "expected_duration": "2 h"}]);
    job(&database, "load", tasks).await;
    database
        .execute("UPDATE mill.jobs SET expected_duration = '3 h'; SELECT pg_advisory_lock(7)")
        .await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = start(&database, "load").await;
    let running = "SELECT count(*) FROM mill.tasks WHERE state = 'running'";
    eventually("the task runs", async || database.value::<i64>(running).await == 1).await;
    let slow = async |minutes: i32| {
        database
            .execute(&format!(
                "UPDATE mill.tasks SET claimed_at = now() - interval '{minutes} min';
                 UPDATE mill.runs SET started_at = now() - interval '{minutes} min'"
            ))
            .await;
        let found = problems(&database).await;
        found.into_iter().filter(|it| it.contains("slower")).collect::<Vec<_>>()
    };
    assert_eq!(slow(110).await, [""; 0]);
    let task: i64 = database.value("SELECT id FROM mill.tasks").await;
    let of_task = format!("task {task} (t) is slower than expected: 2h 0m are declared");
    assert_eq!(slow(130).await, std::slice::from_ref(&of_task));
    let of_run = format!("run {run} of load is slower than expected: 3h 0m are declared");
    let mut found = slow(190).await;
    found.sort();
    assert_eq!(found, [of_run, of_task]);
    database.execute("SELECT pg_advisory_unlock_all()").await;
    assert_eq!(end(&database, run).await, "succeeded");
}
