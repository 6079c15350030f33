//! A table is rewritten while the fleet works: one that tasks write, and those of the queue.

use futures_util::future::{join, join3};
use tokio::sync::Notify;
use tokio_postgres::Client;

use super::worker;
use crate::harness::{Database, Program, Worker, amount, eventually};

/// A task with one attempt. Its plans and those of the function stay in the session.
const TASK: &str =
    "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint; SELECT recent()";

const SCHEMA: &str = "CREATE TABLE effect (task bigint PRIMARY KEY, amount integer);
    INSERT INTO effect SELECT -n, n FROM generate_series(1, 10000) AS n;
    CREATE FUNCTION recent() RETURNS text LANGUAGE plpgsql AS $$
    DECLARE
        r record;
    BEGIN
        SELECT * INTO r FROM effect ORDER BY task DESC LIMIT 1;
        RETURN r.amount || '!';
    END
    $$";

async fn stage() -> (Database, [Worker; 2]) {
    let database = Database::new().await;
    database.execute(SCHEMA).await;
    let workers = [(); 2].map(|()| worker(&database, "2", "5s", &[]));
    // Every session has run the function before a table changes.
    submit(&database, amount(100, 200)).await;
    database.until_empty().await;
    (database, workers)
}

async fn submit(database: &Database, tasks: i64) {
    let sql =
        "SELECT count(mill.enqueue($1, max_attempts => 1)) FROM generate_series(1, $2::bigint)";
    database.rows(sql, &[&TASK, &tasks]).await;
}

/// Waits until each worker has sent more heartbeats. Twenty of them take longer than the orphan timeout.
/// While the tasks table is locked, a heartbeat takes 5 s, because it checks the claims of the worker.
async fn until_heartbeats(database: &Database, count: i64) {
    let heartbeats = "SELECT coalesce(min(heartbeat), 0) FROM mill.workers HAVING count(*) = 2";
    let begun: i64 = database.value(heartbeats).await;
    eventually("both workers send heartbeats", async || {
        let rows = database.rows(heartbeats, &[]).await;
        rows.first().is_some_and(|row| row.get::<_, i64>(0) >= begun + count)
    })
    .await;
}

/// Asserts that each task has succeeded in one attempt that counts, with one effect, and that no worker
/// was considered dead.
async fn each_task_once(database: &Database, workers: &mut [Worker]) {
    database.until_empty().await;
    let odd =
        "SELECT coalesce(string_agg(DISTINCT concat_ws(' ', outcome, sqlstate, message), '; '), '')
        FROM mill.attempts WHERE final AND outcome <> 'succeeded' OR outcome = 'lost'";
    assert_eq!(database.value::<String>(odd).await, "");
    let counts = "SELECT ARRAY[(SELECT count(*) FROM mill.attempts WHERE final),
        (SELECT count(DISTINCT task_id) FROM mill.attempts), (SELECT count(*) FROM effect WHERE task > 0)]";
    let counts: Vec<i64> = database.value(counts).await;
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    println!("{} tasks, each once", counts[0]);
    for worker in workers {
        let log = worker.log();
        assert!(!log.contains("dead worker") && !log.contains("worker dead"), "{log}");
        assert!(worker.terminate().await.success());
    }
}

/// Runs a rewrite, which a session that reads the table delays. Meanwhile, everything else waits for the
/// rewrite. Passes the rewriting session to `meanwhile`, and returns its result.
async fn rewrite_behind_a_reader(
    database: &Database,
    (table, rewrite): (&str, &str),
    meanwhile: impl AsyncFnOnce(i32) -> i32,
) -> i32 {
    let (reader, rewriter) = (database.connect().await, database.connect().await);
    let file = format!("SELECT pg_relation_filenode('{table}')::bigint");
    let before: Option<i64> = database.value(&file).await;
    let read = format!("BEGIN; SELECT count(*) FROM {table}");
    reader.batch_execute(&read).await.unwrap();
    let pid = pid(&rewriter).await;
    let waits = format!("SELECT EXISTS (SELECT FROM pg_locks WHERE pid = {pid} AND NOT granted)");
    let rewriting = rewriter.batch_execute(rewrite);
    let release = async {
        eventually("the rewrite waits", async || database.value(&waits).await).await;
        let result = meanwhile(pid).await;
        reader.batch_execute("COMMIT").await.unwrap();
        result
    };
    let (rewritten, result) = join(rewriting, release).await;
    rewritten.unwrap();
    assert_ne!(database.value::<Option<i64>>(&file).await, before, "{rewrite}");
    result
}

async fn pid(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// Waits until a task waits for the lock, and asserts that `pgmill why` names the session.
async fn a_task_names_its_blocker(database: &Database, pid: i32) {
    let blocked = "SELECT min(id) FROM mill.running WHERE cardinality(blocked_by) > 0";
    eventually("a task is blocked", async || {
        database.value::<Option<i64>>(blocked).await.is_some()
    })
    .await;
    let id: i64 = database.value(blocked).await;
    let text = Program::pgmill(database, &["why", &id.to_string()]).succeeds().await;
    assert!(text.contains(&format!("blocked by backend {pid}")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_wait_while_their_table_is_rewritten_and_then_each_runs_once() {
    let (database, mut workers) = stage().await;
    for rewrite in ["VACUUM FULL effect", "CLUSTER effect USING effect_pkey"] {
        rewrite_behind_a_reader(&database, ("effect", rewrite), async |pid| {
            submit(&database, amount(40, 100)).await;
            a_task_names_its_blocker(&database, pid).await;
            until_heartbeats(&database, 20).await;
            pid
        })
        .await;
    }
    // The last task of each session has plans for the column's old type.
    for kind in ["bigint", "numeric", "text COLLATE \"C\"", "integer USING amount::integer"] {
        let operator = database.connect().await;
        let change = format!("BEGIN; ALTER TABLE effect ALTER COLUMN amount TYPE {kind}");
        operator.batch_execute(&change).await.unwrap();
        submit(&database, amount(40, 100)).await;
        a_task_names_its_blocker(&database, pid(&operator).await).await;
        if kind == "bigint" {
            until_heartbeats(&database, 20).await;
        }
        operator.batch_execute("COMMIT").await.unwrap();
        database.until_empty().await;
    }
    each_task_once(&database, &mut workers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_waits_while_a_table_of_the_queue_is_rewritten() {
    let (database, mut workers) = stage().await;
    let held = format!("{TASK}; SELECT pg_advisory_xact_lock_shared(1)");
    let today = "'mill.attempts_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')";
    for (table, command, index) in [
        ("'mill.tasks'", "VACUUM FULL", ""),
        ("'mill.tasks'", "CLUSTER", "USING tasks_pkey"),
        (today, "VACUUM FULL", ""),
    ] {
        // A round may begin on the next day.
        let table: String = database.value(&format!("SELECT {table}")).await;
        let rewrite = format!("{command} {table} {index}");
        database.execute("SELECT pg_advisory_lock(1)").await;
        let held = database.enqueue(&held, ", max_attempts => 1").await;
        database.until_waiting_for_lock(held).await;
        // The completion waits, and the program has reported its wait.
        let waits = format!(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND mode = 'RowExclusiveLock'
                     AND relation = '{table}'::regclass AND database =
                         (SELECT oid FROM pg_database WHERE datname = current_database()))
                 AND EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pgmill' AND datname = current_database()
                     AND wait_event_type = 'Lock' AND now() - query_start > '4 seconds')"
        );
        let (producer, waiting) = (database.connect().await, Notify::new());
        // Both wait for the rewrite if it locks the tasks table.
        let enqueued = async {
            waiting.notified().await;
            let sql = "SELECT count(mill.enqueue($1, max_attempts => 1))
                FROM generate_series(1, $2::bigint)";
            producer.query(sql, &[&TASK, &amount::<i64>(40, 100)]).await.unwrap();
        };
        let status = async {
            waiting.notified().await;
            Program::pgmill(&database, &["status"]).run().await
        };
        let rewritten = rewrite_behind_a_reader(&database, (&table, &rewrite), async |pid| {
            waiting.notify_waiters();
            // The running task ends, and its completion waits for the rewrite.
            database.execute("SELECT pg_advisory_unlock(1)").await;
            eventually("the completion and the program wait", async || {
                database.value(&waits).await
            })
            .await;
            until_heartbeats(&database, if table == "mill.tasks" { 1 } else { 20 }).await;
            pid
        });
        let ((code, _, printed), (), pid) = join3(status, enqueued, rewritten).await;
        // On a busy machine, the program may give up before the rewrite is done.
        assert!(code == 0 || code == 75, "{printed}");
        assert!(printed.contains(&format!("waiting for a lock of session {pid}")), "{printed}");
        database.until_empty().await;
    }
    each_task_once(&database, &mut workers).await;
}
