//! A fleet with incidents, as an operator finds it at night, and all kinds of objects in its
//! navigation.

use serde_json::json;
use tokio_postgres::Client;

use crate::harness::console::{Console, TokenFile};
use crate::harness::login::PASSWORD;
use crate::harness::{Database, Worker, eventually, open_url};
use crate::runs::run::{end, job, start};

const SEED: &str = include_str!("seed.sql");
const HOSTILE: &str = include_str!("hostile.sql");

/// Why the workers of these tests have the rights of a superuser.
const MAINTAINS: &str = "tasks refresh and vacuum what the seed has created";

/// Number of loads that run before their tables exist.
pub(super) const FAILED: usize = 12;

/// Sign-in token. It is a single word, because text after the token on its line is a name.
pub(super) const TOKEN: &str = "a-token-for-a-browser";

const QUEUES: &str = "etl,reports,exports,default,hostile";

pub(super) struct Incidents {
    pub(super) database: Database,
    /// Runs with the login of an operator.
    pub(super) console: Console,
    /// Serves the same database to users with the token.
    pub(super) token_console: Console,
    workers: Vec<Worker>,
    /// Session of a user in psql.
    ann: Client,
    pub(super) ann_pid: i32,
    /// A task blocked by a session, both with hostile names.
    pub(super) hostile: Option<(i64, Client)>,
    /// Task that waits for a lock of Ann's session.
    pub(super) stuck: i64,
    pub(super) other: i64,
    /// Task that holds a lock. `blocked_task` waits for this lock.
    pub(super) holder: i64,
    pub(super) blocked_task: i64,
    pub(super) failed: i64,
    /// Run with a failed branch.
    pub(super) run: i64,
    /// Run in progress with a failed branch.
    pub(super) live_run: i64,
}

impl Incidents {
    pub(super) async fn new() -> Self {
        let database = Database::named("warehouse").await;
        database.execute(SEED).await;
        let workers = workers(&database).await;
        let failed = fail_loads(&database).await;
        let ann = ann(&database).await;
        let ann_pid = ann.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let etl = ", queue => 'etl', name => ";
        let stuck = "REFRESH MATERIALIZED VIEW orders_by_day";
        let options = format!("{etl}'orders by day', group_name => 'warehouse'");
        let stuck = database.enqueue(stuck, &options).await;
        blocked(&database, stuck).await;
        let other =
            "INSERT INTO revenue SELECT placed_at::date, sum(amount) FROM orders GROUP BY 1";
        let options = ", queue => 'reports', name => 'revenue by day', priority => 'high'";
        let other = database.enqueue(other, options).await;
        blocked(&database, other).await;
        let holder = "DO $$ BEGIN LOCK TABLE stock; PERFORM pg_sleep(900); END $$";
        let holder = database.enqueue(holder, &format!("{etl}'rebuild stock'")).await;
        sleeps(&database, holder).await;
        let blocked_task = "SELECT count(*) FROM stock";
        let blocked_task = database.enqueue(blocked_task, &format!("{etl}'count stock'")).await;
        blocked(&database, blocked_task).await;
        stalled(&database).await;
        let (run, live_run) = runs(&database).await;
        let operator = operator(&database).await;
        let console = Console::start_at(&database, &operator, &[]).await;
        let file = TokenFile::new(TOKEN);
        let token_console = Console::start(&database, &["--token-file", file.path()]).await;
        eventually("the console has read the last hour", async || {
            console.get("/api/v1/overview").await.body.contains("\"minutes_read\":60")
                && console.get("/api/v1/failures").await.body.contains("42P01")
        })
        .await;
        Self {
            database,
            console,
            token_console,
            workers,
            ann,
            ann_pid,
            hostile: None,
            stuck,
            other,
            holder,
            blocked_task,
            failed,
            run,
            live_run,
        }
    }

    /// Adds markup in names, including an ended run and an ended task.
    pub(super) async fn grow_hostile(&mut self) {
        self.database.execute(HOSTILE).await;
        eventually("the objects with hostile names have ended", async || {
            let left = "SELECT count(*) FROM mill.tasks WHERE queue = 'hostile'";
            let failed = "SELECT count(*) FROM mill.runs
                WHERE jobs = '{<img src=x onerror=alert(5)>}' AND state = 'failed'";
            self.database.value::<i64>(left).await == 0
                && self.database.value::<i64>(failed).await == 1
        })
        .await;
        let session = self.database.connect().await;
        let lock = "SET application_name = '<img src=x onerror=alert(18)>';
            BEGIN; LOCK TABLE held IN ACCESS EXCLUSIVE MODE";
        session.batch_execute(lock).await.unwrap();
        let options = ", queue => 'hostile', name => '<img src=x onerror=alert(20)>'";
        let id = self.database.enqueue("SELECT count(*) FROM held", options).await;
        blocked(&self.database, id).await;
        self.hostile = Some((id, session));
    }

    /// Adds a worker that serves only this queue.
    pub(super) fn add_worker(&mut self, queue: &str) {
        let flags = ["--readers", "2", "--queues", queue];
        self.workers.push(Worker::start_as_superuser(&self.database, MAINTAINS, &flags));
    }

    /// Releases the locks of Ann's session.
    pub(super) async fn release_lock(&self) {
        let sessions = self.hostile.iter().map(|(_, session)| session).chain([&self.ann]);
        for session in sessions {
            session.batch_execute("ROLLBACK").await.unwrap();
        }
    }
}

/// Starts two workers for most queues, and a draining one, with names that suit screenshots.
async fn workers(database: &Database) -> Vec<Worker> {
    let flags = ["--readers", "8", "--heartbeat-interval", "200ms", "--queues"];
    let start =
        |queues| Worker::start_as_superuser(database, MAINTAINS, &[&flags[..], &[queues]].concat());
    let workers = vec![start(QUEUES), start(QUEUES), start("archive")];
    eventually("the workers are registered", async || {
        database.value::<i64>("SELECT count(*) FROM mill.workers").await == 3
    })
    .await;
    database
        .execute(
            "UPDATE mill.worker_starts s SET host = n.name || '-' || n.n, pid = 1200 + n.n
             FROM (SELECT w.id, c.name, row_number() OVER (PARTITION BY c.name ORDER BY w.id) AS n
                 FROM mill.workers w, LATERAL (SELECT CASE WHEN w.queues = '{archive}' THEN 'archive' ELSE 'batch' END)
                     AS c (name)) n
             WHERE n.id = s.id;
             SELECT mill.drain(id, true) FROM mill.workers WHERE queues = '{archive}'",
        )
        .await;
    let drained_at: String = database.value("SELECT clock_timestamp()::text").await;
    eventually("the worker is draining", async || {
        let sql =
            "SELECT FROM mill.workers WHERE draining AND heartbeat_at > $1::text::timestamptz";
        !database.rows(sql, &[&drained_at]).await.is_empty()
    })
    .await;
    workers
}

/// Runs loads that fail because their tables do not exist yet, then creates the tables. Returns one
/// of the tasks.
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

/// Opens a psql session of a user in the middle of a transaction.
async fn ann(database: &Database) -> Client {
    let role = format!(
        "DROP ROLE IF EXISTS ann; CREATE ROLE ann LOGIN PASSWORD '{PASSWORD}'; GRANT ALL ON orders TO ann"
    );
    database.execute(&role).await;
    let ann = open_url(&database.url_as("ann", PASSWORD)).await;
    let lock = "SET application_name = 'psql'; BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE";
    ann.batch_execute(lock).await.unwrap();
    ann
}

/// Returns the connection string of an operator who may act on the queue and read one table.
async fn operator(database: &Database) -> String {
    let role = format!(
        "DROP ROLE IF EXISTS operator; CREATE ROLE operator LOGIN PASSWORD '{PASSWORD}';
         GRANT mill_operator TO operator; GRANT SELECT ON inbox TO operator"
    );
    database.execute(&role).await;
    database.url_as("operator", PASSWORD)
}

/// Fills queues that no worker claims from: one is paused, one has only a draining worker, one has
/// no worker.
async fn stalled(database: &Database) {
    database.execute("SELECT mill.pause('exports')").await;
    for (queue, count) in [("exports", 2), ("archive", 3), ("mail", 2)] {
        for n in 1..=count {
            let options = format!(", queue => '{queue}', name => '{queue} {n}'");
            database.enqueue("SELECT 1", &options).await;
        }
    }
    for region in ["north", "south", "west"] {
        let options = format!(", queue => 'reports', name => 'revenue of {region}'");
        database.enqueue("SELECT sum(amount) FROM orders", &options).await;
    }
}

/// Creates a run that succeeded three times and then failed because nothing was delivered, and a
/// run in progress.
async fn runs(database: &Database) -> (i64, i64) {
    let task = |name: &str, seconds, after: &[&str], more: &str| {
        let statement = format!("SELECT pg_sleep({seconds}){more}");
        json!({"name": name, "statement": statement, "after": after, "queue": "etl", "max_attempts": 1})
    };
    let nightly = json!([
        task("extract", 0.25, &[], ""),
        task("load customers", 0.3, &["extract"], ""),
        task("load orders", 0.5, &["extract"], ""),
        task("load stock", 0.1, &["extract"], ", delivered('stock')"),
        task("merge", 0.2, &["load customers", "load orders"], ""),
        task("stock report", 0.1, &["load stock"], ""),
        task("publish", 0.1, &["merge", "stock report"], ""),
    ]);
    job(database, "nightly", nightly).await;
    database.execute("INSERT INTO deliveries VALUES ('stock')").await;
    for _ in 0..3 {
        let run = start(database, "nightly").await;
        assert_eq!(end(database, run).await, "succeeded");
    }
    database.execute("DELETE FROM deliveries").await;
    let run = start(database, "nightly").await;
    assert_eq!(end(database, run).await, "failed");
    for _ in 0..4 {
        let sql = "SELECT mill.run_now('hourly orders')";
        let run = database.value(sql).await;
        assert_eq!(end(database, run).await, "succeeded");
    }
    let weekly = json!([
        task("close books", 900.0, &[], ""),
        task("check totals", 0.1, &[], ", delivered('totals')"),
        task("send totals", 0.1, &["check totals"], ""),
    ]);
    let asks = |name: &str, note: &str| {
        let mut task = task(name, 0.1, &[], "");
        task["approval"] = json!(true);
        task["approval_note"] = json!(note);
        task
    };
    let asking = [asks("publish books", "Compare the totals"), asks("pay <b>", "<b>Never</b>")];
    let mut weekly = weekly;
    weekly.as_array_mut().unwrap().extend(asking);
    job(database, "weekly", weekly).await;
    let live_run = start(database, "weekly").await;
    eventually("a branch of it has failed", async || {
        let sql = format!(
            "SELECT count(*) FROM mill.run_tasks WHERE run_id = {live_run} AND state = 'upstream_failed'"
        );
        database.value::<i64>(&sql).await == 1
    })
    .await;
    (run, live_run)
}

async fn blocked(database: &Database, id: i64) {
    eventually(&format!("task {id} is blocked"), async || {
        let sql = "SELECT FROM mill.running WHERE id = $1 AND wait_event_type = 'Lock'";
        !database.rows(sql, &[&id]).await.is_empty()
    })
    .await;
}

async fn sleeps(database: &Database, id: i64) {
    eventually(&format!("task {id} holds its lock"), async || {
        let sql = "SELECT FROM mill.running WHERE id = $1 AND wait_event = 'PgSleep'";
        !database.rows(sql, &[&id]).await.is_empty()
    })
    .await;
}
