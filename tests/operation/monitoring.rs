//! The Prometheus and Grafana files of `deploy/` work: a real Prometheus scrapes a real fleet, each
//! alert fires when its condition occurs and clears afterwards, and every panel shows data.

use std::time::{Duration, Instant};

use deploy::dashboard::dashboards;
use deploy::files;

use crate::harness::http::free_address;
use crate::harness::{Database, Program, Prometheus, Worker, eventually};

/// Replaces every range in the rules, such as `[5m]` or `[1d]`. An alert clears only after its
/// range has passed, so the range must be short.
const RANGE: &str = "15s";

/// Interval between two batches of work.
const STEP: Duration = Duration::from_millis(300);

/// Lower thresholds for values that the tests cannot produce by moving rows into the past.
const THRESHOLDS: &[(&str, &str)] =
    &[("(pgmill_horizon_age_seconds) > 3600", "(pgmill_horizon_age_seconds) > 2")];

/// Returns the rules of deploy/ with short times: every `for:` is 500ms, every range `RANGE`, and
/// some thresholds are lower. Expressions are otherwise unchanged.
fn hurried() -> Vec<(String, String)> {
    let mut rules = files("deploy/prometheus/rules", ".yml").unwrap();
    let (mut waits, mut ranges) = (0, 0);
    for (_, text) in &mut rules {
        let mut out = String::new();
        for line in text.lines() {
            if let Some((indent, _)) =
                line.split_once("for: ").filter(|(it, _)| it.trim().is_empty())
            {
                waits += 1;
                out += &format!("{indent}for: 500ms\n");
                continue;
            }
            let mut parts = line.split('[');
            out += parts.next().unwrap();
            for part in parts {
                ranges += 1;
                out += &format!("[{RANGE}]{}", part.split_once(']').unwrap().1);
            }
            out.push('\n');
        }
        *text = out;
    }
    for (from, to) in THRESHOLDS {
        let (_, text) = rules.iter_mut().find(|(_, text)| text.contains(from)).unwrap();
        *text = text.replace(from, to);
    }
    println!("replaced {waits} waits, {ranges} ranges, {} thresholds", THRESHOLDS.len());
    assert!(waits > 10 && ranges > 5, "the replacement has no effect");
    rules
}

/// Starts a worker with short intervals, which detects and reports everything within moments.
fn worker(database: &Database, address: &str, more: &[&str]) -> Worker {
    let flags = ["--readers", "4", "--poll-interval", "50ms", "--heartbeat-interval", "200ms"];
    let reported = ["--http", address, "--fleet-metrics-interval", "300ms"];
    Worker::start(database, &[&flags[..], &reported, more].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_when_their_condition_occurs_and_clear_afterwards() {
    let database = Database::new().await;
    let (one, two) = (free_address(), free_address());
    let Some(prometheus) = Prometheus::start(&[&one, &two], &hurried()).await else { return };
    // No worker exists yet.
    prometheus.until("PgmillNoWorkers", true).await;
    let start = |address: &String| worker(&database, address, &["--no-scheduler"]);
    let mut workers = [(start(&one), &one), (start(&two), &two)];
    prometheus.until("PgmillNoWorkers", false).await;
    prometheus.until("PgmillWorkerDown", false).await;
    prometheus.until("PgmillFleetScrapeFailed", false).await;

    failures(&database, &prometheus).await;
    stalled_queue(&database, &prometheus).await;
    full_readers_and_a_paused_queue(&database, &prometheus).await;
    mistaken_comment(&database, &prometheus).await;

    // A worker dies while it holds a task.
    database.execute("SELECT pg_advisory_lock(1)").await;
    let held = database.enqueue("SELECT pg_advisory_xact_lock(1)", ", queue => 'held'").await;
    database.until_waiting_for_lock(held).await;
    let pid: i32 = database
        .value("SELECT s.pid FROM mill.tasks t JOIN mill.worker_starts s ON s.id = t.claimed_by")
        .await;
    let dead = workers.iter_mut().find(|(worker, _)| worker.pid().cast_signed() == pid).unwrap();
    dead.0.kill();
    prometheus.until("PgmillTasksReclaimed", true).await;
    prometheus.until("PgmillWorkerDown", true).await;
    *dead = (start(dead.1), dead.1);
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(held).await, "succeeded");
    prometheus.until("PgmillWorkerDown", false).await;
    prometheus.until("PgmillTasksReclaimed", false).await;

    // A transaction is left open.
    prometheus.until("PgmillHorizonPinned", false).await;
    let other = database.connect().await;
    other.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.unwrap();
    prometheus.until("PgmillHorizonPinned", true).await;
    other.batch_execute("COMMIT").await.unwrap();
    prometheus.until("PgmillHorizonPinned", false).await;

    // A schedule is due, and no worker ticks. A minute would have to pass, so move the schedule
    // into the past.
    database
        .execute(
            "SELECT mill.set_schedule('s', 'daily(03:15)', 'SELECT 1');
             UPDATE mill.schedules SET next_fire_at = now() - interval '10 min', next_tick_at = now() - interval '10 min'",
        )
        .await;
    prometheus.until("PgmillScheduleMissed", true).await;
    let third = worker(&database, &free_address(), &[]);
    prometheus.until("PgmillScheduleMissed", false).await;

    // All workers die.
    drop((third, workers));
    prometheus.until("PgmillNoWorkers", true).await;
    let _again = worker(&database, &one, &[]);
    prometheus.until("PgmillNoWorkers", false).await;
}

/// Tasks fail, and a run.
async fn failures(database: &Database, prometheus: &Prometheus) {
    let task = "[{\"name\": \"divide\", \"statement\": \"SELECT 1 / 0\", \"attempts\": 1}]";
    database.execute(&format!("SELECT mill.set_job('broken', '{task}')")).await;
    database.execute("SELECT mill.start_run(ARRAY['broken'])").await;
    prometheus.until("PgmillRunsFailing", true).await;
    // A run takes longer than its deadline, because its task waits for a lock.
    let task = "[{\"name\": \"wait\", \"statement\": \"SELECT pg_advisory_xact_lock(77)\"}]";
    let late = "options => '{\"deadline\": \"1 ms\"}'";
    database
        .execute(&format!(
            "SELECT pg_advisory_lock(77); SELECT mill.set_job('late', '{task}', {late});
             SELECT mill.start_run(ARRAY['late'])"
        ))
        .await;
    prometheus.until("PgmillRunLate", true).await;
    database.execute("SELECT pg_advisory_unlock(77)").await;
    prometheus.until("PgmillRunLate", false).await;
    eventually("PgmillFailureRatio fires", async || {
        database.enqueue("SELECT 1 / 0", ", max_attempts => 1, queue => 'failing'").await;
        database.enqueue("SELECT 1", ", queue => 'failing'").await;
        prometheus.firing().await.iter().any(|name| name == "PgmillFailureRatio")
    })
    .await;
    prometheus.until("PgmillFailureRatio", false).await;
    prometheus.until("PgmillRunsFailing", false).await;
    assert!(!prometheus.firing().await.iter().any(|name| name == "PgmillQueueStalled"));
}

/// All workers drain, and a task has been due for an hour.
async fn stalled_queue(database: &Database, prometheus: &Prometheus) {
    database
        .execute(
            "SELECT mill.drain(id) FROM mill.workers;
             CREATE TABLE draining AS SELECT id, heartbeat FROM mill.workers",
        )
        .await;
    // The answer to a heartbeat tells a worker to drain. Until then it would run the task.
    let drained = "SELECT bool_and(w.heartbeat >= d.heartbeat + 2) FROM draining d JOIN mill.workers w USING (id)";
    eventually("every worker drains", async || database.value(drained).await).await;
    let late = ", queue => 'stalled', due_at => now() - interval '1 hour'";
    let id = database.enqueue("SELECT 1", late).await;
    prometheus.until("PgmillQueueStalled", true).await;
    database.execute("SELECT mill.drain(id, false) FROM mill.workers").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    prometheus.until("PgmillQueueStalled", false).await;
}

/// Every reader has a task, more tasks wait, and the queue is paused.
async fn full_readers_and_a_paused_queue(database: &Database, prometheus: &Prometheus) {
    database.execute("SELECT pg_advisory_lock(2)").await;
    database.enqueue_many(12, "SELECT pg_advisory_xact_lock_shared(2)").await;
    prometheus.until("PgmillReadersSaturated", true).await;
    database.execute("SELECT mill.pause('default')").await;
    prometheus.until("PgmillQueuePaused", true).await;
    database.execute("SELECT pg_advisory_unlock(2)").await;
    prometheus.until("PgmillReadersSaturated", false).await;
    database.execute("SELECT mill.resume('default')").await;
    prometheus.until("PgmillQueuePaused", false).await;
}

/// An annotation with an invalid time, and then with a valid one.
async fn mistaken_comment(database: &Database, prometheus: &Prometheus) {
    let comment = async |text: &str| {
        database.execute(&format!("COMMENT ON PROCEDURE nightly() IS '{text}'")).await;
        Program::pgmill(database, &["schedule", "sync"]).run().await;
    };
    database.execute("CREATE PROCEDURE nightly() LANGUAGE sql AS 'SELECT 1'").await;
    comment("@daily(25:00)").await;
    prometheus.until("PgmillScheduleError", true).await;
    comment("@daily(03:15)").await;
    prometheus.until("PgmillScheduleError", false).await;
}

/// Creates tasks of every kind and outcome, in several queues and priorities; a job; and a table
/// that triggers a schedule.
async fn declare_work(database: &Database) {
    database
        .execute(
            "SELECT mill.set_max_running('queue', 'capped', 2);
             SELECT mill.set_shared_commit('short', '20 ms');
             CREATE TABLE staging (n integer);
             SELECT mill.set_job('load', '[{\"name\": \"extract\", \"statement\": \"SELECT 1\"},
                 {\"name\": \"load\", \"statement\": \"SELECT pg_sleep(0.05)\", \"after\": [\"extract\"]}]');
             SELECT mill.set_job('broken', '[{\"name\": \"divide\", \"statement\": \"SELECT 1 / 0\", \"attempts\": 1}]');
             SELECT mill.set_schedule('nightly', 'daily(03:15)', 'SELECT 1');
             SELECT mill.set_schedule('often', 'every(2 seconds)', 'SELECT pg_sleep(0.3)');
             SELECT mill.set_schedule('rows', 'trigger(table: staging, rows: 5, every: 1 s)', 'SELECT 1')",
        )
        .await;
}

/// Enqueues every kind of task, and periodically more than the fleet can run at once, so that a
/// backlog exists.
async fn work(database: &Database, step: u32) {
    let tasks = 4 + 400 * u32::from(step % 100 == 40);
    database
        .execute(&format!(
            "SELECT mill.enqueue_many(array_fill('SELECT pg_sleep(0.2 * random())'::text, ARRAY[{tasks}]),
                 queue => 'etl');
             SELECT mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[8]), queue => 'short');
             SELECT mill.enqueue('SELECT pg_sleep(0.3)', queue => 'capped');
             SELECT mill.enqueue('SELECT pg_sleep(0.05)', queue => 'reports', priority => p)
                 FROM unnest(ARRAY['low', 'normal', 'high', 'critical', 'reserved']::mill.priority[]) AS p
                 WHERE random() < 0.5"
        ))
        .await;
    if step.is_multiple_of(5) {
        database.enqueue("SELECT 1 / 0", ", queue => 'reports', max_attempts => 1").await;
        let again = "DO $$ BEGIN IF current_setting('mill.attempt') = '1' THEN
            RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END IF; END $$";
        database.enqueue(again, ", queue => 'etl', retry_interval => '1 s'").await;
        database.execute("SELECT mill.start_run(ARRAY['load'])").await;
    }
    if step % 20 == 10 {
        database.execute("SELECT mill.start_run(ARRAY['broken'])").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_shows_something_of_a_busy_fleet() {
    let database = Database::new().await;
    let addresses = [free_address(), free_address(), free_address()];
    let targets: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let Some(prometheus) = Prometheus::start(&targets, &hurried()).await else { return };
    let mut workers: Vec<Worker> = targets.iter().map(|at| worker(&database, at, &[])).collect();
    declare_work(&database).await;
    let dashboards = dashboards().unwrap();
    let mut silent: Vec<(String, String)> = Vec::new();
    for dashboard in &dashboards {
        for panel in &dashboard.panels {
            let place = format!("{}: {}", dashboard.uid, panel.title);
            silent.extend(panel.targets.iter().map(|it| (place.clone(), it.query(RANGE))));
        }
    }
    let (all, begun, mut step, mut killed) = (silent.len(), Instant::now(), 0, false);
    let mut seen = 0;
    let waited = eventually("every expression returns a number", async || {
        if begun.elapsed() >= STEP * step {
            step += 1;
            work(&database, step).await;
        }
        if !killed {
            killed = true;
            workers[2].kill();
            workers[2] = worker(&database, targets[2], &[]);
        }
        let mut left = Vec::new();
        for (place, query) in silent.drain(..) {
            let series = prometheus.query(&query).await;
            if !series.iter().any(|(_, points)| points.iter().any(|(_, value)| value.is_finite())) {
                left.push((place, query));
            }
        }
        silent = left;
        if silent.len() != seen {
            seen = silent.len();
            println!("{seen} of {all} return nothing: {silent:#?}");
        }
        silent.is_empty()
    })
    .await;
    println!(
        "{all} expressions returned data after {:.1} s and {step} steps",
        waited.as_secs_f64()
    );
}
