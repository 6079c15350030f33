//! The server is upgraded with pg_upgrade while the fleet has tasks.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::guarantees::claim::{buffers, prepare};
use crate::harness::private::{older_server, server};
use crate::harness::{Database, PrivateDatabase, Program, Worker, amount, eventually};
use crate::runs::run::end;

const EFFECT: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";
const WAITS_FOR_LOCK: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
    SELECT pg_advisory_xact_lock_shared(1)";

/// Number of tasks in the queue of the workers.
fn tasks() -> i64 {
    amount(500, 1500)
}

/// Brings the tables of the queue into the state in which pg_upgrade left them before version 18.
const WITHOUT_STATISTICS: &str = "SELECT pg_clear_relation_stats('mill', c.relname),
        pg_clear_attribute_stats('mill', c.relname, a.attname, false)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind = 'r'";

/// Number of pending tasks in the queue `default`, which no worker serves.
fn backlog() -> i32 {
    amount(5000, 20_000)
}

fn worker(database: &Database) -> Worker {
    let flags = ["--readers", "2", "--poll-interval", "50ms", "--queues", "work"];
    Worker::start(database, &flags)
}

/// Returns the status of each check of the doctor.
async fn doctor(database: &Database) -> BTreeSet<String> {
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
    database.rows(sql, &[&EFFECT, &tasks()]).await;
    eventually("some tasks have ended", async || {
        database.value::<i64>("SELECT count(*) FROM mill.attempts").await > tasks() / 5
    })
    .await;
    (held, run)
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_continue_by_themselves_after_pg_upgrade_of_their_server() {
    if ![older_server(), server()].iter().all(|it| it.directory().join("pg_upgrade").exists()) {
        println!("skipped: pg_upgrade is not installed");
        return;
    }
    let mut private = PrivateDatabase::before_upgrade(&[("fsync", "off")]).await;
    let database = &private.database;
    database.enqueue_many(backlog(), "SELECT 1").await;
    database.execute("ANALYZE mill.tasks").await;
    let cost = cost_of_a_claim(database).await;
    let mut workers = [worker(database), worker(database)];
    let (held, run) = at_work(database).await;
    let checks = doctor(database).await;
    let identifier = "SELECT system_identifier::text FROM pg_control_system()";
    let before: String = database.value(identifier).await;

    private.cluster.upgrade(server()).unwrap();

    private.database.reconnect().await;
    let database = &private.database;
    assert_ne!(database.value::<String>(identifier).await, before);
    if database.major().await >= 18 {
        // pg_upgrade keeps the statistics since this version.
        database.execute(WITHOUT_STATISTICS).await;
    }
    let known = "SELECT count(*) FROM pg_stats WHERE schemaname = 'mill' AND tablename = 'tasks'";
    assert_eq!(database.value::<i64>(known).await, 0);
    let cost_without_statistics = cost_of_a_claim(database).await;
    println!("buffers of a claim: {cost}, without statistics {cost_without_statistics}");
    assert!(cost_without_statistics <= cost + 10, "{cost} and {cost_without_statistics}");
    // Those that the server has interrupted are repeated after a pause.
    let left = "SELECT count(*) FROM mill.tasks WHERE queue = 'work' AND due_at < now() + interval '12 hours'";
    eventually("all due tasks have ended", async || database.value::<i64>(left).await == 0).await;
    assert_eq!(database.outcome(held).await, "succeeded");
    assert_eq!(end(database, run).await, "succeeded");
    let odd =
        "SELECT coalesce(string_agg(DISTINCT concat_ws(' ', outcome, sqlstate, message), '; '), '')
        FROM mill.attempts WHERE outcome <> 'succeeded' AND (final OR outcome <> 'interrupted')";
    assert_eq!(database.value::<String>(odd).await, "");
    let counts = "SELECT ARRAY[count(*), count(DISTINCT task)] FROM effect";
    assert_eq!(database.value::<Vec<i64>>(counts).await, [tasks() + 1; 2]);
    let waiting = "SELECT count(*) FROM mill.tasks WHERE queue = 'work' AND due_at > now()";
    assert_eq!(database.value::<i64>(waiting).await, 1);
    let connected = "SELECT bool_and(unconnected IS NULL) FROM mill.workers";
    eventually("all readers are connected again", async || database.value(connected).await).await;
    assert_eq!(doctor(database).await, checks);
    for worker in &mut workers {
        assert!(worker.terminate().await.success(), "{}", worker.log());
    }
}
