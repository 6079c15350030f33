//! Tasks interrupted by a worker's death run again, and never concurrently with leftovers of the
//! dead worker.

use std::time::{Duration, Instant};

use proxy::Gate;
use rustix::process::Signal;

use crate::harness::{Database, Worker, eventually};

const WAITS_FOR_LOCK: &str = "SELECT pg_advisory_xact_lock_shared(1)";
const LEAVES_A_MARK: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
    SELECT pg_advisory_xact_lock_shared(1)";

/// Creates a database in which [`WAITS_FOR_LOCK`] waits until [`release_lock`].
async fn database_with_lock() -> Database {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (task bigint); SELECT pg_advisory_lock(1)").await;
    database
}

async fn release_lock(database: &Database) {
    database.execute("SELECT pg_advisory_unlock(1)").await;
}

fn start(database: &Database, flags: &[&str]) -> Worker {
    Worker::start(database, &[&["--readers", "4", "--poll-interval", "50ms"], flags].concat())
}

/// Starts a worker and kills it while it runs this attempt of the task.
async fn killed_under(database: &Database, id: i64, attempt: i32) {
    let mut worker = start(database, &[]);
    let sql = "SELECT FROM mill.running WHERE id = $1 AND attempt = $2 AND wait_event = 'advisory'";
    eventually(&format!("attempt {attempt} of task {id} is held"), async || {
        !database.rows(sql, &[&id, &attempt]).await.is_empty()
    })
    .await;
    worker.kill();
}

async fn effects(database: &Database) -> i64 {
    database.value("SELECT count(*) FROM effect").await
}

/// Repeats the run of a test, which returns the seconds from a kill to the reclaim, until they are at
/// most five. On a busy machine, a run can take longer.
async fn within_five_seconds(mut run: impl AsyncFnMut() -> f64) {
    let mut too_long = Vec::new();
    for _ in 0..5 {
        let seconds = run().await;
        println!("kill -9 to pending: {seconds:.1} s");
        if seconds <= 5.0 {
            return;
        }
        too_long.push(seconds);
    }
    panic!("kill -9 to pending took more than five seconds each time: {too_long:.1?}");
}

/// Returns the seconds from the kill, whose time is in the table `killed`, until the last task was
/// pending again.
async fn kill_to_pending(database: &Database) -> f64 {
    database
        .value(
            "SELECT extract(epoch FROM max(finished_at) - (SELECT at FROM killed))::float8
             FROM mill.attempts WHERE outcome = 'lost'",
        )
        .await
}

#[tokio::test]
async fn tasks_of_a_killed_worker_run_again_within_five_seconds_once_its_backends_are_gone() {
    within_five_seconds(a_worker_with_four_tasks_is_killed).await;
}

async fn a_worker_with_four_tasks_is_killed() -> f64 {
    let database = database_with_lock().await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(database.enqueue(LEAVES_A_MARK, ", max_attempts => 1").await);
    }
    let mut doomed = start(&database, &[]);
    for id in &ids {
        database.until_waiting_for_lock(*id).await;
    }
    database
        .execute(
            "CREATE TABLE before AS SELECT id, token, a.pid, a.backend_start
             FROM mill.tasks JOIN pg_stat_activity a ON a.pid = session_pid",
        )
        .await;
    let heir = start(&database, &[]);
    heir.until_logged("ready").await;
    database.execute("CREATE TABLE killed AS SELECT clock_timestamp() AS at").await;
    doomed.kill();
    // The tasks are read before the backends: a backend that still exists in this snapshot existed
    // at the reclaim.
    let query =
        "SELECT count(*) FILTER (WHERE a.pid IS NOT NULL AND t.token IS DISTINCT FROM b.token),
                    count(*) FILTER (WHERE t.token IS DISTINCT FROM b.token)
                FROM before b JOIN mill.tasks t USING (id)
                    LEFT JOIN pg_stat_activity a USING (pid, backend_start)";
    eventually("every task is reclaimed", async || {
        let row = &database.rows(query, &[]).await[0];
        assert_eq!(row.get::<_, i64>(0), 0, "reclaimed while its backend existed");
        row.get::<_, i64>(1) == 4
    })
    .await;
    let seconds = kill_to_pending(&database).await;
    release_lock(&database).await;
    for id in ids {
        assert_eq!(database.outcome(id).await, "succeeded");
        assert_eq!(database.attempts(id).await, "lost succeeded");
    }
    assert_eq!(effects(&database).await, 4);
    let workers: i64 = database.value("SELECT count(DISTINCT worker_id) FROM mill.attempts").await;
    assert_eq!(workers, 2);
    seconds
}

#[tokio::test]
async fn a_killed_worker_is_detected_as_fast_in_a_fleet_of_thirty_two_as_in_one_of_two() {
    within_five_seconds(a_worker_of_thirty_two_is_killed).await;
}

async fn a_worker_of_thirty_two_is_killed() -> f64 {
    let database = database_with_lock().await;
    let flags = ["--readers", "1"];
    let mut doomed = Worker::start(&database, &flags);
    let id = database.enqueue(LEAVES_A_MARK, "").await;
    database.until_waiting_for_lock(id).await;
    let fleet: Vec<Worker> = (1..32).map(|_| Worker::start(&database, &flags)).collect();
    let known = "SELECT count(*) FROM mill.workers";
    eventually("all workers are registered", async || database.value::<i64>(known).await == 32)
        .await;
    // A worker that is ready has polled its peers once. From then on it polls them less often.
    for worker in &fleet {
        worker.until_logged("ready").await;
    }
    database
        .execute("CREATE TABLE settled AS SELECT min(w.heartbeat) AS heartbeat FROM mill.workers w")
        .await;
    eventually("every worker has sent two more heartbeats", async || {
        database
            .value::<bool>(
                "SELECT min(w.heartbeat) >= (SELECT heartbeat + 2 FROM settled) FROM mill.workers w",
            )
            .await
    })
    .await;
    // Wait for the worst case: the worker that is about to die has just sent a heartbeat.
    let fresh = "SELECT w.heartbeat_at > clock_timestamp() - interval '0.2 s'
                 FROM mill.workers w JOIN mill.tasks t ON t.claimed_by = w.id";
    eventually("the worker has just sent a heartbeat", async || {
        database.value::<bool>(fresh).await
    })
    .await;
    database.execute("CREATE TABLE killed AS SELECT clock_timestamp() AS at").await;
    doomed.kill();
    eventually("the task is reclaimed", async || {
        !database.rows("SELECT FROM mill.attempts WHERE outcome = 'lost'", &[]).await.is_empty()
    })
    .await;
    let seconds = kill_to_pending(&database).await;
    release_lock(&database).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(effects(&database).await, 1);
    seconds
}

#[tokio::test]
async fn a_worker_that_wakes_up_too_late_detects_its_lost_claim_and_continues() {
    let database = database_with_lock().await;
    let flags = ["--heartbeat-interval", "300ms", "--orphan-timeout", "2s"];
    let sleeper = start(&database, &flags);
    let id = database.enqueue(LEAVES_A_MARK, "").await;
    database.until_waiting_for_lock(id).await;
    let first: uuid::Uuid = database.value("SELECT claimed_by FROM mill.tasks").await;
    let mut heir = start(&database, &flags);
    heir.until_logged("ready").await;
    sleeper.signal(Signal::STOP);
    eventually("the other worker runs the task", async || {
        database.value::<Option<uuid::Uuid>>("SELECT claimed_by FROM mill.tasks").await
            != Some(first)
    })
    .await;
    release_lock(&database).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    sleeper.signal(Signal::CONT);
    sleeper.until_logged("claim lost").await;
    sleeper.until_logged("considered this worker dead").await;
    assert_eq!(database.attempts(id).await, "lost succeeded");
    assert_eq!(effects(&database).await, 1);
    assert!(heir.terminate().await.success());
    let next = database.enqueue("SELECT 1", "").await;
    assert_eq!(database.outcome(next).await, "succeeded");
    let again: uuid::Uuid = database.value("SELECT id FROM mill.workers").await;
    assert_eq!(again, first);
}

#[tokio::test]
async fn a_worker_stops_the_statement_of_a_claim_that_has_another_token() {
    let database = database_with_lock().await;
    let worker = start(&database, &["--heartbeat-interval", "300ms"]);
    let id = database.enqueue(LEAVES_A_MARK, "").await;
    database.until_waiting_for_lock(id).await;
    // As after a reclaim and a claim elsewhere: the task still exists, and is running.
    database.execute("UPDATE mill.tasks SET token = gen_random_uuid()").await;
    worker.until_logged("claim lost").await;
    release_lock(&database).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(effects(&database).await, 1);
}

#[tokio::test]
async fn an_autocommit_task_is_not_restarted_while_its_old_backend_lives() {
    let database = database_with_lock().await;
    database.execute("CREATE TABLE start (pid integer, others bigint)").await;
    let statement = "INSERT INTO start SELECT pg_backend_pid(),
            (SELECT count(*) FROM start s JOIN pg_stat_activity a ON a.pid = s.pid);
        SELECT pg_advisory_lock_shared(1)";
    let id = database.enqueue(statement, ", mode => 'autocommit'").await;
    killed_under(&database, id, 1).await;
    let _heir = start(&database, &[]);
    eventually("the task is started again", async || {
        database.value::<i64>("SELECT count(*) FROM start").await == 2
    })
    .await;
    release_lock(&database).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(database.value::<Vec<i64>>("SELECT array_agg(others) FROM start").await, [0, 0]);
}

#[tokio::test]
async fn an_at_most_once_task_ends_as_unknown_and_waits_for_an_operator() {
    let database = database_with_lock().await;
    database.execute("CREATE SEQUENCE starts").await;
    let statement = "SELECT nextval('starts'); SELECT pg_advisory_lock_shared(1)";
    let id = database.enqueue(statement, ", mode => 'autocommit', at_most_once => true").await;
    killed_under(&database, id, 1).await;
    let _heir = start(&database, &[]);
    assert_eq!(database.outcome(id).await, "unknown");
    release_lock(&database).await;
    assert_eq!(database.value::<i64>("SELECT last_value FROM starts").await, 1);
    assert_eq!(database.value::<String>(&format!("SELECT mill.retry({id})")).await, "retried");
    eventually("the task has run again", async || {
        database.attempts(id).await == "unknown succeeded"
    })
    .await;
    assert_eq!(database.value::<i64>("SELECT last_value FROM starts").await, 2);
}

#[tokio::test]
async fn a_worker_that_died_before_the_clock_was_set_back_loses_no_task() {
    let database = database_with_lock().await;
    let id = database.enqueue(WAITS_FOR_LOCK, "").await;
    killed_under(&database, id, 1).await;
    // The test moves the time of the last heartbeat instead of the clock, which has the same effect.
    let ahead = "UPDATE mill.workers SET heartbeat_at = heartbeat_at + interval '1 hour'";
    database.execute(ahead).await;
    let _heir = start(&database, &[]);
    eventually("the task is claimed again", async || {
        database.value("SELECT attempt = 2 FROM mill.tasks").await
    })
    .await;
    release_lock(&database).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(database.attempts(id).await, "lost succeeded");
}

#[tokio::test]
async fn a_task_that_kills_its_workers_ends_as_lost() {
    let database = database_with_lock().await;
    database.execute("UPDATE mill.settings SET max_crashes = 2").await;
    let id = database.enqueue(WAITS_FOR_LOCK, ", max_attempts => 1").await;
    killed_under(&database, id, 1).await;
    killed_under(&database, id, 2).await;
    let _heir = start(&database, &[]);
    assert_eq!(database.outcome(id).await, "lost");
    assert_eq!(database.attempts(id).await, "lost lost");
    let message: String = database.value("SELECT message FROM mill.attempts WHERE final").await;
    assert!(message.contains("has reached max_crashes (2)"), "{message}");
}

#[tokio::test]
async fn sigterm_lets_running_tasks_finish_and_claims_no_more() {
    let database = database_with_lock().await;
    let running = database.enqueue(WAITS_FOR_LOCK, "").await;
    let mut worker = start(&database, &["--shutdown-timeout", "1h"]);
    database.until_waiting_for_lock(running).await;
    worker.signal(Signal::TERM);
    worker.until_logged("draining").await;
    let late = database.enqueue("SELECT 1", "").await;
    database.execute("SELECT pg_notify('mill', 'work')").await;
    // The heartbeats continue, so the task is not reclaimed.
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.workers").await, 1);
    release_lock(&database).await;
    assert!(worker.ended().await.success());
    assert_eq!(database.attempts(running).await, "succeeded");
    let row = "SELECT state::text, attempt FROM mill.tasks WHERE id = $1";
    let row = &database.rows(row, &[&late]).await[0];
    assert_eq!((row.get(0), row.get(1)), ("pending", 0));
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.workers").await, 0);
}

#[tokio::test]
async fn after_the_shutdown_timeout_or_a_second_sigterm_tasks_are_released_with_their_attempt() {
    for (grace, signals) in [("200ms", 1), ("1h", 2)] {
        let database = database_with_lock().await;
        let mut worker = start(&database, &["--shutdown-timeout", grace]);
        let ids = [
            database.enqueue(LEAVES_A_MARK, "").await,
            database.enqueue(WAITS_FOR_LOCK, ", mode => 'autocommit'").await,
        ];
        for id in ids {
            database.until_waiting_for_lock(id).await;
        }
        worker.signal(Signal::TERM);
        if signals == 2 {
            worker.until_logged("draining").await;
            worker.signal(Signal::TERM);
        }
        assert!(worker.ended().await.success());
        let odd = "SELECT count(*) FROM mill.tasks WHERE state <> 'pending' OR attempt <> 0";
        assert_eq!(database.value::<i64>(odd).await, 0, "{grace}");
        assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 2, "{grace}");
        for nothing in ["mill.attempts", "effect", "mill.workers"] {
            let count: i64 = database.value(&format!("SELECT count(*) FROM {nothing}")).await;
            assert_eq!(count, 0, "{grace}: {nothing}");
        }
        release_lock(&database).await;
        let _heir = start(&database, &[]);
        for id in ids {
            assert_eq!(database.outcome(id).await, "succeeded");
        }
    }
}

/// Without an end of the wait for the database, the worker would end 35 s after the shutdown timeout.
#[tokio::test]
async fn after_the_shutdown_timeout_a_worker_does_not_wait_for_an_unreachable_database() {
    const BOUND: Duration = Duration::from_secs(30);
    let database = database_with_lock().await;
    let url = database.url();
    let (place, name) = url.rsplit_once('/').unwrap();
    let (host, port) = place.rsplit_once(':').unwrap();
    let gate = Gate::start(port.parse().unwrap()).await.unwrap();
    let flags = ["--readers", "2", "--heartbeat-interval", "100ms", "--shutdown-timeout", "2s"];
    let mut worker = Worker::start_at(&format!("{host}:{}/{name}", gate.port()), &flags);
    let id = database.enqueue(WAITS_FOR_LOCK, "").await;
    database.until_waiting_for_lock(id).await;
    gate.set_open(false);
    worker.signal(Signal::TERM);
    let begun = Instant::now();
    assert!(worker.ended().await.success());
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
    assert!(worker.log().contains("the database does not answer, leaving claims"));
    // Another worker reclaims the task.
    gate.set_open(true);
    let _heir = start(&database, &[]);
    release_lock(&database).await;
    assert_eq!(database.outcome(id).await, "succeeded");
}

#[tokio::test]
async fn an_at_most_once_task_that_a_shutdown_interrupts_ends_as_unknown() {
    let database = database_with_lock().await;
    let mut worker = start(&database, &["--shutdown-timeout", "200ms"]);
    let options = ", mode => 'autocommit', at_most_once => true";
    let id = database.enqueue(WAITS_FOR_LOCK, options).await;
    database.until_waiting_for_lock(id).await;
    worker.signal(Signal::TERM);
    assert!(worker.ended().await.success());
    assert_eq!(database.outcome(id).await, "unknown");
    assert_eq!(database.attempts(id).await, "unknown");
}

#[tokio::test]
async fn a_task_cancelled_during_a_shutdown_is_not_attempted_again() {
    let database = database_with_lock().await;
    let mut worker = start(
        &database,
        &["--shutdown-timeout", "1h", "--heartbeat-interval", "300s", "--orphan-timeout", "1h"],
    );
    let id = database.enqueue(WAITS_FOR_LOCK, "").await;
    database.until_waiting_for_lock(id).await;
    // Insert the request without a notification. The next heartbeat is far away.
    database.rows("INSERT INTO mill.cancel_requests VALUES ($1)", &[&id]).await;
    worker.signal(Signal::TERM);
    worker.until_logged("draining").await;
    worker.signal(Signal::TERM);
    assert!(worker.ended().await.success());
    assert_eq!(database.outcome(id).await, "cancelled");
    assert_eq!(database.attempts(id).await, "cancelled");
}

#[tokio::test]
async fn an_observer_with_a_short_orphan_timeout_leaves_a_worker_with_rare_heartbeats_alone() {
    let database = database_with_lock().await;
    let id = database.enqueue(WAITS_FOR_LOCK, "").await;
    let rare = ["--heartbeat-interval", "60s", "--orphan-timeout", "180s"];
    let _holder = start(&database, &rare);
    database.until_waiting_for_lock(id).await;
    let frequent = ["--heartbeat-interval", "300ms", "--orphan-timeout", "1s"];
    let _observer = start(&database, &frequent);
    // The holder sends none in this time.
    let observed = "SELECT EXISTS (SELECT FROM mill.workers
                    WHERE heartbeat_interval < '1s' AND heartbeat > 10)";
    eventually("the observer has sent ten heartbeats", async || database.value(observed).await)
        .await;
    database.until_next_poll().await;
    release_lock(&database).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(database.attempts(id).await, "succeeded");
}
