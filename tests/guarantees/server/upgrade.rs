//! The server is upgraded with pg_upgrade while the fleet has tasks.

use serde_json::Value;

use crate::guarantees::claim::{buffers, prepare};
use crate::harness::private::server_programs;
use crate::harness::{Database, PrivateDatabase, Program, Worker, eventually};
use crate::runs::run::end;

const EFFECT: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";
const WAITS_FOR_LOCK: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
    SELECT pg_advisory_xact_lock_shared(1)";

const TASKS: i64 = 1500;

/// Number of pending tasks in the queue `default`, which no worker serves.
const BACKLOG: i32 = 20_000;

fn worker(database: &Database) -> Worker {
    let flags = ["--readers", "2", "--poll-interval", "50ms", "--queues", "work"];
    Worker::start(database, &flags)
}

/// Returns the status of each check of the doctor.
async fn doctor(database: &Database) -> Vec<String> {
    let (_, printed, _) = Program::pgmill(database, &["doctor", "--json"]).run().await;
    let document: Value = serde_json::from_str(&printed).unwrap();
    let checks = document["checks"].as_array().unwrap().iter();
    checks.map(|check| format!("{} {}", check["check"], check["status"])).collect()
}

/// Returns the number of buffers that a claim from this queue reads.
async fn cost_of_a_claim(database: &Database) -> u64 {
    prepare(database).await;
    let mut costs = Vec::new();
    for _ in 0..3 {
        costs.push(buffers(database, 0).await);
    }
    database.execute("DEALLOCATE claim; RESET ALL").await;
    costs.into_iter().min().unwrap()
}

/// Creates work in every state: ended, running and pending tasks, a scheduled task, a run in progress and
/// a schedule. Returns the running task and the run.
async fn at_work(database: &Database) -> (i64, i64) {
    database
        .execute(
            r#"CREATE TABLE effect (task bigint NOT NULL);
            SELECT mill.set_schedule('s', 'daily(03:15)', 'SELECT 1');
            SELECT mill.set_job('j', jsonb_build_array(
                jsonb_build_object('name', 'a', 'queue', 'work', 'statement', 'SELECT pg_advisory_xact_lock_shared(1)'),
                jsonb_build_object('name', 'b', 'queue', 'work', 'statement', 'SELECT 1', 'after', '["a"]'::jsonb)));
            SELECT pg_advisory_lock(1)"#,
        )
        .await;
    let held = database.enqueue(WAITS_FOR_LOCK, ", queue => 'work', max_attempts => 1").await;
    let run = database.value("SELECT run_id FROM mill.start_run('{j}')").await;
    database.until_waiting_for_lock(held).await;
    let later = ", queue => 'work', due_at => now() + interval '1 day'";
    database.enqueue(EFFECT, later).await;
    let sql = "SELECT count(mill.enqueue($1, queue => 'work', max_attempts => 1))
        FROM generate_series(1, $2::bigint)";
    database.rows(sql, &[&EFFECT, &TASKS]).await;
    eventually("some tasks have ended", async || {
        database.value::<i64>("SELECT count(*) FROM mill.attempts").await > TASKS / 5
    })
    .await;
    (held, run)
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_continue_by_themselves_after_pg_upgrade_of_their_server() {
    if server_programs().is_some_and(|folder| !folder.join("pg_upgrade").exists()) {
        println!("skipped: pg_upgrade is not installed");
        return;
    }
    let mut private = PrivateDatabase::new(&[]).await;
    let database = &private.database;
    database.enqueue_many(BACKLOG, "SELECT 1").await;
    database.execute("ANALYZE mill.tasks").await;
    let cost = cost_of_a_claim(database).await;
    let mut workers = [worker(database), worker(database)];
    let (held, run) = at_work(database).await;
    let checks = doctor(database).await;
    let server = "SELECT system_identifier::text FROM pg_control_system()";
    let before: String = database.value(server).await;

    private.cluster.upgrade().unwrap();

    private.database.reconnect().await;
    let database = &private.database;
    assert_ne!(database.value::<String>(server).await, before);
    // No row of the statistics is left.
    let known = "SELECT count(*) FROM pg_stats WHERE schemaname = 'mill' AND tablename = 'tasks'";
    assert_eq!(database.value::<i64>(known).await, 0);
    let cost_without_statistics = cost_of_a_claim(database).await;
    println!("buffers of a claim: {cost}, without statistics {cost_without_statistics}");
    assert!(cost_without_statistics <= cost + 10, "{cost} and {cost_without_statistics}");
    let left = "SELECT count(*) FROM mill.tasks WHERE queue = 'work' AND state <> 'scheduled'";
    eventually("all due tasks have ended", async || database.value::<i64>(left).await == 0).await;
    assert_eq!(database.outcome(held).await, "succeeded");
    assert_eq!(end(database, run).await, "succeeded");
    let odd =
        "SELECT coalesce(string_agg(DISTINCT concat_ws(' ', outcome, sqlstate, message), '; '), '')
        FROM mill.attempts WHERE outcome <> 'succeeded' AND (final OR outcome <> 'failed')";
    assert_eq!(database.value::<String>(odd).await, "");
    let counts = "SELECT ARRAY[count(*), count(DISTINCT task)] FROM effect";
    assert_eq!(database.value::<Vec<i64>>(counts).await, [TASKS + 1; 2]);
    let waiting = "SELECT count(*) FROM mill.tasks WHERE queue = 'work' AND due_at > now()";
    assert_eq!(database.value::<i64>(waiting).await, 1);
    assert_eq!(doctor(database).await, checks);
    for worker in &mut workers {
        assert!(worker.terminate().await.success(), "{}", worker.log());
    }
}
