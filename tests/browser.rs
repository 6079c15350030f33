//! The console in a real browser: a session of an operator, and properties of every screen. Also
//! the report of a load test.
//!
//! Needs Node.js 20, npm and Chromium (`.ci/packages browser`); prints a message and passes if they
//! are missing. The scripts are in `tests/browser`; `make browser` runs only these tests, and
//! fails if a requirement is missing.

mod fleet;
mod report;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::harness::eventually;
use crate::project::tidy::files;
use crate::runs::run::end;
use fleet::{FAILED, Incidents, TOKEN};

/// Every path that accepts a form; `*` stands for a name or a number. A new path needs a test that
/// submits its form.
const POSTED: &[&str] = &[
    "/fleet/pause",
    "/fleet/resume",
    "/groups/*/active-period",
    "/groups/*/concurrency",
    "/groups/*/remove",
    "/groups/create",
    "/jobs/enable",
    "/jobs/run",
    "/jobs/*/enable",
    "/limits/remove",
    "/limits/set",
    "/login",
    "/logout",
    "/priorities/reserve",
    "/priorities/weights",
    "/queues/*/shared-commit",
    "/queues/*/conditions",
    "/queues/*/limit",
    "/queues/*/pause",
    "/queues/*/purge",
    "/runs/*/approve",
    "/runs/*/cancel",
    "/runs/*/reject",
    "/runs/*/restart",
    "/runs/*/retry",
    "/schedules/backfill",
    "/schedules/change-backfill",
    "/schedules/enable",
    "/schedules/run-now",
    "/schedules/test",
    "/tasks/*/cancel",
    "/tasks/*/retry",
    "/tasks/*/set",
    "/tasks/bulk",
    "/workers/*/drain",
    "/subscriptions/*/enable",
    "/subscriptions/*/retry",
    "/subscriptions/*/test",
];

/// Held while a test uses the database, because only one database of this name can exist at a time.
static ONE: Mutex<()> = Mutex::const_new(());

/// Screenshots of the documentation: name, path, and height and width if not the default.
fn screenshot_pages(incidents: &Incidents) -> Value {
    json!([
        { "name": "overview", "path": "/" },
        { "name": "overview-narrow", "path": "/", "width": 390, "height": 780 },
        { "name": "task", "path": format!("/tasks/{}", incidents.failed) },
        { "name": "blocked", "path": format!("/tasks/{}", incidents.stuck), "height": 620 },
        { "name": "run", "path": format!("/runs/{}", incidents.run), "height": 920 },
        { "name": "job", "path": "/jobs/detail?name=nightly", "height": 1180 },
        { "name": "calendar", "path": "/schedules/calendar", "height": 420 },
        { "name": "schedule", "path": "/schedules/detail?name=hourly%20orders", "height": 760 },
        { "name": "failures", "path": "/failures", "height": 360 },
        { "name": "approval", "path": format!("/runs/{}", incidents.live_run), "height": 700 },
        { "name": "limits", "path": "/limits", "height": 480 },
        { "name": "subscriptions", "path": "/subscriptions", "height": 420 },
        { "name": "versions", "path": "/jobs/versions?name=nightly", "height": 520 },
        { "name": "tasks", "path": "/tasks?q=state:failed", "height": 520 },
    ])
}

/// Screens that no other page of the same kind links to, and screens with hostile names.
fn more(incidents: &Incidents) -> Vec<String> {
    let fixed = [
        "/tasks?q=state:finished",
        "/tasks?q=que:etl",
        "/tasks?q=queue:hostile+state:finished",
        "/failures?queue=etl",
        "/tasks/bulk?q=state:failed+queue:etl",
        "/jobs/detail?name=nightly",
        "/jobs/detail?name=%3Cimg%20src%3Dx%20onerror%3Dalert%285%29%3E",
        "/schedules/detail?name=arrivals",
        "/schedules/detail?name=%3Cimg%20src%3Dx%20onerror%3Dalert%283%29%3E",
        "/lineage?name=merge",
        "/lineage?name=%3Cscript%3Ealert%286%29%3C%2Fscript%3E",
        "/runs?state=failed&job=nightly",
        "/jobs/versions?name=nightly",
        "/schedules/calendar",
        "/schedules/calendar?view=day",
    ];
    let hostile = incidents.hostile.as_ref().map(|(id, _)| *id);
    let tasks = [incidents.stuck, incidents.blocked_task, incidents.failed]
        .into_iter()
        .chain(hostile)
        .map(|id| format!("/tasks/{id}"));
    let runs = [incidents.run, incidents.live_run].map(|id| format!("/runs/{id}"));
    fixed.into_iter().map(str::to_owned).chain(tasks).chain(runs).collect()
}

/// Content that must be readable without JavaScript.
fn facts(incidents: &Incidents) -> Value {
    let task = |id: i64| format!("/tasks/{id}");
    let stuck = format!("task {} (orders by day) is blocked by backend", incidents.stuck);
    let end = format!("SELECT pg_terminate_backend({})", incidents.ann_pid);
    json!({
        "/": [stuck, "reports"],
        "/tasks": ["orders by day", "vacuum orders", "running", "scheduled"],
        "/runs": ["nightly", "weekly", "failed", "running"],
        "/schedules": ["arrivals", "hourly orders", "Europe/Berlin"],
        "/jobs": ["nightly", "weekly"],
        "/lineage": ["load stock", "merge"],
        "/failures": ["42P01", "does not exist", "division by zero"],
        "/workers": ["batch-1", "batch-2", "orders by day", "worker --queues mail"],
        "/queues": ["etl", "max running 1"],
        "/priorities": ["high", "normal", "low"],
        "/groups": ["warehouse", "loads and their summaries"],
        "/audit": ["set_group", "set_job"],
        "/database": ["PostgreSQL", "Lock waits", "tasks"],
        "/jobs/detail?name=nightly": ["load customers, load orders", "7"],
        "/schedules/detail?name=arrivals": ["Dry run", "Log"],
        task(incidents.stuck): ["REFRESH MATERIALIZED VIEW orders_by_day", "Blocked by", "psql", "ann", end],
        task(incidents.blocked_task): ["Blocked by", "rebuild stock"],
        task(incidents.failed): ["42P01", "does not exist", "INSERT INTO events"],
        format!("/runs/{}", incidents.run): ["no stock has been delivered", "upstream_failed", "Timeline", "Critical path"],
    })
}

/// One session with the forms submitted so far.
struct OperatorSession {
    incidents: Incidents,
    folder: PathBuf,
    posted: BTreeSet<String>,
}

impl OperatorSession {
    async fn new(folder: PathBuf) -> Self {
        Self { incidents: Incidents::new().await, folder, posted: BTreeSet::new() }
    }

    /// Returns the configuration of the scripts.
    fn config(&self, parts: &[&str], screenshots: &Path) -> Value {
        let it = &self.incidents;
        json!({
            "parts": parts,
            "url": format!("http://{}/", it.console.address),
            "signIn": {
                "url": format!("http://{}/", it.token_console.address), "token": TOKEN,
                "name": "<img src=x onerror=alert(19)>",
            },
            "stuck": it.stuck,
            "other": it.other,
            "holder": it.holder,
            "blockedTask": it.blocked_task,
            "again": it.failed,
            "run": it.run,
            "liveRun": it.live_run,
            "blocker": { "pid": it.ann_pid, "application": "psql", "user": "ann" },
            "failed": FAILED,
            "sqlstate": "42P01",
            "worker": "batch-2",
            "more": more(it),
            "facts": facts(it),
            "gone": ["queue exports", "queue archive", "queue mail", "of nightly"],
            "screenshots": { "folder": screenshots, "screens": screenshot_pages(it) },
        })
    }

    /// Runs these parts.
    async fn run_parts(&mut self, parts: &[&str]) {
        let screenshots = self.folder.join("screenshots");
        self.run_parts_with(parts, &screenshots).await;
    }

    async fn run_parts_with(&mut self, parts: &[&str], screenshots: &Path) {
        let mut command = Command::new("node");
        command.arg(self.folder.join("main.mjs")).arg(self.config(parts, screenshots).to_string());
        let Output { status, stdout, stderr } =
            spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        for line in text(&stdout).lines() {
            match line.strip_prefix("posted: ") {
                Some(paths) => {
                    let paths: Vec<String> = serde_json::from_str(paths).unwrap();
                    self.posted.extend(paths.iter().map(|path| pattern(path)));
                }
                None => println!("{line}"),
            }
        }
        assert!(status.success(), "{}", text(&stderr));
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Returns the folder of the scripts and their packages; prints the reason and returns `None` if
/// they cannot run.
fn browser() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("tools/browser");
    let install = root().join("tests/browser/install");
    let Output { status, stderr, .. } = Command::new(install).arg(&folder).output().unwrap();
    if !status.success() {
        println!("skipped: {}", String::from_utf8_lossy(&stderr).trim());
        return None;
    }
    Some(folder)
}

/// Returns the path with a `*` in place of its second segment, if the path has three segments.
fn pattern(path: &str) -> String {
    match path.split('/').collect::<Vec<_>>()[..] {
        ["", kind, _, act] => format!("/{kind}/*/{act}"),
        _ => path.to_owned(),
    }
}

/// Returns the router's paths that accept a form, parsed from the console's source.
fn routes() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, text) in files(&["crates/console/src"], &[".rs"]) {
        for route in text.split(".route(\"").skip(1) {
            let (path, rest) = route.split_once('"').unwrap();
            // Up to the next route, or the end of the function.
            let methods = rest.split("\n}").next().unwrap();
            if methods.contains("post(") {
                found.insert(pattern(path));
            }
        }
    }
    found
}

#[test]
fn every_form_of_the_console_is_submitted_in_a_browser() {
    let pressed: BTreeSet<String> = POSTED.iter().map(|path| (*path).to_owned()).collect();
    assert_eq!(routes(), pressed, "forms of the console, and forms submitted in a browser");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "uses both processors for minutes: make browser"]
async fn an_operator_resolves_incidents_in_a_browser() {
    let Some(folder) = browser() else { return };
    let _one = ONE.lock().await;
    let mut session = OperatorSession::new(folder).await;
    session.run_parts(&["screenshots"]).await;
    session.incidents.grow_hostile().await;
    session.run_parts(&["screens", "signIn", "freshness", "times"]).await;
    incidents_are_resolved(&mut session).await;
    every_action(&mut session).await;
    let pressed: BTreeSet<String> = POSTED.iter().map(|path| (*path).to_owned()).collect();
    assert_eq!(session.posted, pressed, "submitted forms");
}

/// A part of the test above, in about a minute.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser: make browser ONLY=screens"]
async fn screens_are_sound_in_a_browser_and_an_operator_can_sign_in() {
    let Some(folder) = browser() else { return };
    let _one = ONE.lock().await;
    let mut session = OperatorSession::new(folder).await;
    session.incidents.grow_hostile().await;
    session.run_parts(&["screens", "signIn"]).await;
}

/// Finds each incident from Overview and resolves it; the database confirms the result.
async fn incidents_are_resolved(session: &mut OperatorSession) {
    let parts =
        ["filtered", "byLetters", "blockedBySession", "byKeys", "blockedByTask", "pausedQueue"];
    session.run_parts(&parts).await;
    session.run_parts(&["drainingWorker", "unservedQueue", "failures", "failedRun"]).await;
    let it = &session.incidents;
    for id in [it.stuck, it.other, it.holder] {
        assert_eq!(it.database.outcome(id).await, "cancelled");
    }
    assert_eq!(it.database.outcome(it.blocked_task).await, "succeeded");
    let left = |queue: &str| format!("SELECT count(*) FROM mill.tasks WHERE queue = '{queue}'");
    for queue in ["exports", "archive"] {
        let ended = async || it.database.value::<i64>(&left(queue)).await == 0;
        eventually(&format!("{queue} continues"), ended).await;
    }
    eventually("the retried tasks have succeeded", async || {
        it.database.value::<i64>("SELECT count(*) FROM events").await == 12
    })
    .await;
    // Fix the cause, and start a worker.
    it.database.execute("INSERT INTO deliveries VALUES ('stock')").await;
    session.incidents.add_worker("mail");
    session.run_parts(&["restartedRun", "resolved"]).await;
    let it = &session.incidents;
    assert_eq!(end(&it.database, it.run).await, "succeeded");
    let again = format!(
        "SELECT string_agg(name, ', ' ORDER BY name) FROM mill.run_tasks WHERE run_id = {} AND
         started_at > (SELECT max(at) FROM mill.audit WHERE action = 'restart_run')",
        it.run
    );
    let again: String = it.database.value(&again).await;
    assert_eq!(again, "load stock, publish, stock report");
    assert_eq!(it.database.value::<i64>(&left("mail")).await, 0);
    it.release_lock().await;
}

/// Submits every form that the incidents did not need.
async fn every_action(session: &mut OperatorSession) {
    let database = &session.incidents.database;
    let job = json!([{
        "name": "day", "statement": "SELECT $1::int", "params": [{"$param": "day"}], "queue": "etl",
    }]);
    crate::runs::run::job(database, "of a day", job).await;
    database
        .execute(
            "INSERT INTO deliveries VALUES ('totals'); SELECT mill.set_group('unused');
             SELECT mill.set_max_running('key', 'unused key', 1);
             SELECT mill.enqueue('SELECT 1', queue => 'obsolete')",
        )
        .await;
    database
        .execute(
            r#"SELECT mill.set_subscription('on call', '{"events": ["run_failed"], "channel": "on_call"}');
            UPDATE mill.subscription_state SET failures = 2, last_error = 'no answer'"#,
        )
        .await;
    let parts = [
        "queueSettings",
        "purgedQueue",
        "plannedPause",
        "priorities",
        "groupSettings",
        "limits",
        "drained",
        "schedule",
        "job",
    ];
    session.run_parts(&parts).await;
    let parts = ["run", "task", "changeTask", "bulk", "graphZoom", "subscription"];
    session.run_parts(&parts).await;
    let it = &session.incidents;
    assert_eq!(end(&it.database, it.live_run).await, "cancelled");
    let facts = [
        ("limits", "max_running = 2 AND rate_starts = 30 FROM mill.limits WHERE kind = 'queue' AND name = 'reports'"),
        ("key", "max_running = 2 FROM mill.limits WHERE kind = 'key' AND name = 'customer & co'"),
        ("no key", "count(*) = 0 FROM mill.limits WHERE kind = 'key' AND name = 'unused key'"),
        ("queues", "paused AND shared_commit = '20 ms' FROM mill.queues WHERE name = 'reports'"),
        ("weights", "weight = 7 FROM mill.priorities WHERE priority = 'low'"),
        ("reserve", "reserved_capacity = 'high' FROM mill.settings"),
        ("group", "max_running = 0 AND priority = 'low' AND description = 'files for others' AND opens = '22:00'
             AND closes = '06:00' AND zone = 'Europe/Berlin' FROM mill.groups WHERE name = 'exports & more'"),
        ("purged", "count(*) = 1 FROM mill.audit WHERE action = 'purge_queue' AND subject = 'queue obsolete'"),
        ("removed", "count(*) = 0 FROM mill.groups WHERE name = 'unused'"),
        ("subscription", "NOT enabled FROM mill.subscriptions WHERE name = 'on call'"),
        ("drained", "array_agg(s.host) = '{batch-2}' FROM mill.workers w JOIN mill.worker_starts s USING (id)
             WHERE w.draining"),
        ("schedule", "count(*) = 1 FROM mill.runs r JOIN mill.schedules s ON s.id = r.schedule_id
             WHERE s.name = 'arrivals' AND s.enabled"),
        ("job", "params = '{\"day\": 7}' AND state = 'succeeded' FROM mill.runs WHERE jobs = '{of a day}'"),
        ("task set", "detail->'priority'->>'new' = 'high' FROM mill.audit WHERE action = 'change_task'"),
        ("bulk", "count(*) = 0 FROM mill.tasks WHERE queue = 'maintenance'"),
        ("in whose name", "count(DISTINCT action) >= 15 FROM mill.audit WHERE actor = 'console' AND login = 'operator'"),
    ];
    for (what, fact) in facts {
        assert!(it.database.value::<bool>(&format!("SELECT {fact}")).await, "{what}: {fact}");
    }
    // The page showed "succeeded" already before the task ran again, so the browser did not wait for it.
    eventually("the task has run again", async || {
        it.database.attempts(it.failed).await == "failed succeeded succeeded"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes docs/console/*.png: make screenshots"]
async fn the_screenshots_of_the_documentation() {
    let Some(folder) = browser() else { return };
    let _one = ONE.lock().await;
    let mut session = OperatorSession::new(folder).await;
    session.run_parts_with(&["screenshots"], &root().join("docs/console")).await;
}
