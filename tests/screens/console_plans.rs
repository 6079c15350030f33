//! The plan of every statement of every page of the console and of every API path, as the server
//! logs it. No plan may scan all live tasks or all of history, or sort more rows than a page may
//! read.
//!
//! The tables are small compared with those of a real queue. The planner compares costs, and these
//! sizes suffice to make a table scan visible. `loadtest run console` and `console_size.rs` measure
//! times and buffers with more rows.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

use serde_json::Value;

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, PrivateDatabase, Worker, amount, eventually};
use crate::project::tidy::statement_name;
use crate::screens::pages::SCREENS;

/// Live tasks in every state in twenty queues; history of today and of the three previous days; and
/// so many runs, schedules, jobs, groups and limits that a scan of their tables would change the
/// plan, too.
pub(crate) const FILL: &str = "
INSERT INTO mill.tasks (queue, priority, state, due_at, name, blocking_limit_id, statement)
SELECT 'etl-' || n % 20, (ARRAY['low', 'normal', 'high'])[1 + n % 3]::mill.priority,
    (ARRAY['scheduled', 'blocked', 'pending', 'pending', 'pending', 'pending', 'pending'])[1 + n % 7]::mill.state,
    now() + CASE n % 7 WHEN 0 THEN interval '1 day' ELSE '0' END, 'task ' || n % 500,
        CASE n % 7 WHEN 1 THEN n % 50 END, 'SELECT 1'
FROM generate_series(1, {live}) AS n;
INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, attempt, outcome,
    priority, final, queue, name, sqlstate, message,
    statement)
SELECT at, nextval('mill.tasks_id_seq'), at, at, at, 1,
    CASE WHEN n % 100 = 0 THEN 'failed' ELSE 'succeeded' END::mill.outcome, 'normal', true, 'etl-' || n % 20,
        'task ' || n % 500,
    CASE WHEN n % 100 = 0 THEN '22012' END, CASE WHEN n % 100 = 0 THEN 'division by zero' END, 'SELECT 1'
FROM generate_series(1, {ended}) AS n, LATERAL (SELECT now() - interval '{period}' * (1 - n / {ended}.0) AS at) AS t;
SELECT mill.set_group('group ' || n) FROM generate_series(1, 50) AS n;
SELECT mill.set_max_running('queue', 'narrow-' || n, 0) FROM generate_series(1, 50) AS n;
SELECT mill.set_job('job ' || n, jsonb_build_array(
    jsonb_build_object('name', 'first ' || n, 'statement', 'SELECT 1'),
    jsonb_build_object('name', 'second ' || n, 'statement', 'SELECT 1')))
FROM generate_series(1, 200) AS n;
SELECT mill.set_schedule('schedule ' || n, 'manual', jobs => ARRAY['job ' || n]) FROM generate_series(1, 200) AS n;
SELECT count(*) FROM generate_series(1, 200) AS n, LATERAL mill.start_run(ARRAY['job ' || n])";

/// Enqueues tasks in a queue of their own, which one worker serves. The tasks wait for a lock
/// during the whole test.
const WAITS_FOR_LOCK: &str = "SELECT pg_advisory_lock(1);
SELECT mill.enqueue('SELECT pg_advisory_xact_lock(1)', name => 'held ' || n, queue => 'held') FROM generate_series(1,
    4) AS n";

/// Filters as users write them, in addition to those of the screens and the API.
pub(crate) const MORE: [&str; 23] = [
    "/?hours=6&queue=etl-3",
    "/tasks?q=state:pending+queue:etl-3",
    "/tasks?q=state:scheduled",
    "/tasks?q=state:blocked",
    "/tasks?q=state:running",
    "/tasks?q=state:finished",
    "/tasks?q=state:failed+since:1h",
    "/tasks?q=state:failed,timed_out,lost,unknown+since:24h",
    "/tasks?q=priority:high",
    "/tasks/bulk?q=state:pending",
    "/failures?queue=etl-3",
    "/runs?state=running",
    "/limits?sort=wait",
    "/limits?q=narrow",
    "/limits?kind=queue",
    "/runs?job=job+7",
    "/runs?from=2026-01-01&to=2100-01-01",
    "/schedules/calendar?view=day",
    "/tasks?q=sql:nothing",
    "/tasks?q=params:nothing&sort=oldest",
    "/tasks?q=nothing+state:pending",
    "/tasks?q=state:running&sort=duration",
    "/tasks?q=state:finished+from:2026-01-01+to:2100-01-01",
];

/// Maximum number of rows that a scan may read, or that a sort or an aggregate may consume. It is
/// twice the count limit of all lanes.
const MAX_ROWS: f64 = 40_000.0;

/// Number of pages up to which a scan costs as much as an index, for example in the partition of a
/// new day. The partition of a future day has no pages.
const FEW_PAGES: i64 = 200;

/// Number of pages up to which each scan in a loop costs as much as an index. Shortly after midnight
/// (UTC), the partition of the day has so few pages.
const FEW_PAGES_IN_LOOP: i64 = 8;

/// The maximum of each value over all executions of a statement.
#[derive(Default)]
struct Known {
    times: usize,
    rows: f64,
    buffers: i64,
    path: String,
    faults: Vec<String>,
}

pub(crate) fn number(node: &Value, name: &str) -> f64 {
    node[name].as_f64().unwrap_or(0.0)
}

pub(crate) fn pages(node: &Value) -> i64 {
    ["Shared Hit Blocks", "Shared Read Blocks"].iter().filter_map(|it| node[*it].as_i64()).sum()
}

pub(crate) fn inner(node: &Value) -> impl Iterator<Item = &Value> {
    node["Plans"].as_array().into_iter().flatten()
}

/// Returns the rows read by a node, including those filtered out.
pub(crate) fn rows(node: &Value) -> f64 {
    let left_out: f64 = ["Rows Removed by Filter", "Rows Removed by Index Recheck"]
        .iter()
        .map(|name| number(node, name))
        .sum();
    (number(node, "Actual Rows") + left_out) * number(node, "Actual Loops")
}

/// Returns the faults of a plan, and the maximum number of rows that one of its nodes consumed.
fn check_plan(node: &Value) -> (f64, Vec<String>) {
    let kind = node["Node Type"].as_str().unwrap();
    let relation = node["Relation Name"].as_str().unwrap_or_default();
    let large = relation == "tasks" || relation.starts_with("attempts");
    let (mut max_rows, mut faults) = (0.0, Vec::new());
    let in_loop = FEW_PAGES_IN_LOOP * node["Actual Loops"].as_i64().unwrap_or(1);
    if kind == "Seq Scan" && large && pages(node) > FEW_PAGES.max(in_loop) {
        faults.push(format!("a scan of all of {relation}, {} rows", rows(node)));
    }
    let took = match kind {
        "Sort" | "Incremental Sort" | "Aggregate" | "WindowAgg" | "Hash" | "Materialize" => {
            inner(node).map(rows).sum()
        }
        _ if large => rows(node),
        _ => 0.0,
    };
    if took > MAX_ROWS {
        faults.push(format!("{kind} {relation} took {took} rows"));
    }
    for (more, of_inner) in inner(node).map(check_plan) {
        max_rows = f64::max(max_rows, more);
        faults.extend(of_inner);
    }
    (f64::max(max_rows, took), faults)
}

/// Returns the name of a statement, or the beginning of a statement inside a function.
pub(crate) fn name(query: &str) -> String {
    statement_name(query).map_or_else(
        || query.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(60).collect(),
        str::to_owned,
    )
}

/// Returns what the server has logged since the last call.
pub(crate) fn logged(log: &mut File) -> String {
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    text
}

/// Returns every plan in this part of a server's log.
pub(crate) fn plans(log: &str) -> Vec<Value> {
    let mut plans = Vec::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.ends_with(" plan:") {
            continue;
        }
        let mut text = String::new();
        while let Some(more) = lines.next_if(|line| line.starts_with('\t')) {
            text.push_str(more);
            text.push('\n');
        }
        plans.push(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}")));
    }
    plans
}

fn check_plans(path: &str, log: &str, known: &mut BTreeMap<String, Known>) {
    for plan in plans(log) {
        let (max_rows, faults) = check_plan(&plan["Plan"]);
        let known = known.entry(name(plan["Query Text"].as_str().unwrap())).or_default();
        known.times += 1;
        if pages(&plan["Plan"]) >= known.buffers {
            (known.buffers, known.path) = (pages(&plan["Plan"]), path.to_owned());
        }
        known.rows = f64::max(known.rows, max_rows);
        known.faults.extend(faults.into_iter().map(|fault| format!("{path}: {fault}")));
    }
}

/// Returns the described API paths with the ids of existing objects.
pub(crate) async fn api_paths(console: &Console, task: i64) -> Vec<String> {
    let document: Value =
        serde_json::from_str(&console.get("/api/v1/openapi.json").await.body).unwrap();
    let filled = |path: &String| {
        let path = path.replace("tasks/{id}", &format!("tasks/{task}")).replace("{id}", "7");
        let name = match &*path {
            "/api/v1/schedules/detail" => "?name=schedule+7",
            "/api/v1/lineage" | "/api/v1/lineage/graph" => "?name=second+7",
            "/api/v1/jobs/detail" | "/api/v1/jobs/graph" | "/api/v1/jobs/versions" => "?name=job+7",
            "/api/v1/throughput" => "?hours=6",
            _ => "",
        };
        format!("{path}{name}")
    };
    let paths = document["paths"].as_object().unwrap().iter();
    paths.filter(|(_, it)| it["get"].is_object()).map(|(path, _)| filled(path)).collect()
}

/// Returns pages about a single object.
pub(crate) async fn pages_of_one(database: &Database) -> Vec<String> {
    let finished: i64 =
        database.value("SELECT max(task_id) FROM mill.attempts WHERE outcome = 'failed'").await;
    let held: i64 = database.value("SELECT min(id) FROM mill.tasks WHERE queue = 'held'").await;
    let pending = "SELECT min(id) FROM mill.tasks WHERE state = 'pending' AND queue = 'etl-3'";
    let pending: i64 = database.value(pending).await;
    let tasks = [finished, held, pending].map(|id| format!("/tasks/{id}"));
    let others = [
        "/runs/7",
        "/jobs/detail?name=job+7",
        "/jobs/detail?name=job+7&task=first+7&runs=90",
        "/jobs/versions?name=job+7",
        "/schedules/detail?name=schedule+7",
        "/lineage?name=second+7",
    ];
    tasks.into_iter().chain(others.map(ToOwned::to_owned)).collect()
}

/// Returns a login for whose statements the server logs the plans.
async fn login_with_plans(database: &Database) -> Login<'_> {
    let login = Login::new(database, "looker", "mill_operator").await;
    for (name, value) in [
        ("session_preload_libraries", "auto_explain"),
        ("auto_explain.log_min_duration", "0"),
        ("auto_explain.log_analyze", "on"),
        ("auto_explain.log_buffers", "on"),
        ("auto_explain.log_timing", "off"),
        ("auto_explain.log_nested_statements", "on"),
        ("auto_explain.log_format", "json"),
    ] {
        database
            .execute(&format!(
                "LOAD 'auto_explain'; ALTER ROLE {} SET {name} = '{value}'",
                login.name
            ))
            .await;
    }
    login
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_scans_or_sorts_all_that_waits_or_ever_ended() {
    let shared = Database::new().await;
    if shared.client().batch_execute("LOAD 'auto_explain'").await.is_err() {
        return println!("skipped: the server has no auto_explain to log plans");
    }
    let quick = [("fsync", "off"), ("autovacuum", "off"), ("max_wal_size", "4GB")];
    let private = PrivateDatabase::new(&quick).await;
    let database = &private.database;
    let begun = std::time::Instant::now();
    database.create_days_before().await;
    // The pending tasks, and also the attempts of six hours, are always more than MAX_ROWS.
    let (live, ended, period) =
        amount(("60000", "200000", "1 day"), ("100000", "500000", "2 days"));
    let fill = FILL.replace("{live}", live).replace("{ended}", ended).replace("{period}", period);
    database.execute(&fill).await;
    database.execute("VACUUM (ANALYZE)").await;
    println!("filled in {:?}", begun.elapsed());
    database.execute(WAITS_FOR_LOCK).await;
    let _worker =
        Worker::start(database, &["--queues", "held", "--readers", "4", "--no-scheduler"]);
    eventually("four tasks run", async || {
        database.value::<i64>("SELECT count(*) FROM mill.tasks WHERE state = 'running'").await == 4
    })
    .await;

    let login = login_with_plans(database).await;
    let console = Console::start_at(database, &login.url(), &[]).await;
    eventually("the console has read the last hours", async || {
        console.get("/api/v1/throughput?hours=6").await.body.contains("\"minutes_read\":360")
    })
    .await;
    let mut paths: Vec<String> = SCREENS.iter().chain(&MORE).map(ToString::to_string).collect();
    let of_one = pages_of_one(database).await;
    let task: i64 = of_one[0].rsplit('/').next().unwrap().parse().unwrap();
    paths.extend(of_one);
    paths.extend(api_paths(&console, task).await);

    let mut log = File::open(private.cluster.log()).unwrap();
    let mut known = BTreeMap::new();
    check_plans("reading the last hours", &logged(&mut log), &mut known);
    for path in &paths {
        let answer = console.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        // A plan is logged when its statement ends, before the end of its transaction.
        eventually("its transactions have ended", async || {
            let open =
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgmill console'
                AND state <> 'idle'";
            database.value::<i64>(open).await == 0
        })
        .await;
        check_plans(path, &logged(&mut log), &mut known);
    }
    drop(console);
    for (name, it) in &known {
        println!(
            "{name}: {} rows, {} pages ({}), {} times",
            it.rows, it.buffers, it.path, it.times
        );
    }
    assert!(
        known.contains_key("queue.insight_lanes") && known.len() > 40,
        "{} statements",
        known.len()
    );
    let faults: Vec<String> = known
        .iter()
        .flat_map(|(name, it)| {
            it.faults.iter().take(2).map(move |fault| format!("{name}: {fault}"))
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
