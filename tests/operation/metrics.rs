//! The worker exports Prometheus metrics in a stable format with stable names, and reports liveness
//! and readiness.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use cluster::Mode;
use rustix::process::Signal;

use crate::harness::exposition::{Families, Family, parse, sum};
use crate::harness::http::{free_address, get};
use crate::harness::login::Login;
use crate::harness::{Database, PrivateDatabase, Worker, amount, eventually, until_shared};

/// Returns the metrics once the condition holds.
async fn metrics(address: &str, what: &str, holds: impl Fn(&Families) -> bool) -> Families {
    let mut families = Families::new();
    eventually(what, async || {
        if let Some(answer) = get(address, "/metrics").await {
            assert_eq!(answer.status, 200);
            families = parse(&answer.body);
        }
        holds(&families)
    })
    .await;
    families
}

async fn until_status(address: &str, path: &str, status: u16) -> String {
    let mut body = String::new();
    eventually(&format!("{path} returns {status}"), async || match get(address, path).await {
        Some(answer) => {
            body = answer.body;
            answer.status == status
        }
        None => false,
    })
    .await;
    body
}

const RETRIED: &str = "DO $$ BEGIN IF current_setting('mill.attempt') = '1' THEN
    RAISE EXCEPTION 'again' USING ERRCODE = '22000'; END IF; END $$";

/// Starts a worker that has produced every kind of event; returns its address.
async fn busy_worker(database: &Database) -> (Worker, String) {
    let address = free_address();
    database
        .execute(
            "SELECT mill.set_max_running('queue', 'capped', 7); SELECT mill.set_target('dwh');
             SELECT mill.set_schedule('s', 'monthly(1, 00:00)', statement => 'SELECT 1');
             UPDATE mill.schedules SET next_fire_at = to_timestamp(4102444800), next_tick_at = to_timestamp(4102444800),
                 last_success_at = to_timestamp(7)",
        )
        .await;
    let worker = Worker::start(database, &["--readers", "1", "--http", &address]);
    assert_eq!(database.run("SELECT 1", "").await.outcome, "succeeded");
    assert_eq!(database.run("SELECT 1 / 0", ", max_attempts => 1").await.outcome, "failed");
    assert_eq!(database.run(RETRIED, ", retry_interval => '0'").await.outcome, "succeeded");
    (worker, address)
}

fn all_seen(families: &Families) -> bool {
    let succeeded = [("outcome", "succeeded")];
    sum(families, "pgmill_tasks_finished_total", &succeeded) >= 2.0
        && families.contains_key("pgmill_queue_tasks")
        && families.contains_key("pgmill_pool_connections")
        && sum(families, "pgmill_claims_total", &[("result", "empty")]) > 0.0
        && sum(families, "pgmill_heartbeats_total", &[("result", "ok")]) > 0.0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_only_its_role_publishes_the_metrics_of_the_fleet() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_target('dwh')").await;
    let control = Login::new(&database, "worker", "mill_worker").await;
    let tasks = Login::new(&database, "other", "").await;
    let address = free_address();
    let mut worker =
        Worker::start_at(&control.url(), &["--task-url", &tasks.url(), "--http", &address]);
    let published = |seen: &Families| sum(seen, "pgmill_fleet_scrape_success", &[]) > 0.5;
    let seen = metrics(&address, "the metrics of the fleet are published", published).await;
    let target = seen["pgmill_target_held_back"].samples.iter().map(|sample| sample.value);
    assert_eq!(target.collect::<Vec<_>>(), [0.0]);
    assert!(!worker.log().contains("duty failed"), "{}", worker.log());
    assert!(worker.terminate().await.success());
    control.drop().await;
    tasks.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_move_with_what_the_worker_does() {
    let database = Database::new().await;
    database.enqueue("SELECT 1", ", queue => 'later', due_at => now() + interval '1 day'").await;
    let (mut worker, address) = busy_worker(&database).await;
    let seen = metrics(&address, "everything is counted", all_seen).await;
    let expected = [
        ("pgmill_tasks_finished_total", &[("queue", "default"), ("outcome", "succeeded")][..], 2.0),
        ("pgmill_tasks_finished_total", &[("outcome", "failed")], 1.0),
        ("pgmill_tasks_finished_total", &[("outcome", "retried")], 1.0),
        ("pgmill_task_errors_total", &[("sqlstate_class", "22")], 2.0),
        ("pgmill_claims_total", &[("queue", "default"), ("result", "claimed")], 4.0),
        ("pgmill_task_wait_seconds_count", &[("queue", "default")], 4.0),
        ("pgmill_task_run_seconds_count", &[("queue", "default"), ("outcome", "succeeded")], 2.0),
        ("pgmill_task_run_seconds_count", &[("outcome", "retried")], 1.0),
        ("pgmill_fenced_attempts_total", &[], 0.0),
        ("pgmill_tasks_reclaimed_total", &[], 0.0),
        ("pgmill_readers", &[], 1.0),
        ("pgmill_readers_busy", &[], 0.0),
        ("pgmill_draining", &[], 0.0),
        ("pgmill_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0),
        ("pgmill_expected_schema_version", &[], f64::from(queue::schema::VERSION)),
        ("pgmill_queue_tasks", &[("queue", "later"), ("state", "scheduled")], 1.0),
        ("pgmill_queue_tasks", &[("queue", "later"), ("state", "pending")], 0.0),
        ("pgmill_workers", &[("status", "alive")], 1.0),
        ("pgmill_queue_max_running", &[("queue", "capped")], 7.0),
        ("pgmill_queue_max_running", &[], 7.0),
        ("pgmill_runs", &[], 0.0),
        ("pgmill_horizon_age_seconds", &[("kind", "prepared")], 0.0),
        ("pgmill_schema_version", &[], f64::from(queue::schema::VERSION)),
        ("pgmill_fleet_scrape_success", &[], 1.0),
        ("pgmill_schedules", &[("status", "enabled")], 1.0),
        ("pgmill_schedule_overdue_seconds", &[], 0.0),
        ("pgmill_schedule_next_fire_timestamp_seconds", &[("schedule", "s")], 4_102_444_800.0),
        ("pgmill_schedule_last_success_timestamp_seconds", &[("schedule", "s")], 7.0),
        ("pgmill_schedule_fires_total", &[], 0.0),
    ];
    for (name, labels, value) in expected {
        assert!((sum(&seen, name, labels) - value).abs() < 1e-9, "{name} {labels:?}: {seen:#?}");
    }
    assert!(sum(&seen, "pgmill_heartbeats_total", &[("result", "ok")]) >= 1.0);
    let ready = sum(&seen, "pgmill_history_partitions_ahead_seconds", &[]) / 86_400.0;
    assert!(ready > 6.9 && ready <= 8.0, "history is ready for {ready} days");
    assert!(sum(&seen, "process_resident_memory_bytes", &[]) > 1e6);

    database.execute("SELECT pg_advisory_lock(1)").await;
    let held = database.enqueue("SELECT pg_advisory_xact_lock(1)", "").await;
    database.until_state(held, "running").await;
    let busy = |seen: &Families| sum(seen, "pgmill_readers_busy", &[]) > 0.5;
    metrics(&address, "a reader is busy", busy).await;
    // The worker ends only after its task. Until then it is not ready, reports that it is draining,
    // and is alive.
    worker.signal(Signal::TERM);
    assert_eq!(until_status(&address, "/readyz", 503).await, "draining\n");
    let draining = |seen: &Families| sum(seen, "pgmill_draining", &[]) > 0.5;
    metrics(&address, "it drains", draining).await;
    until_status(&address, "/livez", 200).await;
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert!(worker.ended().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_keep_to_the_text_format_and_to_the_naming_rules() {
    let database = Database::new().await;
    let (_worker, address) = busy_worker(&database).await;
    let seen = metrics(&address, "everything is counted", all_seen).await;
    let answer = get(&address, "/metrics").await.unwrap();
    assert!(answer.headers.contains("content-type: text/plain; version=0.0.4"), "{answer:?}");
    for (name, family) in &seen {
        assert!(name.starts_with("pgmill_") || name.starts_with("process_"), "{name}");
        assert_eq!(family.kind == "counter", name.ends_with("_total"), "{name}");
        for ending in ["_ms", "_milliseconds", "_minutes", "_kb", "_mb", "_percent"] {
            assert!(!name.ends_with(ending), "{name} is not in a base unit");
        }
        assert!(family.kind != "histogram" || name.ends_with("_seconds"), "{name}");
    }
    promtool(&answer.body);
    assert_eq!(documented(), exported(&seen), "docs/metrics.md against /metrics");
}

/// Checks the text with promtool, if installed.
fn promtool(text: &str) {
    let tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut tool) = tool else { return println!("skipped: promtool is not installed") };
    std::io::Write::write_all(&mut tool.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Name, type and labels of each metric.
type Described = BTreeSet<(String, String, BTreeSet<String>)>;

fn exported(families: &Families) -> Described {
    let described = |(name, family): (&String, &Family)| {
        let labels = family.samples.iter().flat_map(|sample| sample.labels.keys().cloned());
        (name.clone(), family.kind.clone(), labels.filter(|label| label != "le").collect())
    };
    families.iter().map(described).collect()
}

/// Parses the rows of the table: `| `name` | type | `label`, `label` | meaning |`.
fn documented() -> Described {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let quoted = |cell: &str| -> BTreeSet<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, kind, labels, meaning, _] = cells[..] else { return None };
        let name = quoted(name).into_iter().next()?;
        assert!(!meaning.is_empty(), "{name} has no meaning");
        Some((name, kind.to_owned(), quoted(labels)))
    };
    text.lines().filter(|line| line.starts_with("| `")).filter_map(row).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_lost_its_claim_is_counted_as_fenced_and_not_as_finished() {
    for options in ["", ", mode => 'autocommit'"] {
        let (database, address) = (Database::new().await, free_address());
        let flags = ["--readers", "1", "--http", &address, "--poll-interval", "50ms"];
        let _worker = Worker::start(&database, &flags);
        database.execute("SELECT pg_advisory_lock(7)").await;
        let task = database.enqueue("SELECT pg_advisory_xact_lock(7)", options).await;
        database.until_waiting_for_lock(task).await;
        let steal = "UPDATE mill.tasks SET token = gen_random_uuid(); SELECT pg_advisory_unlock(7)";
        database.execute(steal).await;
        assert_eq!(database.outcome(task).await, "succeeded");
        let name = "pgmill_tasks_finished_total";
        let counted = metrics(&address, "the end is counted", |seen| sum(seen, name, &[]) >= 1.0);
        let counted = counted.await;
        assert!((sum(&counted, name, &[]) - 1.0).abs() < 1e-9, "{options}: {counted:#?}");
        let fenced = sum(&counted, "pgmill_fenced_attempts_total", &[]);
        assert!((fenced - 1.0).abs() < 1e-9, "{options}: {fenced}");
        assert_eq!(database.attempts(task).await, "succeeded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_commit_that_lost_a_claim_runs_its_tasks_again_alone() {
    until_shared(async || fenced_in_a_shared_commit().await == 0).await;
}

/// Runs 40 tasks with shared commits, then a task that takes its own claim away the first time it
/// runs, and 40 more. Returns the number of attempts that did not succeed.
async fn fenced_in_a_shared_commit() -> i64 {
    let steals = "DO $$ BEGIN IF nextval('public.times') = 1 THEN
        UPDATE mill.tasks SET token = gen_random_uuid()
        WHERE id = current_setting('mill.task_id')::bigint; END IF; END $$";
    let database = Database::new().await;
    database
        .execute("CREATE SEQUENCE times; SELECT mill.set_shared_commit('default', '100ms')")
        .await;
    let _worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "50ms"]);
    // The batch size grows with short tasks.
    database.enqueue_many(40, "SELECT 1").await;
    database.until_empty().await;
    // In one transaction, so that the worker does not claim the first task alone.
    let tasks = format!(
        "SELECT mill.enqueue($task${steals}$task$, retry_interval => '0.01 s');
         SELECT mill.enqueue('SELECT 1') FROM generate_series(1, 40)"
    );
    database.execute(&tasks).await;
    database.until_empty().await;
    let history =
        "SELECT count(*) FILTER (WHERE final) = 81, count(*) FILTER (WHERE outcome <> 'succeeded')
        FROM mill.attempts";
    let row = &database.rows(history, &[]).await[0];
    assert!(row.get::<_, bool>(0));
    row.get(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn fleet_gauges_follow_the_database() {
    let settings = [("max_prepared_transactions", "5"), ("wal_level", "logical")];
    let private = PrivateDatabase::new(&settings).await;
    let (database, address) = (&private.database, free_address());
    let flags = ["--readers", "1", "--http", &address, "--fleet-metrics-interval", "100ms"];
    let _worker = Worker::start(database, &flags);
    let held =
        |kind, min: f64, name| move |seen: &Families| sum(seen, name, &[("kind", kind)]) > min;
    let (seconds, transactions) = ("pgmill_horizon_age_seconds", "pgmill_horizon_age_transactions");
    let used = |seen: &Families| sum(seen, "pgmill_database_connections", &[]);
    // Besides this session and two of the worker.
    let counted = |seen: &Families| seen.contains_key(transactions) && used(seen) > 3.0;
    let free = metrics(&address, "it is counted", counted).await;
    assert!(sum(&free, seconds, &[("kind", "prepared")]) < 1e-9, "{free:#?}");
    assert!(sum(&free, transactions, &[("kind", "slot")]) < 1e-9, "{free:#?}");
    let max = sum(&free, "pgmill_database_connections_max", &[]);
    assert!(used(&free) < max, "{} of {max} connections", used(&free));
    assert!(sum(&free, "pgmill_attempts_bytes", &[]) > 0.0);
    assert!(sum(&free, "pgmill_database_frozen_age_transactions", &[]) > 0.0);

    database.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')").await;
    database.execute("BEGIN; CREATE TABLE mine (); PREPARE TRANSACTION 'p'").await;
    for _ in 0..5 {
        database.execute("SELECT pg_current_xact_id()").await;
    }
    metrics(&address, "the prepared transaction holds the horizon", held("prepared", 0.0, seconds))
        .await;
    metrics(
        &address,
        "the prepared transaction holds transactions",
        held("prepared", 4.0, transactions),
    )
    .await;
    let slot =
        metrics(&address, "the slot holds the horizon", held("slot", 4.0, transactions)).await;
    assert!(sum(&slot, "pgmill_replication_slot_bytes", &[]) > 0.0, "{slot:#?}");
    database.execute("ROLLBACK PREPARED 'p'").await;
    database.execute("SELECT pg_drop_replication_slot('s')").await;
    let quiet = |seen: &Families| {
        sum(seen, transactions, &[("kind", "slot")]) + sum(seen, seconds, &[("kind", "prepared")])
            < 1e-9
    };
    metrics(&address, "nothing holds the horizon", quiet).await;

    let other = database.connect().await;
    other.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.unwrap();
    metrics(&address, "a session holds the horizon", held("session", 0.5, seconds)).await;
    other.batch_execute("COMMIT").await.unwrap();

    // Remove tomorrow's partition.
    let tomorrow = "DO $$ BEGIN EXECUTE 'DROP TABLE mill.attempts_' ||
        to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD'); END $$";
    database.execute(tomorrow).await;
    let short =
        |seen: &Families| sum(seen, "pgmill_history_partitions_ahead_seconds", &[]) <= 86_400.0;
    metrics(&address, "history ends today", short).await;

    database.execute("SELECT pg_advisory_lock(1)").await;
    database
        .execute(
            "SELECT mill.set_job('j', '[{\"name\": \"t\", \"statement\": \"SELECT pg_advisory_xact_lock(1)\"}]');
             SELECT mill.start_run(ARRAY['j'])",
        )
        .await;
    let in_progress =
        |state| move |seen: &Families| sum(seen, "pgmill_runs", &[("state", state)]) > 0.5;
    metrics(&address, "a run is in progress", in_progress("running")).await;
    eventually("its task is in the queue", async || {
        database.value::<i64>("SELECT count(*) FROM mill.tasks").await == 1
    })
    .await;
    database.until_waiting_for_lock(database.value("SELECT id FROM mill.tasks").await).await;
    database.execute("SELECT mill.cancel_run(id) FROM mill.run_status").await;
    metrics(&address, "its task is still running", in_progress("cancelling")).await;
    database.execute("SELECT pg_advisory_unlock(1)").await;
    let over = |seen: &Families| sum(seen, "pgmill_runs", &[]) < 0.5;
    metrics(&address, "no run is in progress", over).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_workers_exports_the_fleet_metrics() {
    let database = Database::new().await;
    let (first, second) = (free_address(), free_address());
    let intervals = ["--heartbeat-interval", "200ms", "--fleet-metrics-interval", "300ms"];
    let start = |address: &str| {
        let flags = [&["--readers", "1", "--http", address][..], &intervals].concat();
        Worker::start(&database, &flags)
    };
    let mut worker = start(&first);
    let table_wide = |seen: &Families| {
        [
            "pgmill_queue_tasks",
            "pgmill_workers",
            "pgmill_table_bytes",
            "pgmill_fleet_scrape_success",
        ]
        .iter()
        .filter(|name| seen.contains_key(**name))
        .count()
    };
    database.enqueue("SELECT 1", ", due_at => now() + interval '1 day'").await;
    let published = |seen: &Families| table_wide(seen) >= 3;
    metrics(&first, "the first publishes", published).await;
    let _other = start(&second);
    // When the publishing session of the second worker exists and is idle, the worker has tried to
    // get the lock and failed.
    let asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND application_name LIKE 'pgmill publisher %' AND state = 'idle'
        AND query LIKE '%/* %'";
    eventually("both asked", async || database.value::<i64>(asked).await == 2).await;
    // Ask many times: a worker that publishes without the lock would do so shortly after its
    // attempt to get it.
    for _ in 0..amount(30, 100) {
        let seen = metrics(&second, "the second answers", |seen| !seen.is_empty()).await;
        assert_eq!(table_wide(&seen), 0, "{:?}", seen.keys());
    }
    // When the publisher is gone, the other one takes over.
    worker.kill();
    metrics(&second, "the second publishes", published).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_its_database_lives_and_is_not_ready() {
    let mut own = PrivateDatabase::new(&[]).await;
    let address = free_address();
    let intervals = ["--heartbeat-interval", "500ms", "--fleet-metrics-interval", "300ms"];
    let flags = [&["--readers", "1", "--http", &address][..], &intervals].concat();
    let _worker = Worker::start(&own.database, &flags);
    assert_eq!(until_status(&address, "/readyz", 200).await, "ready\n");
    until_status(&address, "/livez", 200).await;
    let scraped = |seen: &Families, success: f64| {
        let known = seen.contains_key("pgmill_fleet_scrape_success");
        known && (sum(seen, "pgmill_fleet_scrape_success", &[]) - success).abs() < 0.5
    };
    metrics(&address, "the fleet is counted", |seen| scraped(seen, 1.0)).await;

    own.cluster.stop(Mode::Fast).unwrap();
    until_status(&address, "/readyz", 503).await;
    until_status(&address, "/livez", 200).await;
    // Meanwhile the reader has tried several times, too.
    let errors =
        |seen: &Families| sum(seen, "pgmill_heartbeats_total", &[("result", "error")]) > 5.0;
    let seen = metrics(&address, "the failed heartbeats are counted", errors).await;
    let reconnects = sum(&seen, "pgmill_db_reconnects_total", &[]);
    assert!(reconnects < 0.5, "{reconnects} reconnects to a server that is down");
    metrics(&address, "the fleet cannot be counted", |seen| scraped(seen, 0.0)).await;

    own.cluster.start_again().unwrap();
    assert_eq!(until_status(&address, "/readyz", 200).await, "ready\n");
    // Of heartbeat, claimer and reader.
    let back = |seen: &Families| sum(seen, "pgmill_db_reconnects_total", &[]) > 2.5;
    metrics(&address, "the worker has reconnected", back).await;
    metrics(&address, "the fleet is counted again", |seen| scraped(seen, 1.0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_is_not_ready_until_it_is_resumed() {
    let database = Database::new().await;
    let address = free_address();
    let _worker = Worker::start(&database, &["--readers", "1", "--http", &address]);
    until_status(&address, "/readyz", 200).await;
    database.execute("SELECT mill.drain(id) FROM mill.workers").await;
    assert_eq!(until_status(&address, "/readyz", 503).await, "draining\n");
    let id = database.enqueue("SELECT 1", "").await;
    until_status(&address, "/livez", 200).await;
    let state = format!("SELECT state::text FROM mill.tasks WHERE id = {id}");
    assert_eq!(database.value::<String>(&state).await, "pending");
    database.execute("SELECT mill.drain(id, false) FROM mill.workers").await;
    until_status(&address, "/readyz", 200).await;
    assert_eq!(database.outcome(id).await, "succeeded");
}
