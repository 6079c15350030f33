//! Approvals: a task that needs approval starts only after a person has approved it, once.

use serde_json::{Value, json};

use crate::guarantees::checker_mutants::plant;
use crate::harness::console::Console;
use crate::harness::login::{Login, answer};
use crate::harness::{Database, Program, Worker, amount, eventually};
use crate::notifications::events::{documents, subscribe};
use crate::operation::problems::problems;
use crate::runs::apply::Folder;
use crate::runs::run::{FLAGS, assert_in_order, end, job, start, states, why};
use crate::runs::run_cli::json_of;
use crate::schedules::schedule_cli::output_of;

const NOTE: &str = "Compare the totals with those of yesterday";

/// Declares a job: `publish` needs approval after `load`, and `announce` runs if `publish` succeeded,
/// `clean` in any case.
async fn guarded(database: &Database) {
    let tasks = json!([
        {"name": "load", "statement": "SELECT 1"},
        {"name": "publish", "statement": "SELECT 2", "after": ["load"], "approval": true, "approval_note": NOTE},
        {"name": "announce", "statement": "SELECT 3", "after": ["publish"]},
        {"name": "clean", "statement": "SELECT 4", "after": [{"task": "publish", "expected": "finished"}]},
    ]);
    job(database, "guarded", tasks).await;
}

const ASKING: &str = "announce waiting, clean waiting, load succeeded, publish needs_approval";

/// Starts a run of the job and waits until it asks for approval.
async fn asking(database: &Database) -> i64 {
    let run = start(database, "guarded").await;
    until_asking(database, run).await;
    run
}

async fn until_asking(database: &Database, run: i64) {
    eventually("the task asks", async || states(database, run).await == ASKING).await;
}

/// Calls a function, and returns the error.
async fn refused(database: &Database, call: &str) -> String {
    let error = database.client().query(&format!("SELECT {call}"), &[]).await.unwrap_err();
    error.as_db_error().unwrap().message().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_waits_for_approval_and_everybody_can_see_it() {
    let database = Database::new().await;
    guarded(&database).await;
    subscribe(&database, "s", json!({"events": ["approval_needed"], "task": "publish"})).await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = asking(&database).await;
    let found = documents(&database, "s").await;
    assert_eq!(found.len(), 1, "{found:?}");
    let document = ["event", "run_id", "task", "note", "jobs"].map(|key| found[0][key].clone());
    assert_eq!(
        document,
        [json!("approval_needed"), json!(run), json!("publish"), json!(NOTE), json!(["guarded"])]
    );
    let reason = why(&database, run, "publish").await;
    assert!(reason.starts_with("it waits for approval since 20"), "{reason}");
    assert!(reason.ends_with(&format!(": {NOTE}")), "{reason}");
    let whole: String = database.value(&format!("SELECT mill.why_run({run})")).await;
    let wanted =
        ": 1 of 4 tasks have ended, 0 in the queue or running; publish waits for approval since 20";
    assert!(whole.contains(wanted), "{whole}");
    let child = why(&database, run, "announce").await;
    assert_eq!(child, "it waits for publish (needs approval, expected succeeded)");
    let wanted = format!("task publish of run {run} of guarded waits for approval: {NOTE}");
    assert!(problems(&database).await.contains(&wanted), "{:?}", problems(&database).await);
    let status = output_of(&database, &["status"]).await;
    assert!(status.contains("waits for approval"), "{status}");
    let id = run.to_string();
    let shown = output_of(&database, &["run", "show", &id]).await;
    assert!(shown.contains("3 waiting (1 for approval)") && shown.contains(NOTE), "{shown}");
    let shown = json_of(&database, &["run", "show", &id]).await;
    assert_eq!(shown["run"]["count"]["needs_approval"], 1);
    let task = shown["tasks"].as_array().unwrap().iter().find(|it| it["name"] == "publish");
    let approval = &task.unwrap()["approval"];
    assert_eq!((&approval["note"], &approval["approved"]), (&json!(NOTE), &Value::Null));
    assert!(approval["since"].is_string(), "{approval}");
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    for function in ["approve", "reject"] {
        let call = format!("SELECT mill.{function}({run}, 'publish')");
        assert_eq!(answer(&viewer.connect().await, &call).await, "42501");
    }
    for (path, buttons) in [(viewer.url(), false), (database.url(), true)] {
        let console = Console::start_at(&database, &path, &[]).await;
        let page = console.get(&format!("/runs/{run}")).await.body;
        assert!(page.contains(NOTE), "{page}");
        assert_eq!(page.contains(&format!("/runs/{run}/approve")), buttons, "{page}");
    }
    let rehearsed = output_of(&database, &["run", "approve", &id, "publish", "--dry-run"]).await;
    assert_eq!(rehearsed.trim(), "task publish would be approved");
    assert_eq!(states(&database, run).await, ASKING);
    let approved = output_of(&database, &["run", "approve", &id, "publish"]).await;
    assert_eq!(approved.trim(), "task publish approved");
    assert_eq!(end(&database, run).await, "succeeded");
    assert_eq!(documents(&database, "s").await.len(), 1);
    viewer.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_task_is_cancelled_and_a_restart_asks_again() {
    let database = Database::new().await;
    guarded(&database).await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = asking(&database).await;
    let id = run.to_string();
    database.execute("SET mill.actor = 'ann'").await;
    database.execute(&format!("SELECT mill.reject({run}, 'publish', 'wrong totals')")).await;
    assert_eq!(end(&database, run).await, "cancelled");
    let ended = "announce upstream_failed, clean succeeded, load succeeded, publish cancelled";
    assert_eq!(states(&database, run).await, ended);
    assert_eq!(why(&database, run, "publish").await, "it was rejected by ann: wrong totals");
    let whole: String = database.value(&format!("SELECT mill.why_run({run})")).await;
    assert!(whole.starts_with("it is finished: cancelled at "), "{whole}");
    assert!(whole.ends_with("; publish: rejected by ann: wrong totals"), "{whole}");
    let audit = "SELECT concat_ws(' ', actor, action, subject, detail) FROM mill.audit ORDER BY id DESC LIMIT 1";
    let wanted =
        format!("ann reject run {run} {{\"task\": \"publish\", \"reason\": \"wrong totals\"}}");
    assert_eq!(database.value::<String>(audit).await, wanted);
    // A retry of the task, a restart of the run and a rerun ask again.
    database.execute(&format!("SELECT mill.retry_run_task({run}, 'publish')")).await;
    eventually("the retry asks", async || {
        states(&database, run).await.contains("publish needs_approval")
    })
    .await;
    output_of(&database, &["run", "reject", &id, "publish"]).await;
    assert_eq!(end(&database, run).await, "cancelled");
    assert_eq!(why(&database, run, "publish").await, "it was rejected by mill_test_operator");
    output_of(&database, &["run", "restart", &id, "--force"]).await;
    until_again(&database, run).await;
    database.execute(&format!("SELECT mill.approve({run}, 'publish')")).await;
    assert_eq!(end(&database, run).await, "succeeded");
    let wanted = format!("ann approve run {run} {{\"task\": \"publish\"}}");
    assert_eq!(database.value::<String>(audit).await, wanted);
    output_of(&database, &["run", "rerun", &id]).await;
    until_asking(&database, run).await;
}

async fn until_again(database: &Database, run: i64) {
    eventually("the task asks again", async || {
        states(database, run).await.contains("publish needs_approval")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_decided_once_and_only_while_it_waits() {
    let database = Database::new().await;
    guarded(&database).await;
    let early = start(&database, "guarded").await;
    let refusal = |task: &str, run: i64, why: &str| {
        format!("task \"{task}\" of run {run} does not wait for approval: {why}")
    };
    let call = format!("mill.approve({early}, 'publish')");
    let wanted = refusal("publish", early, "its parents have not ended");
    assert_eq!(refused(&database, &call).await, wanted);
    let call = format!("mill.approve({early}, 'load')");
    assert_eq!(refused(&database, &call).await, refusal("load", early, "it needs none"));
    let call = format!("mill.approve({early}, 'other')");
    assert_eq!(refused(&database, &call).await, format!("run {early} has no task \"other\""));
    assert_eq!(refused(&database, "mill.reject(77, 'x')").await, "there is no run 77");
    let _worker = Worker::start(&database, &FLAGS);
    until_asking(&database, early).await;
    // Two persons decide at once: the second one waits for the first, and is then refused.
    let (mut first, second) = (database.connect().await, database.connect().await);
    let transaction = first.transaction().await.unwrap();
    let approve = format!("SELECT mill.approve({early}, 'publish')");
    transaction.batch_execute(&format!("SET LOCAL mill.actor = 'ann'; {approve}")).await.unwrap();
    let reject = format!("SELECT mill.reject({early}, 'publish')");
    let late = second.batch_execute(&reject);
    let commit = async {
        let waits = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%mill.reject(%'";
        eventually("the second one waits", async || database.value::<i64>(waits).await > 0).await;
        transaction.commit().await.unwrap();
    };
    let (late, ()) = tokio::join!(late, commit);
    let message = late.unwrap_err().as_db_error().unwrap().message().to_owned();
    assert_eq!(message, refusal("publish", early, "ann has approved it"));
    assert_eq!(end(&database, early).await, "succeeded");
    // The cancel of a run ends the wait.
    let cancelled = asking(&database).await;
    database.execute(&format!("SELECT mill.cancel_run({cancelled})")).await;
    assert_eq!(end(&database, cancelled).await, "cancelled");
    let call = format!("mill.approve({cancelled}, 'publish')");
    let wanted = refusal("publish", cancelled, "its run is cancelled");
    assert_eq!(refused(&database, &call).await, wanted);
    let args = ["run", "approve", &cancelled.to_string(), "publish"];
    let (code, _, text) = Program::pgmill(&database, &args).run().await;
    assert!(code == 5 && text.contains("its run is cancelled"), "{code}: {text}");
}

const FILE: &str = r#"
[job.guarded.task.publish]
statement = "SELECT 1"
approval = true
approval_note = "Look first"
"#;

/// The first task of a run can need approval, too: then the run waits from its start.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_declares_approvals_and_a_timeout_ends_the_wait() {
    let database = Database::new().await;
    let folder = Folder::new(&[("jobs.toml", FILE)]);
    output_of(&database, &["apply", folder.path()]).await;
    let again = json_of(&database, &["apply", folder.path(), "--dry-run"]).await;
    assert_eq!(again["plan"]["jobs"].as_array().map_or(0, Vec::len), 0, "{again}");
    let run = start(&database, "guarded").await;
    assert_eq!(states(&database, run).await, "publish needs_approval");
    database.execute("UPDATE mill.runs SET timeout_at = started_at").await;
    let _worker = Worker::start(&database, &FLAGS);
    assert_eq!(end(&database, run).await, "cancelled");
    let needed = "SELECT count(*) FROM mill.approvals_needed";
    assert_eq!(database.value::<i64>(needed).await, 0);
    let note = json!([{"name": "t", "statement": "SELECT 1", "approval_note": "x"}]);
    let error = database.client().query("SELECT mill.set_job('x', $1)", &[&note]).await;
    let message = error.unwrap_err().as_db_error().unwrap().message().to_owned();
    assert_eq!(message, "task \"t\" of job \"x\": approval_note requires approval");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_parent_waits_again_can_no_longer_be_approved() {
    let database = Database::new().await;
    database.execute("CREATE TABLE fails AS SELECT 0 AS by").await;
    let tasks = json!([
        {"name": "a", "statement": "SELECT 1 / (SELECT by FROM fails)", "max_attempts": 1},
        {"name": "b", "statement": "SELECT pg_advisory_xact_lock_shared(7)", "after": ["a"]},
        {"name": "c", "statement": "SELECT 1", "approval": true, "after": [{"task": "b", "expected": "always"}]},
    ]);
    job(&database, "j", tasks).await;
    let holder = database.connect().await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let _worker = Worker::start(&database, &FLAGS);
    let run = start(&database, "j").await;
    let is = async |wanted: &str| {
        eventually(wanted, async || states(&database, run).await == wanted).await;
    };
    is("a failed, b upstream_failed, c needs_approval").await;
    database.execute("UPDATE fails SET by = 1").await;
    database.execute(&format!("SELECT mill.retry_run_task({run}, 'a')")).await;
    is("a succeeded, b running, c waiting").await;
    let approve = format!("mill.approve({run}, 'c')");
    assert!(refused(&database, &approve).await.contains("does not wait for approval"));
    holder.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    is("a succeeded, b succeeded, c needs_approval").await;
    database.execute(&format!("SELECT {approve}")).await;
    assert_eq!(end(&database, run).await, "succeeded");
    assert_in_order(&database).await;
}

/// More tasks ask than a pass of `mill.advance_run` handles. They do not hold other tasks back.
#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_that_ask_do_not_hold_the_others_back() {
    let database = Database::new().await;
    let (bound, asking, others) = amount((100, 150, 20), (2000, 2100, 50));
    let of_a_pass = format!("max_count CONSTANT integer := {bound};");
    let planted = ("max_count CONSTANT integer := 2000;", of_a_pass.as_str());
    plant(&database, "mill.advance_run", planted).await;
    let tasks: Vec<Value> = (0..asking)
        .map(|n| json!({"name": format!("a{n:04}"), "statement": "SELECT 1", "approval": true}))
        .chain((0..others).map(|n| json!({"name": format!("b{n}"), "statement": "SELECT 1"})))
        .collect();
    job(&database, "many", json!(tasks)).await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = start(&database, "many").await;
    let status = format!(
        "SELECT concat_ws(' ', needs_approval, succeeded) FROM mill.run_status WHERE id = {run}"
    );
    let wanted = format!("{asking} {others}");
    eventually("the others end", async || database.value::<String>(&status).await == wanted).await;
    let decide =
        "SELECT count(*) FROM (SELECT mill.approve(run_id, task) FROM mill.approvals_needed) AS a";
    assert_eq!(database.value::<i64>(decide).await, asking);
    assert_eq!(end(&database, run).await, "succeeded");
}
