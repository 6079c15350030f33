//! The console in a real browser: a night of an operator, and what holds of every screen.
//!
//! Needs Node.js 20, npm and Chromium (`.ci/packages browser`); says so and passes where they are missing. The
//! scripts are in `tests/browser`; `make browser` runs this alone, and fails where something is missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio_postgres::Client;

use crate::harness::console::Console;
use crate::harness::{Database, Worker, eventually};

const SEED: &str = include_str!("browser/seed.sql");

/// Loads that come before their tables.
const FAILED: usize = 12;

/// One word: what stands behind a token on its line is a name.
const TOKEN: &str = "a-token-for-a-browser";

/// Tasks of a fleet in trouble, and who is in their way.
struct Trouble {
    database: Database,
    console: Console,
    /// Of the same database, for who knows the token.
    door: Console,
    _workers: [Worker; 2],
    _blocker: Client,
    blocker_pid: i32,
    stuck: i64,
    other: i64,
    failed: i64,
}

impl Trouble {
    async fn new() -> Self {
        let database = Database::new().await;
        database.execute(SEED).await;
        let workers = [0, 1].map(|_| Worker::start(&database, &["--readers", "4"]));
        eventually("both workers are there", async || {
            database.value::<i64>("SELECT count(*) FROM mill.workers").await == 2
        })
        .await;
        // Names that stand in pictures.
        database
            .execute(
                "UPDATE mill.worker_starts s SET host = 'batch-' || n.n, pid = 1200 + n.n
                 FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM mill.worker_starts) n
                 WHERE n.id = s.id",
            )
            .await;
        let failed = fail_loads(&database).await;
        let blocker = database.connect().await;
        blocker
            .batch_execute(
                "SET application_name = 'psql'; BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE",
            )
            .await
            .unwrap();
        let blocker_pid = blocker.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let stuck = database
            .enqueue(
                "REFRESH MATERIALIZED VIEW orders_by_day",
                ", queue => 'etl', name => 'orders by day', group_name => 'warehouse'",
            )
            .await;
        blocked(&database, stuck).await;
        let other = database
            .enqueue(
                "INSERT INTO revenue SELECT placed_at::date, sum(amount) FROM orders GROUP BY 1",
                ", queue => 'reports', name => 'revenue by day', priority => 'high'",
            )
            .await;
        blocked(&database, other).await;
        for region in ["north", "south", "west"] {
            let options = format!(", queue => 'reports', name => 'revenue of {region}'");
            database.enqueue("SELECT sum(amount) FROM orders", &options).await;
        }
        let console = Console::start(&database, &[]).await;
        let file = std::env::temp_dir().join(format!("pgmill-browser-{}", database.name()));
        std::fs::write(&file, TOKEN).unwrap();
        let door = Console::start(&database, &["--token-file", file.to_str().unwrap()]).await;
        std::fs::remove_file(&file).unwrap();
        eventually("the last hour is read", async || {
            let read = console.get("/api/v1/overview").await.body;
            read.contains("\"minutes_read\":60")
                && console.get("/api/v1/failures").await.body.contains("42P01")
        })
        .await;
        Self {
            database,
            console,
            door,
            _workers: workers,
            _blocker: blocker,
            blocker_pid,
            stuck,
            other,
            failed,
        }
    }

    /// What the scripts need to know.
    fn config(&self, parts: &[&str]) -> Value {
        let (stuck, failed) = (format!("/tasks/{}", self.stuck), format!("/tasks/{}", self.failed));
        json!({
            "parts": parts,
            "url": format!("http://{}/", self.console.address),
            "door": { "url": format!("http://{}/", self.door.address), "token": TOKEN },
            "stuck": self.stuck,
            "other": self.other,
            "blocker": { "pid": self.blocker_pid, "application": "psql" },
            "failed": FAILED,
            "sqlstate": "42P01",
            "queue": "reports",
            "worker": "batch-2",
            "more": [stuck, failed, "/tasks?q=state:ended", "/tasks?q=que:etl", "/failures?queue=etl",
                "/tasks/all?q=state:failed+queue:etl"],
            "facts": {
                "/": [format!("task {} (orders by day) is blocked by backend", self.stuck), "reports"],
                "/tasks": ["orders by day", "vacuum orders", "running", "scheduled"],
                "/failures": ["42P01", "does not exist", "division by zero"],
                "/workers": ["batch-1", "batch-2", "orders by day"],
                "/queues": ["etl", "at most 1 at once"],
                "/priorities": ["high", "normal", "low"],
                "/groups": ["warehouse", "loads and their summaries"],
                stuck: ["REFRESH MATERIALIZED VIEW orders_by_day", "Blocked by", "psql"],
                failed: ["42P01", "does not exist", "INSERT INTO events"],
            },
            "pictures": {
                "folder": root().join("docs/console"),
                "screens": { "overview": "/", "task": format!("/tasks/{}", self.failed) },
            },
        })
    }

    /// Runs these parts.
    async fn look(&self, folder: &Path, parts: &[&str]) {
        let mut command = Command::new("node");
        command.arg(folder.join("main.mjs")).arg(self.config(parts).to_string());
        let Output { status, stdout, stderr } =
            spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        print!("{}", text(&stdout));
        assert!(status.success(), "{}{}", text(&stdout), text(&stderr));
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

/// Loads that fail because their tables have not come yet; then the tables come. One of the tasks.
async fn fail_loads(database: &Database) -> i64 {
    let mut ids = Vec::new();
    for day in 1..=FAILED {
        let load = format!(
            "INSERT INTO events\nSELECT day, count(*)\nFROM arrived_{day:02}\nGROUP BY day"
        );
        let options =
            format!(", queue => 'etl', max_attempts => 1, name => 'load events of day {day}'");
        ids.push(database.enqueue(&load, &options).await);
    }
    for (day, id) in (1..).zip(&ids) {
        assert_eq!(database.outcome(*id).await, "failed");
        let arrives =
            format!("CREATE TABLE arrived_{day:02} AS SELECT current_date - {day} AS day");
        database.execute(&arrives).await;
    }
    ids[0]
}

async fn blocked(database: &Database, id: i64) {
    eventually(&format!("task {id} is blocked"), async || {
        let sql = "SELECT FROM mill.running WHERE id = $1 AND wait_event_type = 'Lock'";
        !database.rows(sql, &[&id]).await.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it takes both processors for minutes: make browser"]
async fn an_operators_night_in_a_browser() {
    let Some(folder) = browser() else { return };
    let trouble = Trouble::new().await;
    trouble.look(&folder, &["screens", "door", "night"]).await;
    let database = &trouble.database;
    for id in [trouble.stuck, trouble.other] {
        assert_eq!(database.outcome(id).await, "cancelled");
    }
    eventually("what was retried has succeeded", async || {
        database.value::<i64>("SELECT count(*) FROM events").await == 12
    })
    .await;
    let now = "SELECT (SELECT paused FROM mill.queues WHERE name = 'reports')
        AND (SELECT array_agg(s.host) = '{batch-2}' FROM mill.workers w JOIN mill.worker_starts s USING (id)
             WHERE w.draining)";
    assert!(database.value::<bool>(now).await, "paused and draining");
    let acts: i64 =
        database.value("SELECT count(DISTINCT act) FROM mill.audit WHERE actor = 'console'").await;
    assert!(acts >= 4, "{acts} kinds of acts in the name of the console");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes docs/console/*.png: make pictures"]
async fn the_pictures_of_the_documentation() {
    let Some(folder) = browser() else { return };
    Trouble::new().await.look(&folder, &["pictures"]).await;
}
