//! Operators cancel everything that waits in a queue.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::terminal::Terminal;
use crate::harness::{Database, Program};

/// Enqueues a task of queue etl in each waiting state, one that another session has locked, a
/// running task, and a task of another queue. Returns the ids of the last three.
async fn seed(database: &Database) -> [i64; 3] {
    database.execute("SELECT mill.set_max_running('key', 'k', 0)").await;
    let etl = ", queue => 'etl'";
    for options in ["", ", due_at => now() + interval '1 day'", ", concurrency_key => 'k'"] {
        database.enqueue("SELECT 1", &format!("{etl}{options}")).await;
    }
    let locked = database.enqueue("SELECT 1", etl).await;
    let running = database.enqueue("SELECT 1", etl).await;
    let other = database.enqueue("SELECT 1", "").await;
    database
        .execute(&format!(
            "UPDATE mill.tasks SET state = 'running', attempt = 1, token = gen_random_uuid(), session_pid = 1,
                claimed_by = gen_random_uuid(), claimed_at = now(), session_started_at = now()
             WHERE id = {running}"
        ))
        .await;
    [locked, running, other]
}

const LEFT: &str = "SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM mill.tasks";

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_cancels_what_waits_in_the_queue_and_nothing_else() {
    let database = Database::new().await;
    let [locked, running, other] = seed(&database).await;
    let operator = Login::new(&database, "operator", "mill_operator").await;
    let purge = async |queue: &str, flag: &str| {
        let arguments = ["queue", "purge", queue, flag, "--json"];
        let (code, stdout, _) =
            Program::pgmill(&database, &arguments).at(&operator.url()).run().await;
        (code, serde_json::from_str::<Value>(&stdout).unwrap_or_default())
    };
    let report = |dry_run: bool, cancelled: i64| {
        json!({
            "queue": "etl", "dry_run": dry_run, "interrupted": false, "waiting": 4, "cancelled": cancelled,
        })
    };
    assert_eq!(purge("etl", "--dry-run").await, (0, report(true, 0)));
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 6);
    let mut session = database.connect().await;
    let lock = session.transaction().await.unwrap();
    let sql = format!("SELECT FROM mill.tasks WHERE id = {locked} FOR UPDATE");
    lock.execute(&sql, &[]).await.unwrap();
    assert_eq!(purge("etl", "--yes").await, (0, report(false, 3)));
    assert_eq!(database.value::<Vec<i64>>(LEFT).await, [locked, running, other]);
    lock.rollback().await.unwrap();
    let audit = "SELECT string_agg(concat_ws(' ', action, subject, detail), ', ' ORDER BY id) FROM mill.audit
        WHERE action IN ('purge_queue', 'cancel')";
    let cancelled = |id: i64| format!("cancel task {id} {{\"result\": \"cancelled\"}}");
    let first = locked - 3;
    let recorded = [cancelled(first), cancelled(first + 1), cancelled(first + 2)].join(", ");
    let recorded = format!("{recorded}, purge_queue queue etl {{\"cancelled\": 3}}");
    assert_eq!(database.value::<String>(audit).await, recorded);
    let outcomes = "SELECT array_agg(DISTINCT outcome::text) FROM mill.attempts";
    assert_eq!(database.value::<Vec<String>>(outcomes).await, ["cancelled"]);
    // The console purges without the lock.
    let console = Console::start(&database, &[]).await;
    assert!(console.get("/queues").await.body.contains("/queues/etl/purge"));
    assert_eq!(console.post("/queues/etl/purge", "").await.status, 303);
    assert_eq!(database.value::<Vec<i64>>(LEFT).await, [running, other]);
    assert_eq!(purge("etl", "--yes").await.0, 4);
    operator.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_continue_after_the_last_id_and_end_at_the_bound() {
    let database = Database::new().await;
    database.enqueue_many(5, "SELECT 1").await;
    let purge = async |after: i64| -> String {
        let sql = format!("SELECT p::text FROM mill.purge_queue('default', 2, {after}, 4) AS p");
        database.value(&sql).await
    };
    assert_eq!(purge(0).await, "(2,2)");
    assert_eq!(purge(2).await, "(2,4)");
    assert_eq!(purge(4).await, "(0,)");
    assert_eq!(database.value::<Vec<i64>>(LEFT).await, [5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_purge_reports_what_it_has_done() {
    let database = Database::new().await;
    database.enqueue_many(1200, "SELECT 1").await;
    // The second chunk waits for this lock when it records its tasks.
    let mut session = database.connect().await;
    database
        .execute(
            "CREATE FUNCTION wait_for_lock() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
             CREATE TRIGGER wait_for_lock AFTER DELETE ON mill.tasks FOR EACH ROW WHEN (OLD.id = 600)
                EXECUTE FUNCTION wait_for_lock()",
        )
        .await;
    let lock = session.transaction().await.unwrap();
    lock.execute("SELECT pg_advisory_xact_lock(1)", &[]).await.unwrap();
    let purge = ["queue", "purge", "default", "--yes"];
    let mut terminal = Terminal::start(Program::pgmill(&database, &purge).into_command());
    terminal.until_shown("500/1200 tasks").await;
    kill_process(Pid::from_raw(terminal.pid().cast_signed()).unwrap(), Signal::INT).unwrap();
    terminal.until_shown("interrupted, finishing").await;
    lock.rollback().await.unwrap();
    assert_eq!(terminal.ended().await.code(), Some(130));
    let text = terminal.text();
    assert!(text.contains("1000 waiting tasks of queue default cancelled"), "{text}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 200);
}

#[tokio::test]
async fn a_purge_leaves_a_running_task_between_waiting_ones_alone() {
    let database = Database::new().await;
    database.enqueue_many(3, "SELECT 1").await;
    database.run_as_worker("id = 2").await;
    let purge = "SELECT p::text FROM mill.purge_queue('default') AS p";
    assert_eq!(database.value::<String>(purge).await, "(2,3)");
    assert_eq!(database.value::<Vec<i64>>(LEFT).await, [2]);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.cancel_requests").await, 0);
}
