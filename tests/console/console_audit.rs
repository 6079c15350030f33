//! Actions in the web console are recorded in the audit with the user who performed them.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::harness::console::{Console, TokenFile, csrf};
use crate::harness::login::Login;
use crate::harness::routes::{filled, post_routes};
use crate::harness::{Database, Worker, eventually};
use crate::runs::run::{end, job, start, states};
use crate::schedules::schedule::schedule;

const TOKEN: &str = "another-token-of-enough-characters";
const LABELLED: &str = "labelled-token-of-enough-characters";

/// Creates two failed runs, a run in progress with a failed part, and a worker.
async fn seed(database: &Database) -> (i64, i64, i64, Worker) {
    database.execute("SELECT mill.set_group('g')").await;
    let subscription =
        r#"SELECT mill.set_subscription('n', '{"events": ["task_failed"], "channel": "c"}')"#;
    database.execute(subscription).await;
    job(database, "it", json!([{"name": "a", "statement": "SELECT 1/0", "max_attempts": 1}])).await;
    let slow = json!([
        {"name": "a", "statement": "SELECT 1/0", "max_attempts": 1},
        {"name": "b", "statement": "SELECT 1", "queue": "none"},
        {"name": "c", "statement": "SELECT 1", "queue": "none", "approval": true},
        {"name": "d", "statement": "SELECT 1", "approval": true},
    ]);
    job(database, "slow", slow).await;
    schedule(database, "s", "manual", "SELECT 1", "").await;
    schedule(database, "clock", "daily(03:00)", "SELECT 1", "").await;
    let (failed, in_progress) = (start(database, "it").await, start(database, "slow").await);
    let worker = Worker::start(database, &["--queues", "default", "--poll-interval", "50ms"]);
    assert_eq!(end(database, failed).await, "failed");
    let half = async || states(database, in_progress).await.starts_with("a failed");
    eventually("a part of the other run has failed", half).await;
    let rerun = start(database, "it").await;
    assert_eq!(end(database, rerun).await, "failed");
    (failed, rerun, in_progress, worker)
}

const AUDIT: &str = "SELECT login, coalesce(actor, ''), action, id FROM mill.audit WHERE id > $1";
const PERIOD: &str = "opens=22:00&closes=06:00";
/// A year: the backfill is in progress until the test has paused it.
const BACKFILL: &str = "name=clock&from=2025-01-01T00:00&to=2026-01-01T00:00";

/// Actions whose path has no id of a task, a run or a worker: path, id, form and recorded action.
fn acts_without_id() -> Vec<(&'static str, String, &'static str, &'static str)> {
    let acts = [
        ("/queues/{queue}/pause", "paused=true", "pause"),
        ("/queues/{queue}/limit", "max_running=3", "set_max_running"),
        ("/queues/{queue}/conditions", "max_active_sessions=90", "set_queue_conditions"),
        ("/queues/{queue}/shared-commit", "milliseconds=20", "set_shared_commit"),
        ("/fleet/pause", "length=5&start=10&reason=x", "pause_fleet"),
        ("/fleet/resume", "planned=true", "resume_fleet"),
        ("/limits/set", "key=k&max_running=2&create=true", "set_max_running"),
        ("/limits/remove", "key=k", "remove_limit"),
        ("/priorities/weights", "low=7", "set_weights"),
        ("/priorities/reserve", "capacity=high", "update_settings"),
        ("/groups/{group}/concurrency", "max_running=2", "set_group"),
        ("/groups/{group}/active-period", PERIOD, "set_active_period"),
        ("/groups/create", "name=h", "set_group"),
        ("/groups/{group}/remove", "", "drop_group"),
        ("/jobs/run", "name=slow", "start_run"),
        ("/jobs/tasks/enable", "name=slow&task=a&enabled=false", "enable_job_task"),
        ("/jobs/enable", "name=slow&enabled=false", "enable_job"),
        ("/schedules/run-now", "name=s", "run_now"),
        ("/schedules/backfill", BACKFILL, "backfill_schedule"),
        ("/schedules/change-backfill", "id=1&action=pause", "pause_backfill"),
        ("/schedules/enable", "name=s&enabled=false", "enable_schedule"),
        ("/subscriptions/{subscription}/test", "", "test_subscription"),
        ("/subscriptions/{subscription}/retry", "", "retry_notifications"),
        ("/subscriptions/{subscription}/enable", "enabled=false", "enable_subscription"),
    ];
    acts.into_iter().map(|(path, form, act)| (path, String::new(), form, act)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_console_action_is_recorded_with_login_and_user() {
    let database = Database::new().await;
    let operator = Login::new(&database, "operator", "mill_operator").await;
    let file = TokenFile::new(&format!("{TOKEN}\n{LABELLED} night shift"));
    let console =
        Console::start_at(&database, &operator.url(), &["--token-file", file.path()]).await;
    let cookie = console.sign_in(TOKEN, "ann%20%3Cb%3E").await;
    let own = [("Host", console.address.as_str()), ("Cookie", cookie.as_str())];
    let page = console.request("GET", "/queues", &own, "").await.body;
    let csrf_token = csrf(&page);
    let (failed, rerun, in_progress, worker) = seed(&database).await;
    let seat: Uuid = database.value("SELECT id FROM mill.workers").await;
    let id = database.enqueue("SELECT 1", ", queue => 'etl'").await;
    let acts = [
        ("/tasks/{id}/set", id.to_string(), "priority=high&due_at=2999-01-01T00:00", "change_task"),
        ("/tasks/{id}/cancel", id.to_string(), "", "cancel"),
        ("/tasks/{id}/retry", id.to_string(), "", "retry"),
        ("/queues/{queue}/purge", String::new(), "", "purge_queue"),
        ("/tasks/{id}/retry", id.to_string(), "", "retry"),
        ("/tasks/bulk", String::new(), "q=queue:etl&up_to=999", "cancel"),
        ("/workers/{id}/drain", seat.to_string(), "draining=true", "drain"),
        ("/runs/{id}/retry", in_progress.to_string(), "task=a", "retry_run_task"),
        ("/runs/{id}/approve", in_progress.to_string(), "task=c", "approve"),
        ("/runs/{id}/reject", in_progress.to_string(), "task=d&reason=no", "reject"),
        ("/runs/{id}/cancel", in_progress.to_string(), "", "cancel_run"),
        ("/runs/{id}/restart", failed.to_string(), "which=failed", "restart_run"),
        ("/runs/{id}/restart", rerun.to_string(), "which=all", "rerun_run"),
    ];
    let acts: Vec<_> = acts.into_iter().chain(acts_without_id()).collect();
    // The path /schedules/test only evaluates a schedule, so the audit has no entry for it.
    let tried = acts.iter().map(|it| it.0.to_owned()).chain(["/schedules/test".to_owned()]);
    assert_eq!(tried.collect::<BTreeSet<_>>(), BTreeSet::from_iter(post_routes()));
    let mut seen: i64 = database.value("SELECT coalesce(max(id), 0) FROM mill.audit").await;
    for (path, id, form, act) in acts {
        let path =
            filled(path, &[("id", &id), ("queue", "etl"), ("group", "g"), ("subscription", "n")]);
        let answer =
            console.post_with(&path, &format!("{form}&csrf={csrf_token}"), &own[1..]).await;
        assert!(matches!(answer.status, 200 | 303), "{path}: {}", answer.body);
        let rows = database.rows(AUDIT, &[&seen]).await;
        assert!(!rows.is_empty(), "{path} is not audited");
        for row in &rows {
            let who = (row.get::<_, String>(0), row.get::<_, String>(1));
            assert_eq!(who, (operator.name.clone(), "console: ann <b>".to_owned()), "{path}");
            seen = seen.max(row.get(3));
        }
        assert!(
            rows.iter().any(|row| row.get::<_, String>(2) == act),
            "{path} is not recorded as {act}"
        );
    }
    // The label of the token takes precedence over the name that the user enters.
    let cookie = console.sign_in(LABELLED, "eve").await;
    let own = [own[0], ("Cookie", cookie.as_str())];
    let page = console.request("GET", "/queues", &own, "").await.body;
    let form = format!("paused=false&csrf={}", csrf(&page));
    assert_eq!(console.post_with("/queues/etl/pause", &form, &own[1..]).await.status, 303);
    let actor = "SELECT actor FROM mill.audit ORDER BY id DESC LIMIT 1";
    assert_eq!(database.value::<String>(actor).await, "console: night shift");
    let shown = console.request("GET", "/audit?since=1h&action=pause", &own, "").await.body;
    assert!(shown.contains("console: ann &#60;b&#62;") && shown.contains("queue etl"), "{shown}");
    assert!(!shown.contains("set_weights"), "{shown}");
    drop((console, worker));
    operator.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_pages_and_filters_and_no_text_becomes_markup() {
    let database = Database::new().await;
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    let console = Console::start_at(&database, &viewer.url(), &[]).await;
    let acts = "SELECT mill.pause('q' || n) FROM generate_series(1, 120) AS n;
        SET mill.actor = '<script>a'; SET application_name = '<script>b';
        SELECT mill.set_group('<script>g')";
    database.execute(acts).await;
    let (mut before, mut seen) = (String::new(), Vec::new());
    loop {
        let page = console.get(&format!("/api/v1/audit?before={before}")).await.body;
        let page: Value = serde_json::from_str(&page).unwrap();
        seen.extend(page["acts"].as_array().unwrap().iter().map(|it| it["id"].as_i64().unwrap()));
        let Some(next) = page["next"].as_i64() else { break };
        before = next.to_string();
    }
    assert_eq!(seen.len(), 121, "each row once");
    assert!(seen.is_sorted_by(|a, b| a > b), "newest first");
    for (asked, found) in [
        ("subject=queue+q7", 1),
        ("login=%3Cscript%3Ea", 1),
        ("action=pause&since=1h&subject=queue+q9", 1),
        ("action=cancel", 0),
    ] {
        let page = console.get(&format!("/api/v1/audit?{asked}")).await.body;
        let page: Value = serde_json::from_str(&page).unwrap();
        assert_eq!(page["acts"].as_array().unwrap().len(), found, "{asked}");
    }
    let page = console.get("/audit").await.body;
    assert_eq!(page.matches("<script").count(), page.matches("<script src=").count());
    assert!(page.contains("before=") && page.contains("group &#60;script&#62;g"), "{page}");
    let page = console.get("/audit?since=soon").await;
    assert!(page.status == 200 && page.body.contains("is not a duration"), "{}", page.body);
    assert_eq!(console.get("/api/v1/audit?before=x").await.status, 400);
    drop(console);
    viewer.gone().await;
}
