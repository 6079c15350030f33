//! The cost of a task and of an idle worker. The tests count statements and round trips instead of
//! time, so their bounds hold on any machine. `claim.rs` counts the buffers of a claim.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pgmill_worker::Worker as Library;
use queue::enqueue::{NewTask, TaskOptions, enqueue};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::exposition::{parse, sum};
use crate::harness::http::{free_address, get};
use crate::harness::receiver::Receiver;
use crate::harness::{Database, Embedded, PrivateDatabase, Worker, amount, eventually, open_url};

const INSERT: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";

/// Forwards bytes, and counts how often the client begins to send. The client waits for replies in
/// between, so each beginning is a round trip.
async fn count_round_trips(url: &str) -> (String, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (_, rest) = url.rsplit_once('@').unwrap();
    let upstream = rest.split_once('/').unwrap().0.to_owned();
    let through = url.replace(&upstream, &format!("127.0.0.1:{port}"));
    let trips = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&trips);
    #[expect(clippy::disallowed_methods, reason = "a test ends with its runtime")]
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (upstream, counted) = (upstream.clone(), Arc::clone(&counted));
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(upstream).await else { return };
                // Otherwise the proxy adds 40 ms to some round trips, and the tasks are not short.
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let forth = async {
                    let mut bytes = vec![0; 1 << 20];
                    while let Ok(n @ 1..) = from_client.read(&mut bytes).await {
                        counted.fetch_add(1, Ordering::Relaxed);
                        to_server.write_all(&bytes[..n]).await.unwrap();
                    }
                };
                let _ = tokio::join!(forth, copy(&mut from_server, &mut to_client));
            });
        }
    });
    (through, trips)
}

#[tokio::test(flavor = "multi_thread")]
async fn short_tasks_take_less_than_two_round_trips_each_and_in_shared_commits_a_fraction() {
    round_trips_are_few(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tracing_takes_no_round_trip() {
    let receiver = Receiver::start().await;
    let endpoint = receiver.url("");
    round_trips_are_few(&["--otlp-endpoint", &endpoint, "--trace-comments"]).await;
    assert!(!receiver.received().is_empty());
}

async fn round_trips_are_few(flags: &[&str]) {
    let tasks: u32 = amount(200, 400);
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
    let (through, trips) = count_round_trips(&database.task_url()).await;
    let flags = [&["--readers", "1", "--task-url", &through], flags].concat();
    let _worker = Worker::start(&database, &flags);
    for (setting, max_trips) in [("NULL", tasks * 3 / 2), ("'100ms'", tasks / 4)] {
        database.execute(&format!("SELECT mill.set_shared_commit('default', {setting})")).await;
        // Now the session is open, and the workers have read the setting.
        database.enqueue_many(tasks.cast_signed(), INSERT).await;
        database.until_empty().await;
        let mut taken = u32::MAX;
        // While other tests use the processors, tasks take longer, so that chains and shared commits are
        // small. So tries until they have been idle for a moment.
        for _ in 0..200 {
            let before = trips.load(Ordering::Relaxed);
            database.enqueue_many(tasks.cast_signed(), INSERT).await;
            database.until_empty().await;
            taken = taken.min(trips.load(Ordering::Relaxed) - before);
            if taken <= max_trips {
                break;
            }
        }
        println!("shared commits {setting}: {taken} round trips for {tasks} tasks");
        assert!(
            taken <= max_trips,
            "shared commits {setting}: {taken} round trips for {tasks} tasks"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_takes_two_round_trips_and_those_of_its_handler() {
    const CALLS: u32 = 40;
    let database = Database::new().await;
    let (through, trips) = count_round_trips(&database.task_url()).await;
    let builder = Library::builder().handler("nothing", |_| Box::pin(async { Ok(()) })).handler(
        "select",
        |call| {
            Box::pin(async move {
                call.transaction().query_one("SELECT $1::int", &[&1]).await?;
                call.transaction().query_one("SELECT $1::int", &[&2]).await?;
                Ok(())
            })
        },
    );
    let _worker = Embedded::start_at(&database.worker_url(), &through, builder);
    database.run("CALL nothing($1)", ", params => '[1]'").await;
    for (name, each) in [("nothing", 2), ("select", 5)] {
        let before = trips.load(Ordering::Relaxed);
        let sql = "SELECT mill.enqueue($1, params => '[1]') FROM generate_series(1, $2)";
        let calls = i32::try_from(CALLS).unwrap();
        database.rows(sql, &[&format!("CALL {name}($1)"), &calls]).await;
        database.until_empty().await;
        let taken = trips.load(Ordering::Relaxed) - before;
        println!("{name}: {taken} round trips for {CALLS} calls");
        // A few more, because the proxy may read a message in two parts.
        assert!(taken <= CALLS * each + CALLS / 4, "{name}: {taken} round trips");
        assert!(taken >= CALLS * each, "{name}: {taken} round trips: the test counts too few");
    }
}

#[tokio::test]
async fn the_history_row_of_an_attempt_costs_no_function_call() {
    let database = Database::new().await;
    let plan = async |finished_at: &str| -> String {
        let insert = format!(
            "EXPLAIN INSERT INTO mill.attempts SELECT r.* FROM mill.tasks t,
                mill.attempt_row(t, {finished_at}, 'succeeded', true, 0, NULL) r"
        );
        let lines = database.rows(&insert, &[]).await;
        lines.iter().map(|line| line.get::<_, &str>(0)).collect::<Vec<_>>().join("\n")
    };
    let inlined = plan("now()").await;
    assert!(!inlined.contains("Function Scan"), "{inlined}");
    // Counter-check: with a volatile argument the planner calls the function, and the plan shows
    // the call.
    let called = plan("clock_timestamp()").await;
    assert!(called.contains("Function Scan"), "{called}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_writes_little_wal() {
    let tasks: i64 = amount(600, 2000);
    // Without full page images, because they are written once per checkpoint and not per task.
    let settings = [("full_page_writes", "off"), ("autovacuum", "off"), ("fsync", "off")];
    let private = PrivateDatabase::new(&settings).await;
    let database = &private.database;
    database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
    // The start of the worker is not counted.
    let _worker = Worker::start(database, &["--readers", "8"]);
    assert_eq!(database.run("SELECT 1", "").await.outcome, "succeeded");
    database.execute("SELECT mill.pause('default')").await;
    database.enqueue_many(tasks.try_into().unwrap(), INSERT).await;
    let written = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let before: i64 = database.value(written).await;
    database.execute("SELECT mill.resume('default')").await;
    database.until_empty().await;
    let per_task = (database.value::<i64>(written).await - before) / tasks;
    println!("{per_task} bytes of WAL per task, with its one row of effect");
    assert!(per_task <= 1400, "{per_task} bytes of WAL per task");
}

/// Returns a metric of a worker, summed over its labels; 0 if the worker does not answer yet.
async fn metric(address: &str, name: &str) -> f64 {
    let answer = get(address, "/metrics").await;
    answer.map_or(0.0, |answer| sum(&parse(&answer.body), name, &[]))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_sends_a_statement_a_second() {
    const HEARTBEATS: f64 = 4.0;
    let private = PrivateDatabase::new(&[("autovacuum", "off"), ("fsync", "off")]).await;
    let database = &private.database;
    let address = free_address();
    let _worker = Worker::start(database, &["--readers", "4", "--http", &address]);
    let heartbeats = async || metric(&address, "pgmill_heartbeats_total").await;
    // Count from a session in another database, so that the counting itself is not counted.
    let elsewhere = open_url(&private.cluster.url("postgres")).await;
    let statements = async || -> i64 {
        let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = $1";
        elsewhere.query_one(sql, &[&database.name()]).await.unwrap().get(0)
    };
    // Idle backends report their statistics up to ten seconds late.
    eventually("the worker is idle", async || heartbeats().await >= 4.0).await;
    let (before, heartbeats_before) = (statements().await, heartbeats().await);
    eventually("more heartbeats were sent", async || {
        heartbeats().await >= heartbeats_before + HEARTBEATS
    })
    .await;
    let sent = statements().await - before;
    // A worker sends one heartbeat and four polls in five seconds and, because of --http, three
    // queries for gauges every 15 s.
    println!("{sent} statements in {HEARTBEATS} heartbeats");
    assert!(sent <= 5 * 4 + 2 * 3 + 3, "{sent} statements in {HEARTBEATS} heartbeats");
    assert!(sent >= 4, "{sent} statements: the test proves nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_and_its_notification_take_one_round_trip() {
    let database = Database::new().await;
    let (through, trips) = count_round_trips(&database.url()).await;
    let client = open_url(&through).await;
    let task = NewTask { statement: "SELECT 1".to_owned(), ..NewTask::default() };
    let mut fewest = u32::MAX;
    // On a busy machine the proxy may read the two messages one after the other.
    for _ in 0..200 {
        let before = trips.load(Ordering::Relaxed);
        enqueue(&client, &task, &TaskOptions::default(), None).await.unwrap();
        fewest = fewest.min(trips.load(Ordering::Relaxed) - before);
        if fewest == 1 {
            break;
        }
    }
    assert_eq!(fewest, 1);
}

/// A fleet of 6,401 workers, of which one is real. The others share a session.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_a_large_fleet_claims_after_few_notifications() {
    const NOTIFICATIONS: u32 = 40;
    let database = Database::new().await;
    database
        .execute(
            "SELECT pg_advisory_lock_shared(7);
             INSERT INTO mill.workers (id, session_pid, session_started_at, readers, heartbeat_interval, orphan_timeout)
                 SELECT gen_random_uuid(), 7, now(), 1, '5 s', '10 min' FROM generate_series(1, 6400)",
        )
        .await;
    let address = free_address();
    let flags = ["--readers", "1", "--poll-interval", "50ms", "--orphan-timeout", "10m"];
    let _worker = Worker::start(&database, &[&flags[..], &["--http", &address]].concat());
    // From now on the worker knows the lane, and a notification makes it claim from it.
    assert_eq!(database.run("SELECT 1", "").await.outcome, "succeeded");
    let claims = async || metric(&address, "pgmill_claim_duration_seconds_count").await;
    let mut before = -1.0;
    eventually("the worker is idle", async || {
        database.until_next_poll().await;
        std::mem::replace(&mut before, claims().await) == before
    })
    .await;
    for _ in 0..NOTIFICATIONS {
        database.execute("NOTIFY mill, 'work'").await;
        database.until_next_poll().await;
    }
    let sent = claims().await - before;
    println!("{sent} claims after {NOTIFICATIONS} notifications");
    // One of a hundred notifications makes it claim, perhaps a few times.
    assert!(sent < f64::from(NOTIFICATIONS / 2), "{sent} claims");
    // A task needs no notification: a poll finds it.
    assert_eq!(database.run("SELECT 2", "").await.outcome, "succeeded");
}

/// Statements of a worker that the simulation sends, too: the name in the server's log, the part of
/// the worker and the kind in the simulation.
const SIMULATED: [(&str, &str, &str); 10] = [
    ("queue.register", "heartbeat", "register"),
    ("queue.heartbeat", "heartbeat", "heartbeat"),
    ("queue.poll", "poll", "poll"),
    ("queue.unknown_claims", "claimer", "release_unknown"),
    ("queue.lanes", "claimer", "lanes"),
    ("queue.claim", "claimer", "claim"),
    ("worker.listen", "listener", "listen"),
    ("worker.begin", "reader", "execute"),
    ("queue.complete_task", "reader", "complete"),
    ("queue.complete_unreported", "reader", "complete"),
];

/// Statements of a worker that the simulation leaves out: those of new sessions and of the start,
/// those that follow another statement in the same message, and those of schedules.
const NOT_SIMULATED: [&str; 12] = [
    "queue.schema_owner",
    "queue.schema_version",
    "queue.server",
    "queue.login_rights",
    "queue.citus_installed",
    "queue.detect_crash",
    "queue.prepare_history",
    "queue.repair_sequences",
    "queue.watch_lanes",
    "worker.identity",
    "worker.commit",
    "schedule.",
];

/// Part and kind of a statement, as in the simulation.
type Sent = (&'static str, &'static str);

/// Returns which statement follows which in each part. Of the claimer's reconciliations, only the
/// first counts, because the others depend on the time.
fn successors(order: impl IntoIterator<Item = Sent>) -> BTreeSet<(Sent, &'static str)> {
    let mut last = BTreeMap::new();
    let mut found = BTreeSet::new();
    for (part, statement) in order {
        if statement == "release_unknown" && last.contains_key(part) {
            continue;
        }
        let previous = last.insert(part, statement).unwrap_or("start");
        found.insert(((part, previous), statement));
    }
    found
}

/// Returns the simulated statements in the log of a server whose lines begin with the name of the
/// session.
fn logged(log: &str) -> Vec<Sent> {
    let executed =
        log.lines().filter(|line| line.starts_with("pgmill ") && line.contains(" worker "));
    let named = executed.filter_map(|line| {
        let (_, statement) = line.split_once(" ms  ")?;
        let (_, name) = statement
            .strip_prefix("execute")
            .or(statement.strip_prefix("statement"))?
            .split_once("/* ")?;
        name.split(' ').next()
    });
    named
        .filter(|name| !NOT_SIMULATED.iter().any(|left_out| name.starts_with(left_out)))
        .map(|name| {
            let simulated = SIMULATED.iter().find(|(logged, ..)| *logged == name);
            let (_, part, statement) =
                simulated.unwrap_or_else(|| panic!("{name} is not simulated"));
            (*part, *statement)
        })
        .collect()
}

#[tokio::test]
async fn a_worker_sends_its_statements_in_the_order_of_the_simulation() {
    let logging =
        [("log_min_duration_statement", "0"), ("log_line_prefix", "%a: "), ("fsync", "off")];
    let private = PrivateDatabase::new(&logging).await;
    let database = &private.database;
    let log = || std::fs::read_to_string(private.cluster.log()).unwrap();
    // The installation of the schema fills most of the log, which is read often.
    let installed = log().len();
    let _worker = Worker::start(database, &["--readers", "1"]);
    let order = || logged(&log()[installed..]);
    let count = |statement: &str| order().iter().filter(|(_, sent)| *sent == statement).count();
    let until = async |what: &str, statement: &str, least: usize| {
        eventually(what, async || count(statement) >= least).await;
    };
    until("the worker is idle", "poll", 2).await;
    for tasks in [1, 3, 6, 9] {
        let enqueue = "SELECT mill.enqueue('SELECT pg_sleep(0.2)', queue => 'queue-' || n % 3)
            FROM generate_series(1, $1) AS n";
        database.rows(enqueue, &[&tasks]).await;
        eventually("the tasks have ended", async || {
            database.value::<bool>("SELECT NOT EXISTS (SELECT FROM mill.tasks)").await
        })
        .await;
    }
    until("the worker is idle again", "poll", count("poll") + 8).await;
    until("there were heartbeats", "heartbeat", 3).await;
    let options = simulation::Options {
        seed: 1,
        workers: 1,
        readers: 1,
        seconds: 3600,
        tasks_per_second: 0.2,
        faults: simulation::Faults::None,
        bug: None,
        trace: false,
    };
    let simulated = simulation::statements_in_order(options).into_iter();
    // The server of the test has no schedules, and its tasks are too short for a probe.
    let simulated = simulated.filter(|(_, statement)| !["tick", "probe"].contains(statement));
    assert_eq!(successors(order()), successors(simulated));
}
