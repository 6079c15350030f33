//! Runs on the command line: started and awaited, displayed, drawn and controlled.

use proxy::{Cut, FaultAction, MessageMatch, Proxy};
use serde_json::{Value, json};

use crate::harness::console::Console;
use crate::harness::{Database, Program, Worker, eventually};
use crate::runs::run::{FLAGS, end, job, start};

/// The message COMMIT, whose text ends with a zero byte, unlike that of READ COMMITTED.
pub(crate) const COMMIT: &str = "COMMIT\0";

pub(crate) async fn json_of(database: &Database, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--json"]].concat();
    serde_json::from_str(&Program::pgmill(database, &arguments).succeeds().await).unwrap()
}

/// Creates `a`, then `b`, which fails until a table `mended` exists, then `c`.
async fn line(database: &Database) {
    let b = "SELECT count(*) FROM mended";
    let tasks = json!([
        {"name": "a", "statement": "SELECT $1::int", "params": [{"$param": "n"}]},
        {"name": "b", "statement": b, "max_attempts": 1, "after": ["a"]},
        {"name": "c|<d>", "statement": "SELECT 1", "after": [{"task": "b", "expected": "succeeded"}]},
    ]);
    job(database, "Line", tasks).await;
}

#[tokio::test]
async fn a_run_is_started_and_awaited_and_its_end_is_the_exit_code() {
    let database = Database::new().await;
    line(&database).await;
    let _worker = Worker::start(&database, &FLAGS);
    let enqueue = async |arguments: &[&str]| Program::enqueue(&database, arguments).run().await;
    let (code, ids, reported) = enqueue(&["--job", "line", "--param", "n=7", "--wait"]).await;
    assert_eq!((code, ids.as_str()), (3, "1\n"), "{reported}");
    assert!(
        reported.contains("run 1 failed: 1 succeeded, 1 failed, 1 upstream_failed"),
        "{reported}"
    );
    assert!(reported.contains("  b failed: relation \"mended\" does not exist"), "{reported}");
    database.execute("CREATE TABLE mended ()").await;
    let (code, answer, reported) =
        enqueue(&["--job", "line", "--param", "n=7", "--wait", "--json"]).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((code, &answer["run"]["state"]), (0, &json!("succeeded")), "{reported}");
    for (wrong, code, fragment) in [
        (&["--job", "line"][..], 5, "parameter \"n\" has no value"),
        (
            &["--job", "line", "--param", "n=1", "--param", "m=1"],
            5,
            "unknown parameter \"m\": no task of these jobs uses it",
        ),
        (&["--job", "nobody"], 5, "there is no job \"nobody\""),
        (&["--job", "line", "SELECT 1"], 2, "cannot be used with"),
    ] {
        let (given, _, reported) = enqueue(wrong).await;
        assert!(given == code && reported.contains(fragment), "{wrong:?}: {given} {reported}");
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.runs").await, 2);
}

/// The state `released` is internal: the table of the same page shows the state in the queue.
#[tokio::test]
async fn a_task_in_the_queue_is_counted_as_queued_or_running() {
    let database = Database::new().await;
    line(&database).await;
    database.rows("SELECT mill.start_run(ARRAY['line'], '{\"n\": 1}')", &[]).await;
    let run = async |arguments: &[&str]| {
        Program::pgmill(&database, &[&["run"], arguments].concat()).succeeds().await
    };
    let nothing = run(&["retry", "1", "a"]).await;
    assert_eq!(nothing, "task a is queued or running: nothing to retry\n");
    let shown = run(&["show", "1"]).await;
    assert!(shown.contains("3 tasks: 2 waiting, 1 queued or running, 0 succeeded"), "{shown}");
}

#[tokio::test]
async fn a_run_is_read_drawn_and_steered() {
    let database = Database::new().await;
    line(&database).await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = async |arguments: &[&str]| {
        Program::pgmill(&database, &[&["run"], arguments].concat()).run().await
    };
    database.rows("SELECT mill.start_run(ARRAY['line'], '{\"n\": 1}')", &[]).await;
    assert_eq!(end(&database, 1).await, "failed");
    let shown = json_of(&database, &["run", "show", "1"]).await;
    assert_eq!(shown["run"]["count"]["upstream_failed"], 1);
    assert_eq!(shown["critical_path"]["tasks"], json!(["a", "b"]));
    assert_eq!(json_of(&database, &["run", "list", "--state", "failed"]).await[0]["id"], 1);
    assert_eq!(json_of(&database, &["run", "list", "--state", "running"]).await, json!([]));
    let (_, drawn, _) = run(&["graph", "1"]).await;
    assert_eq!(drawn, "[a succeeded] >>> [b failed]\n[b failed] >>> [c|<d> upstream_failed]\n");
    let (_, drawn, _) = run(&["graph", "1", "--format", "mermaid"]).await;
    assert!(drawn.starts_with("flowchart LR\n") && !drawn.contains("<d>"), "{drawn}");
    let why = json_of(&database, &["why", "1/b"]).await;
    assert!(why["why"].as_str().unwrap().starts_with("it is finished: failed"), "{why}");
    database.execute("CREATE TABLE mended ()").await;
    let (_, would, _) = run(&["restart", "1", "--dry-run"]).await;
    assert_eq!(would, "would restart 2 tasks of run 1: b, c|<d>\n");
    assert_eq!(database.value::<i32>("SELECT restarts FROM mill.runs").await, 0);
    let (_, again, _) = run(&["restart", "1", "--failed"]).await;
    assert_eq!(again, "restarted 2 tasks of run 1: b, c|<d>\n");
    let (code, _, reported) = run(&["show", "1", "--watch"]).await;
    assert!(code == 0 && reported.contains("run 1 succeeded: 3 succeeded"), "{code} {reported}");
    let (_, nothing, _) = run(&["retry", "1", "a"]).await;
    assert_eq!(nothing, "task a is succeeded: nothing to retry\n");
    for (tasks, expected) in
        [(&["b"][..], "2 tasks"), (&["b", "--only"], "1 task"), (&[], "3 tasks")]
    {
        let (_, would, _) = run(&[&["rerun", "1", "--dry-run"], tasks].concat()).await;
        assert!(would.starts_with(&format!("would rerun {expected} of run 1: ")), "{would}");
    }
    let (_, reran, _) = run(&["rerun", "1", "b"]).await;
    assert_eq!(reran, "reran 2 tasks of run 1: b, c|<d>\n");
    assert_eq!(end(&database, 1).await, "succeeded");
    let attempts =
        "SELECT string_agg(name || ' ' || attempts, ', ' ORDER BY name) FROM mill.run_tasks";
    assert_eq!(database.value::<String>(attempts).await, "a 1, b 3, c|<d> 2");
    for (wrong, code, fragment) in [
        (&["restart", "1"][..], 5, "run 1 has no such task: 3 of 3 tasks succeeded"),
        (&["rerun", "1", "z"], 5, "run 1 has no task \"z\""),
        (&["show", "9"], 4, "there is no run 9"),
        (&["cancel", "9"], 4, ""),
    ] {
        let (given, _, reported) = run(wrong).await;
        assert!(given == code && reported.contains(fragment), "{wrong:?}: {given} {reported}");
    }
    // A bulk retry, too, refuses only the task of a run.
    let (code, reported, _) =
        Program::pgmill(&database, &["task", "retry", "--outcome", "succeeded", "--yes"])
            .run()
            .await;
    assert!(reported.contains("refused"), "{code} {reported}");
}

#[tokio::test]
async fn the_list_of_runs_is_filtered_and_names_who_started_them() {
    let database = Database::new().await;
    for name in ["daily", "sunday"] {
        job(&database, name, json!([{"name": name, "statement": "SELECT 1"}])).await;
    }
    start(&database, "daily").await;
    start(&database, "daily,sunday").await;
    let timing = "once(2030-01-01 00:00)";
    let set = ["schedule", "set", "nightly", "--timing", timing, "--job", "sunday"];
    Program::pgmill(&database, &set).succeeds().await;
    Program::pgmill(&database, &["schedule", "run-now", "nightly"]).succeeds().await;
    // A run as the scheduler of a worker starts it.
    let fire = "UPDATE mill.runs SET started_by = 'worker' WHERE id = 3;
        INSERT INTO mill.runs (jobs, params, started_by, schedule_id, fire_at, reason)
        SELECT jobs, params, 'worker', schedule_id, fire_at - interval '1 day', 'schedule' FROM mill.runs WHERE id = 3;
        UPDATE mill.runs SET started_at = now() - interval '1 day' WHERE id = 1";
    database.execute(fire).await;
    for (flags, runs) in [
        (&[][..], &[4, 3, 2, 1][..]),
        (&["--job", "daily"], &[2, 1]),
        (&["--job", "sunday", "--schedule", "nightly"], &[4, 3]),
        (&["--since", "1h", "--job", "daily"], &[2]),
        (&["--from", "2026-01-01", "--job", "daily"], &[2, 1]),
        (&["--to", "2026-01-01"], &[]),
        (&["--schedule", "other"], &[]),
    ] {
        let listed = json_of(&database, &[&["run", "list"], flags].concat()).await;
        let ids: Vec<i64> =
            listed.as_array().unwrap().iter().map(|run| run["id"].as_i64().unwrap()).collect();
        assert_eq!(ids, runs, "{flags:?}");
    }
    let (_, listed, note) =
        Program::pgmill(&database, &["run", "list", "--limit", "3"]).run().await;
    let starters: Vec<&str> =
        listed.lines().skip(1).map(|line| line.split_whitespace().last().unwrap()).collect();
    assert_eq!(starters, ["schedule", "worker", "postgres"], "{listed}");
    assert!(note.contains("3 rows shown, more exist"), "{note}");
}

#[tokio::test]
async fn every_run_in_progress_can_be_cancelled_at_once() {
    let database = Database::new().await;
    database.execute("SELECT mill.pause('default')").await;
    job(&database, "idle", json!([{"name": "a", "statement": "SELECT 1"}])).await;
    let runs = [start(&database, "idle").await, start(&database, "idle").await];
    let _worker = Worker::start(&database, &FLAGS);
    let cancel = ["run", "cancel", "--all"];
    let would =
        Program::pgmill(&database, &[&cancel[..], &["--dry-run"]].concat()).succeeds().await;
    assert_eq!(would.lines().count(), 2, "{would}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 2);
    Program::pgmill(&database, &cancel).succeeds().await;
    for run in runs {
        assert_eq!(end(&database, run).await, "cancelled");
    }
    eventually("no task is left", async || {
        database.value::<i64>("SELECT count(*) FROM mill.tasks").await == 0
    })
    .await;
    assert_eq!(Program::pgmill(&database, &cancel).succeeds().await, "no run is in progress\n");
}

#[tokio::test]
async fn more_than_ten_thousand_runs_are_cancelled_at_once() {
    let database = Database::new().await;
    database
        .execute(
            "INSERT INTO mill.runs (jobs, params) SELECT '{j}', '{}' FROM generate_series(1, 10001)",
        )
        .await;
    let would = json_of(&database, &["run", "cancel", "--all", "--dry-run"]).await;
    assert_eq!(would["runs"].as_array().unwrap().len(), 10_001);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_whose_answer_is_lost_is_not_reported_as_if_nothing_had_started() {
    let database = Database::new().await;
    job(&database, "j", json!([{"name": "a", "statement": "SELECT 1"}])).await;
    let proxy = Proxy::start(&database.url()).await.unwrap();
    let through = proxy.url(&database.url());
    proxy.arm(MessageMatch::Text("mill.start_run".to_owned()), FaultAction::Cut(Cut::After));
    let enqueue = Program::enqueue(&database, &["--job", "j"]).at(&through);
    let (code, _, reported) = enqueue.run().await;
    assert!(code == 1 && reported.contains("not known whether the run was started"), "{reported}");
    let runs = "SELECT count(*) = 1 FROM mill.runs";
    eventually("the run has started", async || database.value::<bool>(runs).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_cancelled_and_limits_removed_whatever_the_default_isolation_level_is() {
    let database = Database::new().await;
    job(&database, "j", json!([{"name": "a", "statement": "SELECT 1"}])).await;
    let runs = [start(&database, "j").await, start(&database, "j").await];
    database
        .execute(
            "SELECT mill.set_group('g'), mill.set_max_running('key', 'k', 1), mill.set_max_running('queue', 'q', 1);
             DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L',
                 current_database(), 'repeatable read'); END$$",
        )
        .await;
    let first = runs[0].to_string();
    for args in [
        ["group", "remove", "g"],
        ["limit", "remove", "k"],
        ["queue", "remove", "q"],
        ["run", "cancel", &first],
    ] {
        Program::pgmill(&database, &args).succeeds().await;
    }
    let console = Console::start(&database, &[]).await;
    let path = format!("/api/v1/runs/{}/cancel", runs[1]);
    let answer = console.post_json(&path, &json!({}), &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let cancelled = "SELECT count(*) FROM mill.runs WHERE state = 'cancelled'";
    assert_eq!(database.value::<i64>(cancelled).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_has_ended_is_reported_although_the_connection_was_lost_after_its_end() {
    let database = Database::new().await;
    line(&database).await;
    let _worker = Worker::start(&database, &FLAGS);
    let proxy = Proxy::start(&database.url()).await.unwrap();
    let through = proxy.url(&database.url());
    proxy.arm(MessageMatch::Text("queue.run_problems".to_owned()), FaultAction::Cut(Cut::Before));
    let wait = ["--job", "line", "--param", "n=7", "--wait"];
    let (code, _, reported) = Program::enqueue(&database, &wait).at(&through).run().await;
    assert!(proxy.disarm(), "{reported}");
    assert_eq!(code, 3, "{reported}");
    assert!(reported.contains("  b failed: relation \"mended\" does not exist"), "{reported}");
}

/// A script repeats a command that ends with 75.
#[tokio::test(flavor = "multi_thread")]
async fn an_action_that_may_be_committed_does_not_ask_for_another_try() {
    let database = Database::new().await;
    line(&database).await;
    database.execute("SELECT mill.set_schedule('s', 'daily(03:00)', 'SELECT 1')").await;
    let task = database.enqueue("SELECT 1", "").await.to_string();
    database.execute(&format!("SELECT mill.cancel({task})")).await;
    let proxy = Proxy::start(&database.url()).await.unwrap();
    let through = proxy.url(&database.url());
    for (arguments, (action, count)) in [
        (&["schedule", "run-now", "s"][..], ("run_now", 1)),
        (&["task", "retry", &task], ("retry", 1)),
    ] {
        proxy.arm(MessageMatch::Text(COMMIT.to_owned()), FaultAction::Cut(Cut::After));
        let answer = Program::pgmill(&database, arguments).at(&through).run().await;
        assert!(proxy.disarm(), "{arguments:?}: {answer:?}");
        let (code, printed, reported) = answer;
        assert!(code == 1 && printed.is_empty(), "{arguments:?}: {code} {printed}");
        assert!(reported.contains("it is not known whether the change was made"), "{reported}");
        assert!(reported.contains("hint: pgmill audit shows the last changes"), "{reported}");
        let recorded = format!(
            "SELECT count(*) = {count} FROM mill.audit
             WHERE action = '{action}' AND application = 'pgmill'"
        );
        eventually(&recorded, async || database.value(&recorded).await).await;
    }
}
