//! Timeouts of runs: a run that takes too long is cancelled, with its running tasks, at once and once.

use serde_json::{Value, json};

use crate::harness::console::Console;
use crate::harness::{Database, Program, Worker, eventually};
use crate::notifications::events::{documents, subscribe};
use crate::runs::apply::Folder;
use crate::runs::run::{FLAGS, end, start, states};
use crate::runs::run_cli::json_of;
use crate::schedules::schedule::{WAITS_FOR_LOCK, planned, schedule};
use crate::schedules::schedule_cli::output_of;

const FILE: &str = r#"
[job.load]
run_timeout = "2h"
timeout = "5m"
[job.load.task.read]
statement = "SELECT 1"
[job.other]
run_timeout = "1h"
[job.other.task.write]
statement = "SELECT 2"
[schedule.nightly]
timing = "manual"
jobs = ["load", "other"]
run_timeout = "45 min"
"#;

/// Returns the time from the start of a run to its timeout.
async fn timeout(database: &Database, run: i64) -> String {
    let sql = "SELECT coalesce((timeout_at - started_at)::text, 'none') FROM mill.runs WHERE id = ";
    database.value(&format!("{sql}{run}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_takes_the_timeout_of_its_start_or_schedule_or_the_shortest_of_its_jobs() {
    let database = Database::new().await;
    let folder = Folder::new(&[("jobs.toml", FILE)]);
    output_of(&database, &["apply", folder.path()]).await;
    let again = json_of(&database, &["apply", folder.path(), "--dry-run"]).await;
    assert_eq!(again["plan"]["jobs"].as_array().map_or(0, Vec::len), 0, "{again}");
    let task: String = database
        .value("SELECT timeout::text FROM mill.visible_job_tasks WHERE name = 'read'")
        .await;
    assert_eq!(task, "00:05:00", "the timeout of a job is the default of its tasks");
    let both = start(&database, "load,other").await;
    assert_eq!(timeout(&database, both).await, "01:00:00");
    let fired: i64 = database.value("SELECT mill.run_now('nightly')").await;
    assert_eq!(timeout(&database, fired).await, "00:45:00");
    let shown = json_of(&database, &["schedule", "show", "nightly"]).await;
    assert_eq!(shown["schedule"]["run_timeout_seconds"], json!(2700.0));
    let args = ["--job", "load", "--run-timeout", "10m"];
    let id = Program::enqueue(&database, &args).succeeds().await;
    let id: i64 = id.trim().parse().unwrap();
    assert_eq!(timeout(&database, id).await, "00:10:00");
    let set = ["schedule", "set", "own", "--timing", "manual", "--statement", "SELECT 1"];
    let own = async || database.value::<i64>("SELECT mill.run_now('own', true)").await;
    output_of(&database, &set).await;
    assert_eq!(timeout(&database, own().await).await, "none");
    output_of(&database, &["schedule", "set", "own", "--run-timeout", "3h"]).await;
    assert_eq!(timeout(&database, own().await).await, "03:00:00");
    database
        .execute(
            "CREATE PROCEDURE sweep() LANGUAGE sql AS 'SELECT 1';
             COMMENT ON PROCEDURE sweep() IS 'Sweeps. @daily(03:15) @run_timeout(2h)'",
        )
        .await;
    output_of(&database, &["schedule", "sync"]).await;
    let kept =
        "SELECT run_timeout::text FROM mill.schedules WHERE name = 'public.sweep/daily_03_15'";
    assert_eq!(database.value::<String>(kept).await, "02:00:00");
    for wrong in [
        "SELECT mill.set_job('load', '[]', options => '{\"run_timeout\": \"0 s\"}')",
        "SELECT mill.start_run(ARRAY['load'], options => '{\"run_timeout\": \"-1 s\"}')",
    ] {
        let error = database.client().query(wrong, &[]).await.unwrap_err();
        let message = error.as_db_error().unwrap().message().to_owned();
        assert_eq!(message, "run_timeout must be from 1 millisecond to 365 days");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_takes_too_long_is_cancelled_with_its_running_tasks_even_in_a_paused_fleet() {
    let database = Database::new().await;
    subscribe(&database, "s", json!({"events": ["run_failed", "run_recovered"]})).await;
    let tasks = json!([
        {"name": "a", "statement": WAITS_FOR_LOCK},
        {"name": "b", "statement": "SELECT 1", "after": ["a"]},
        {"name": "c", "statement": "SELECT 1", "after": [{"task": "a", "expected": "always"}]},
    ]);
    let options = json!({"run_timeout": "1 hour"});
    database.rows("SELECT mill.set_job('load', $1, options => $2)", &[&tasks, &options]).await;
    database.execute("SELECT pg_advisory_lock(7)").await;
    let _workers = [Worker::start(&database, &FLAGS), Worker::start(&database, &FLAGS)];
    let (run, on_time) = (start(&database, "load").await, start(&database, "load").await);
    let running = "SELECT count(*) FROM mill.tasks WHERE state = 'running'";
    eventually("both runs run", async || database.value::<i64>(running).await == 2).await;
    database.execute("SELECT mill.pause_fleet(reason => 'upgrade')").await;
    let passed = "SET started_at = started_at - interval '1 hour', timeout_at = timeout_at - interval '1 hour'";
    database.execute(&format!("UPDATE mill.runs {passed} WHERE id = {run}")).await;
    assert_eq!(end(&database, run).await, "cancelled");
    assert_eq!(states(&database, run).await, "a cancelled, b cancelled, c cancelled");
    assert_eq!(states(&database, on_time).await, "a running, b waiting, c waiting");
    let sql =
        "SELECT concat_ws(' ', action, subject, detail) FROM mill.audit WHERE action LIKE 'time%'";
    let audit: Vec<String> = database.rows(sql, &[]).await.iter().map(|row| row.get(0)).collect();
    assert_eq!(audit, [format!("time_out_runs run {run} {{\"run_timeout\": \"01:00:00\"}}")]);
    let id = run.to_string();
    let shown = output_of(&database, &["run", "show", &id]).await;
    assert!(shown.contains(", timed out after 01:00:00"), "{shown}");
    let listed = json_of(&database, &["run", "show", &id]).await;
    assert_eq!(listed["run"]["cancel_reason"], "timed out after 01:00:00");
    assert_eq!(listed["run"]["cancelled_by"], Value::Null);
    let why: String = database.value(&format!("SELECT mill.why({run}, 'b')")).await;
    assert_eq!(why, "it was cancelled before it started: its run timed out after 01:00:00");
    let whole: String = database.value(&format!("SELECT mill.why_run({run})")).await;
    assert!(whole.ends_with(": timed out after 01:00:00"), "{whole}");
    let whole: String = database.value(&format!("SELECT mill.why_run({on_time})")).await;
    assert!(whole.contains("; its timeout is at ") && whole.ends_with(": upgrade"), "{whole}");
    let missing: Option<String> = database.value("SELECT mill.why_run(77)").await;
    assert_eq!(missing, None);
    let console = Console::start(&database, &[]).await;
    let page = console.get(&format!("/runs/{run}")).await.body;
    assert!(page.contains("timed out after 01:00:00"), "{page}");
    let page = console.get(&format!("/runs/{on_time}")).await.body;
    assert!(page.contains("<dt>timeout</dt>"), "{page}");
    // A restart counts from its own start, and a success after a timeout is a recovery.
    database.execute("SELECT pg_advisory_unlock_all(), mill.resume_fleet()").await;
    assert_eq!(end(&database, on_time).await, "succeeded");
    let restart = ["run", "restart", &id, "--force"];
    output_of(&database, &restart).await;
    let left = "SELECT timeout_at - restarted_at = interval '1 hour' AND cancel_reason IS NULL FROM mill.runs WHERE id = ";
    assert!(database.value::<bool>(&format!("{left}{run}")).await);
    assert_eq!(end(&database, run).await, "succeeded");
    let found = documents(&database, "s").await;
    let events: Vec<(&Value, &Value)> =
        found.iter().map(|it| (&it["event"], &it["reason"])).collect();
    let (failed, recovered) = (json!("run_failed"), json!("run_recovered"));
    let reason = json!("timed out after 01:00:00");
    assert_eq!(
        events,
        [(&failed, &reason), (&recovered, &Value::Null), (&recovered, &Value::Null)]
    );
}

/// A cancel lets running tasks finish. The timeout of the run still ends them.
#[tokio::test(flavor = "multi_thread")]
async fn the_timeout_of_a_cancelled_run_ends_its_running_tasks() {
    let database = Database::new().await;
    database.execute("SELECT pg_advisory_lock(7)").await;
    let options = ", options => '{\"run_timeout\": \"1 hour\"}'";
    schedule(&database, "s", "manual", WAITS_FOR_LOCK, options).await;
    let _worker = Worker::start(&database, &FLAGS);
    let run: i64 = database.value("SELECT mill.run_now('s')").await;
    let running = "SELECT count(*) FROM mill.tasks WHERE state = 'running'";
    eventually("the task runs", async || database.value::<i64>(running).await == 1).await;
    database.execute(&format!("SELECT mill.cancel_run({run})")).await;
    database.execute("UPDATE mill.runs SET timeout_at = timeout_at - interval '1 hour'").await;
    assert_eq!(end(&database, run).await, "cancelled");
    let log = "SELECT message FROM mill.schedule_log WHERE event = 'completed'";
    let message: String = database.value(log).await;
    assert!(message.starts_with("timed out after "), "{message}");
    assert!(database.value::<bool>("SELECT cancelled_by IS NOT NULL FROM mill.runs").await);
}

/// The poll tells the scheduler what there is to do, so ticks do not search for late runs, timeouts and
/// backfills.
#[tokio::test(flavor = "multi_thread")]
async fn a_tick_runs_no_statement_for_late_runs_and_backfills_unless_there_is_one() {
    let database = Database::new().await;
    database
        .execute(
            "DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET track_functions = %L',
                 current_database(), 'all'); END$$",
        )
        .await;
    let calls = async |name: &str| -> i64 {
        let sql = format!(
            "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_user_functions
             WHERE schemaname = 'mill' AND funcname IN ({name})"
        );
        database.value(&sql).await
    };
    let _worker = Worker::start(&database, &FLAGS);
    schedule(&database, "often", "every(1 second)", "SELECT 1", "").await;
    planned(&database, "often").await;
    let ticks = "'lock_due_schedules'";
    eventually("ticks are reported", async || calls(ticks).await >= 5).await;
    let others = "'lock_backfills', 'mark_late_runs', 'time_out_runs'";
    assert_eq!(calls(others).await, 0);
    database
        .execute("SELECT mill.backfill_schedule('often', now() - interval '2 seconds', now())")
        .await;
    let done = "SELECT count(*) FROM mill.backfills WHERE state = 'finished'";
    eventually("the backfill ends", async || database.value::<i64>(done).await == 1).await;
    eventually("its calls are reported", async || calls("'lock_backfills'").await > 0).await;
    assert_eq!(calls("'mark_late_runs', 'time_out_runs'").await, 0);
}
