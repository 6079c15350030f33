//! The console in a real browser: a night of an operator, and what holds of every screen.
//!
//! Needs Node.js 20, npm and Chromium (`.ci/packages browser`); says so and passes where they are missing. The
//! scripts are in `tests/browser`; `make browser` runs this alone, and fails where something is missing.

mod fleet;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::harness::eventually;
use crate::run::end;
use crate::tidy::files;
use fleet::{FAILED, TOKEN, Trouble};

/// Every path that a form is sent to; `*` stands for a name or a number. A new one needs somebody who presses it.
const POSTED: [&str; 23] = [
    "/groups/*/active",
    "/groups/*/concurrency",
    "/groups/*/remove",
    "/groups/make",
    "/jobs/enable",
    "/jobs/run",
    "/login",
    "/logout",
    "/priorities/reserve",
    "/priorities/weights",
    "/queues/*/commits",
    "/queues/*/limit",
    "/queues/*/pause",
    "/runs/*/cancel",
    "/runs/*/restart",
    "/runs/*/retry",
    "/schedules/enable",
    "/schedules/run-now",
    "/schedules/test",
    "/tasks/*/cancel",
    "/tasks/*/retry",
    "/tasks/all",
    "/workers/*/drain",
];

/// There is one database of this name.
static ONE: Mutex<()> = Mutex::const_new(());

/// Pictures of the documentation: name, path, height if it is another one, width if it is another one.
fn pictured(trouble: &Trouble) -> Value {
    json!([
        { "name": "overview", "path": "/" },
        { "name": "overview-narrow", "path": "/", "width": 390, "height": 780 },
        { "name": "task", "path": format!("/tasks/{}", trouble.failed) },
        { "name": "blocked", "path": format!("/tasks/{}", trouble.stuck), "height": 620 },
        { "name": "run", "path": format!("/runs/{}", trouble.run), "height": 920 },
        { "name": "schedule", "path": "/schedules/one?name=hourly%20orders", "height": 760 },
        { "name": "failures", "path": "/failures", "height": 360 },
    ])
}

/// Screens that nothing else of their kind leads to, and those with hostile names.
fn more(trouble: &Trouble) -> Vec<String> {
    let fixed = [
        "/tasks?q=state:ended",
        "/tasks?q=que:etl",
        "/tasks?q=queue:hostile+state:ended",
        "/failures?queue=etl",
        "/tasks/all?q=state:failed+queue:etl",
        "/jobs/one?name=nightly",
        "/jobs/one?name=%3Cimg%20src%3Dx%20onerror%3Dalert%285%29%3E",
        "/schedules/one?name=arrivals",
        "/schedules/one?name=%3Cimg%20src%3Dx%20onerror%3Dalert%283%29%3E",
        "/lineage?name=merge",
        "/lineage?name=%3Cscript%3Ealert%286%29%3C%2Fscript%3E",
        "/runs?state=failed&job=nightly",
    ];
    let hostile = trouble.hostile.as_ref().map(|(id, _)| *id);
    let tasks = [trouble.stuck, trouble.behind, trouble.failed]
        .into_iter()
        .chain(hostile)
        .map(|id| format!("/tasks/{id}"));
    let runs = [trouble.run, trouble.live_run].map(|id| format!("/runs/{id}"));
    fixed.into_iter().map(str::to_owned).chain(tasks).chain(runs).collect()
}

/// What can be read without JavaScript.
fn facts(trouble: &Trouble) -> Value {
    let task = |id: i64| format!("/tasks/{id}");
    let stuck = format!("task {} (orders by day) is blocked by backend", trouble.stuck);
    let end = format!("SELECT pg_terminate_backend({})", trouble.ann_pid);
    json!({
        "/": [stuck, "reports"],
        "/tasks": ["orders by day", "vacuum orders", "running", "scheduled"],
        "/runs": ["nightly", "weekly", "failed", "running"],
        "/schedules": ["arrivals", "hourly orders", "Europe/Berlin"],
        "/jobs": ["nightly", "weekly"],
        "/lineage": ["load stock", "merge"],
        "/failures": ["42P01", "does not exist", "division by zero"],
        "/workers": ["batch-1", "batch-2", "orders by day", "worker --queues mail"],
        "/queues": ["etl", "at most 1 at once"],
        "/priorities": ["high", "normal", "low"],
        "/groups": ["warehouse", "loads and their summaries"],
        "/audit": ["set_group", "set_job"],
        "/database": ["PostgreSQL", "Waits for locks", "tasks"],
        "/jobs/one?name=nightly": ["load customers, load orders", "7"],
        "/schedules/one?name=arrivals": ["Dry run", "What happened"],
        task(trouble.stuck): ["REFRESH MATERIALIZED VIEW orders_by_day", "Blocked by", "psql", "ann", end],
        task(trouble.behind): ["Blocked by", "rebuild stock"],
        task(trouble.failed): ["42P01", "does not exist", "INSERT INTO events"],
        format!("/runs/{}", trouble.run): ["no stock has been delivered", "impossible", "When they ran", "Critical path"],
    })
}

/// One night: what was pressed so far.
struct Night {
    trouble: Trouble,
    folder: PathBuf,
    posted: BTreeSet<String>,
}

impl Night {
    async fn new(folder: PathBuf) -> Self {
        Self { trouble: Trouble::new().await, folder, posted: BTreeSet::new() }
    }

    /// What the scripts need to know.
    fn config(&self, parts: &[&str], pictures: &Path) -> Value {
        let it = &self.trouble;
        json!({
            "parts": parts,
            "url": format!("http://{}/", it.console.address),
            "door": {
                "url": format!("http://{}/", it.door.address), "token": TOKEN,
                "name": "<img src=x onerror=alert(19)>",
            },
            "stuck": it.stuck,
            "other": it.other,
            "holder": it.holder,
            "behind": it.behind,
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
            "pictures": { "folder": pictures, "screens": pictured(it) },
        })
    }

    /// Runs these parts.
    async fn look(&mut self, parts: &[&str]) {
        let pictures = self.folder.join("pictures");
        self.look_with(parts, &pictures).await;
    }

    async fn look_with(&mut self, parts: &[&str], pictures: &Path) {
        let mut command = Command::new("node");
        command.arg(self.folder.join("main.mjs")).arg(self.config(parts, pictures).to_string());
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

/// Where the scripts and their packages are; `None`, and a line that says why, where they cannot run.
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

/// The path with a `*` for what stands second of three.
fn pattern(path: &str) -> String {
    match path.split('/').collect::<Vec<_>>()[..] {
        ["", kind, _, act] => format!("/{kind}/*/{act}"),
        _ => path.to_owned(),
    }
}

/// The paths of the router that take a form, by the text of the console's code.
fn routes() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, text) in files(&["console/src"], &[".rs"]) {
        for route in text.split(".route(\"").skip(1) {
            let (path, rest) = route.split_once('"').unwrap();
            // As far as the next route, or the end of the function.
            let methods = rest.split("\n}").next().unwrap();
            if methods.contains("post(") {
                found.insert(pattern(path));
            }
        }
    }
    found
}

#[test]
fn every_form_of_the_console_is_pressed_by_somebody() {
    let pressed: BTreeSet<String> = POSTED.iter().map(|path| (*path).to_owned()).collect();
    assert_eq!(routes(), pressed, "what the console takes, and what is pressed in a browser");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it takes both processors for minutes: make browser"]
async fn an_operators_night_in_a_browser() {
    let Some(folder) = browser() else { return };
    let _one = ONE.lock().await;
    let mut night = Night::new(folder).await;
    night.look(&["pictures"]).await;
    night.trouble.grow_hostile().await;
    night.look(&["screens", "door"]).await;
    drill(&mut night).await;
    acts(&mut night).await;
    let pressed: BTreeSet<String> = POSTED.iter().map(|path| (*path).to_owned()).collect();
    assert_eq!(night.posted, pressed, "what was pressed");
}

/// Each trouble is found from Overview and put right; the database says so.
async fn drill(night: &mut Night) {
    let parts = ["filtered", "blockedBySession", "byKeys", "blockedByTask", "pausedQueue"];
    night.look(&parts).await;
    night.look(&["drainingWorker", "unservedQueue", "failures", "failedRun"]).await;
    let it = &night.trouble;
    for id in [it.stuck, it.other, it.holder] {
        assert_eq!(it.database.outcome(id).await, "cancelled");
    }
    assert_eq!(it.database.outcome(it.behind).await, "succeeded");
    let left = |queue: &str| format!("SELECT count(*) FROM mill.tasks WHERE queue = '{queue}'");
    for queue in ["exports", "archive"] {
        let ended = async || it.database.value::<i64>(&left(queue)).await == 0;
        eventually(&format!("{queue} goes on"), ended).await;
    }
    eventually("what was retried has succeeded", async || {
        it.database.value::<i64>("SELECT count(*) FROM events").await == 12
    })
    .await;
    // The cause is mended, and a worker started.
    it.database.execute("INSERT INTO deliveries VALUES ('stock')").await;
    night.trouble.add_worker("mail");
    night.look(&["restartedRun", "calm"]).await;
    let it = &night.trouble;
    assert_eq!(end(&it.database, it.run).await, "succeeded");
    let again = format!(
        "SELECT string_agg(name, ', ' ORDER BY name) FROM mill.run_tasks WHERE run_id = {} AND
         started_at > (SELECT max(at) FROM mill.audit WHERE act = 'restart_run')",
        it.run
    );
    let again: String = it.database.value(&again).await;
    assert_eq!(again, "load stock, publish, stock report");
    assert_eq!(it.database.value::<i64>(&left("mail")).await, 0);
    it.let_go().await;
}

/// Every form that the drill did not need.
async fn acts(night: &mut Night) {
    let database = &night.trouble.database;
    let job = json!([{
        "name": "day", "statement": "SELECT $1::int", "params": [{"$param": "day"}], "queue": "etl",
    }]);
    crate::run::job(database, "of a day", job).await;
    database
        .execute("INSERT INTO deliveries VALUES ('totals'); SELECT mill.set_group('unused')")
        .await;
    let parts = ["queueSettings", "priorities", "groupSettings", "drained", "schedule", "job"];
    night.look(&parts).await;
    night.look(&["run", "task", "bulk"]).await;
    let it = &night.trouble;
    assert_eq!(end(&it.database, it.live_run).await, "cancelled");
    let facts = [
        ("limits", "max_running = 2 AND rate_starts = 30 FROM mill.limits WHERE kind = 'queue' AND name = 'reports'"),
        ("queues", "paused AND shared_commit = '20 ms' FROM mill.queues WHERE name = 'reports'"),
        ("weights", "weight = 7 FROM mill.priorities WHERE priority = 'low'"),
        ("reserve", "reserved_capacity = 'high' FROM mill.settings"),
        ("group", "max_concurrency = -1 AND priority = 'low' AND description = 'files for others' AND opens = '22:00'
             AND closes = '06:00' AND zone = 'Europe/Berlin' FROM mill.groups WHERE name = 'exports & more'"),
        ("removed", "count(*) = 0 FROM mill.groups WHERE name = 'unused'"),
        ("drained", "array_agg(s.host) = '{batch-2}' FROM mill.workers w JOIN mill.worker_starts s USING (id)
             WHERE w.draining"),
        ("schedule", "count(*) = 1 FROM mill.runs r JOIN mill.schedules s ON s.id = r.schedule_id
             WHERE s.name = 'arrivals' AND s.enabled"),
        ("job", "params = '{\"day\": 7}' AND state = 'succeeded' FROM mill.runs WHERE jobs = '{of a day}'"),
        ("bulk", "count(*) = 0 FROM mill.tasks WHERE queue = 'maintenance'"),
        ("in whose name", "count(DISTINCT act) >= 15 FROM mill.audit WHERE actor = 'console' AND login = 'operator'"),
    ];
    for (what, fact) in facts {
        assert!(it.database.value::<bool>(&format!("SELECT {fact}")).await, "{what}: {fact}");
    }
    assert_eq!(it.database.attempts(it.failed).await, "failed succeeded succeeded");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes docs/console/*.png: make pictures"]
async fn the_pictures_of_the_documentation() {
    let Some(folder) = browser() else { return };
    let _one = ONE.lock().await;
    let mut night = Night::new(folder).await;
    night.look_with(&["pictures"], &root().join("docs/console")).await;
}
