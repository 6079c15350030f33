//! A target is held back while a condition does not hold in it: a standby lags, a snapshot is old, or
//! many sessions are active.

use serde_json::Value;
use tokio::task::JoinSet;

use crate::harness::{Database, PrivateDatabase, Program, Worker, eventually};
use crate::targets::target::{Configuration, EFFECT, as_flags, effects};

const HELD_BACK: &str =
    "SELECT coalesce(max(held_back), '') FROM mill.target_checks WHERE name = 'dwh'";
const IN_TARGET: &str = ", run_as => 'dwh'";

/// Waits until workers claim no task of the target for this reason.
async fn until_held_back(queue: &Database, reason: &str) {
    eventually(&format!("the target is held back: {reason}"), async || {
        queue.value::<String>(HELD_BACK).await.starts_with(reason)
    })
    .await;
    // The worker learns it from its next poll, and has used the answer when the one after it begins.
    queue.until_next_poll().await;
    queue.until_next_poll().await;
}

async fn fleet(dwh: &Database) -> (Database, Configuration, Worker) {
    let queue = Database::new().await;
    let configuration = Configuration::new(&queue, &[("dwh", dwh, dwh.url())]).await;
    let flags = configuration.flags();
    let worker = Worker::start(&queue, &as_flags(&flags));
    (queue, configuration, worker)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_is_held_back_while_a_snapshot_in_it_is_old() {
    let dwh = Database::empty().await;
    let (queue, _configuration, _worker) = fleet(&dwh).await;
    let old = dwh.connect().await;
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.unwrap();
    let set = ["target", "set", "dwh", "--max-snapshot-age", "1s"];
    let text = Program::pgmill_as_owner(&queue, &set).succeeds().await;
    assert!(text.contains("its tasks start only with max snapshot age 1.0s"), "{text}");
    let pid: i32 = old.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    until_held_back(&queue, &format!("the snapshot of session {pid} of user ")).await;
    // Only the tasks of the target wait.
    let waiting = queue.enqueue(EFFECT, IN_TARGET).await;
    let other = queue.enqueue("SELECT 1", "").await;
    assert_eq!(queue.outcome(other).await, "succeeded");
    let why: String = queue.value(&format!("SELECT mill.why({waiting})")).await;
    assert!(why.starts_with(r#"target "dwh" is held back: the snapshot of session "#), "{why}");
    for arguments in [["target", "list"].as_slice(), &["status"]] {
        let text = Program::pgmill(&queue, arguments).run().await.1;
        assert!(text.contains("held back") && text.contains("above 1 s"), "{arguments:?}: {text}");
    }
    let listed = Program::pgmill(&queue, &["target", "list", "--json"]).succeeds().await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["max_snapshot_age_seconds"], 1.0);
    assert_eq!(effects(&dwh).await, (0, 0));
    old.batch_execute("COMMIT").await.unwrap();
    assert_eq!(queue.outcome(waiting).await, "succeeded");
    // A check can meet the snapshot of the task.
    eventually("the target is not held back", async || {
        queue.value::<String>(HELD_BACK).await.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_is_held_back_while_its_standby_lags_or_many_of_its_sessions_are_active() {
    let private = PrivateDatabase::new(&[]).await;
    let dwh = &private.database;
    let (queue, _configuration, _worker) = fleet(dwh).await;
    let standby = private.standby().await;
    let copy = dwh.in_copy(standby.url("postgres")).await;
    copy.execute("SELECT pg_wal_replay_pause()").await;
    queue.execute("SELECT mill.set_target_conditions('dwh', max_replication_lag => '5 s')").await;
    until_held_back(&queue, "the replication lag of standby standby is ").await;
    let id = queue.enqueue(EFFECT, IN_TARGET).await;
    copy.execute("SELECT pg_wal_replay_resume()").await;
    assert_eq!(queue.outcome(id).await, "succeeded");
    // The session that counts does not count itself.
    let busy = dwh.connect().await;
    dwh.execute("SELECT pg_advisory_lock(1)").await;
    let mut waits = JoinSet::new();
    waits.spawn(async move { busy.batch_execute("SELECT pg_advisory_lock(1)").await });
    queue.execute("SELECT mill.set_target_conditions('dwh', max_active_sessions => 0)").await;
    until_held_back(&queue, "1 session is active, above 0").await;
    // Without conditions, the next check ends it.
    let id = queue.enqueue(EFFECT, IN_TARGET).await;
    let set = ["target", "set", "dwh", "--max-active-sessions", "off"];
    Program::pgmill_as_owner(&queue, &set).succeeds().await;
    assert_eq!(queue.outcome(id).await, "succeeded");
    dwh.execute("SELECT pg_advisory_unlock(1)").await;
    waits.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_check_is_reported_and_stops_no_task() {
    let private = PrivateDatabase::new(&[]).await;
    let dwh = &private.database;
    let (queue, _configuration, _worker) = fleet(dwh).await;
    dwh.execute(
        "CREATE ROLE blind;
         GRANT ALL ON ALL TABLES IN SCHEMA mill_target TO blind; GRANT USAGE ON SCHEMA mill_target TO blind;
         ALTER FUNCTION mill_target.check_conditions OWNER TO blind",
    )
    .await;
    queue.execute("SELECT mill.set_target_conditions('dwh', max_active_sessions => 1000)").await;
    let error = "SELECT coalesce(max(error), '') FROM mill.workers";
    eventually("the worker reports the error", async || {
        let error: String = queue.value(error).await;
        error.starts_with("conditions of target dwh: ")
            && error.contains("may not see the sessions")
    })
    .await;
    let id = queue.enqueue(EFFECT, IN_TARGET).await;
    assert_eq!(queue.outcome(id).await, "succeeded");
    let recorded = "SELECT action || ' ' || subject FROM mill.audit ORDER BY id DESC LIMIT 1";
    assert_eq!(queue.value::<String>(recorded).await, "set_target_conditions target dwh");
    // The report ends with the conditions.
    queue.execute("SELECT mill.set_target_conditions('dwh')").await;
    eventually("the report has ended", async || queue.value::<String>(error).await.is_empty())
        .await;
}

#[tokio::test]
async fn targets_and_queues_have_the_same_conditions() {
    let queue = Database::new().await;
    let dwh = Database::empty().await;
    queue::receipt::init(dwh.client(), &[]).await.unwrap();
    for function in ["hold_reason", "record_wal_position", "replication_lags"] {
        let source = |schema| {
            format!("SELECT prosrc FROM pg_proc WHERE oid = '{schema}.{function}'::regproc")
        };
        let at_home: String = queue.value(&source("mill")).await;
        let in_target: String = dwh.value(&source("mill_target")).await;
        assert_eq!(at_home, in_target.replace("mill_target.", "mill."), "{function}");
    }
}

#[tokio::test]
async fn conditions_of_a_target_are_checked_after_the_clock_was_set_back() {
    let queue = Database::new().await;
    queue
        .execute(
            "SELECT mill.set_target('dwh');
             INSERT INTO mill.target_checks (name, begun_at) VALUES ('dwh', now() + interval '1 hour')",
        )
        .await;
    let begun = "SELECT count(*) FROM mill.begin_target_check('dwh')";
    assert_eq!(queue.value::<i64>(begun).await, 1);
    let dwh = Database::empty().await;
    queue::receipt::init(dwh.client(), &[]).await.unwrap();
    dwh.execute(
        "INSERT INTO mill_target.wal_positions VALUES (now() + interval '1 hour', '0/1');
         SELECT mill_target.check_conditions(NULL, NULL, 1000)",
    )
    .await;
    let ahead =
        "SELECT count(*) FROM mill_target.wal_positions WHERE written_at > clock_timestamp()";
    assert_eq!(dwh.value::<i64>(ahead).await, 0);
}
