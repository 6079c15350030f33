//! A queue is held back while a condition does not hold: a standby lags, a snapshot is old, or many
//! sessions are active.

use jiff::Timestamp;
use queue::claim::{ClaimSession, Lane, LaneRange, SessionIdentity};
use queue::{Priority, WorkerId};
use schedule::reconcile::reconcile;
use serde_json::Value;

use crate::harness::{Database, PrivateDatabase, Program, Worker, eventually};

const FLAGS: [&str; 4] = ["--readers", "2", "--poll-interval", "100ms"];
const HELD_BACK: &str = "SELECT coalesce(max(held_back), '') FROM mill.queues WHERE name = 'etl'";
const ETL: &str = ", queue => 'etl'";

async fn why(database: &Database, id: i64) -> String {
    database.value(&format!("SELECT mill.why({id})")).await
}

/// Waits until workers claim nothing from the queue; returns the reason.
async fn until_held_back(database: &Database) -> String {
    eventually("the queue is held back", async || {
        !database.value::<String>(HELD_BACK).await.is_empty()
    })
    .await;
    database.value(HELD_BACK).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_held_back_while_the_replay_of_a_standby_lags() {
    let private = PrivateDatabase::new(&[]).await;
    let database = &private.database;
    let standby = private.standby().await;
    let copy = database.in_copy(standby.url("postgres")).await;
    let _worker = Worker::start(database, &FLAGS);
    Program::pgmill(database, &["queue", "set", "etl", "--create", "--max-replication-lag", "5s"])
        .succeeds()
        .await;
    let id = database.enqueue("SELECT 1", ETL).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    copy.execute("SELECT pg_wal_replay_pause()").await;
    let reason = until_held_back(database).await;
    assert!(reason.starts_with("the replication lag of standby standby is "), "{reason}");
    assert!(reason.ends_with(" s, above 5 s"), "{reason}");
    // Other queues are not affected.
    let waiting = database.enqueue("SELECT 1", ETL).await;
    let other = database.enqueue("SELECT 1", "").await;
    assert_eq!(database.outcome(other).await, "succeeded");
    let sentence = why(database, waiting).await;
    assert!(sentence.starts_with(r#"queue "etl" is held back: the replication lag"#), "{sentence}");
    for arguments in [["why", "etl"].as_slice(), &["queue", "list"], &["status"]] {
        let text = Program::pgmill(database, arguments).run().await.1;
        assert!(text.contains("held back") && text.contains("above 5 s"), "{arguments:?}: {text}");
    }
    assert_eq!(database.value::<i64>("SELECT mill.scale_hint()::bigint").await, 0);
    copy.execute("SELECT pg_wal_replay_resume()").await;
    assert_eq!(database.outcome(waiting).await, "succeeded");
    eventually("the queue is not held back", async || {
        database.value::<String>(HELD_BACK).await.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_held_back_while_a_snapshot_is_old() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    let old = database.connect().await;
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.unwrap();
    database.execute("SELECT mill.set_queue_conditions('etl', max_snapshot_age => '1 s')").await;
    let pid: i32 = old.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let reason = format!("the snapshot of session {pid} of user ");
    // The reason names the oldest snapshot. On a busy machine, this may be that of a worker for a moment.
    eventually("the snapshot is the reason", async || {
        database.value::<String>(HELD_BACK).await.starts_with(&reason)
    })
    .await;
    let id = database.enqueue("SELECT 1", ETL).await;
    assert!(why(&database, id).await.contains("held back"));
    old.batch_execute("COMMIT").await.unwrap();
    assert_eq!(database.outcome(id).await, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_held_back_while_many_sessions_are_active() {
    let private = PrivateDatabase::new(&[]).await;
    let database = &private.database;
    let set = |condition| ["queue", "set", "etl", "--create", "--max-active-sessions", condition];
    database.execute("SELECT pg_advisory_lock(1)").await;
    let _worker = Worker::start(database, &FLAGS);
    for _ in 0..2 {
        let busy = database.enqueue("SELECT pg_advisory_xact_lock(1)", "").await;
        database.until_waiting_for_lock(busy).await;
    }
    let text = Program::pgmill(database, &set("1")).succeeds().await;
    assert_eq!(text.trim(), "tasks of queue etl start only with max active sessions 1");
    let reason = until_held_back(database).await;
    assert!(reason.ends_with(" sessions are active, above 1"), "{reason}");
    // An operator lifts the condition, which takes effect at once.
    let answer = Program::pgmill(database, &[&set("off")[..], &["--json"]].concat());
    let answer: Value = serde_json::from_str(&answer.succeeds().await).unwrap();
    assert_eq!(answer["was"]["max_active_sessions"], 1);
    assert_eq!(answer["now"]["max_active_sessions"], Value::Null);
    assert_eq!(answer["now"]["held_back"], Value::Null);
    database.execute("SELECT pg_advisory_unlock(1)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_nothing_from_a_queue_that_is_held_back() {
    let database = Database::new().await;
    database.enqueue_many(2, "SELECT 1").await;
    let claimer =
        ClaimSession::new(database.connect().await, WorkerId::random(), None).await.unwrap();
    let (queue, run_as) = ("default".to_owned(), String::new());
    let lanes = [LaneRange::whole(Lane { queue, priority: Priority::Normal, run_as })];
    let sessions = [SessionIdentity { pid: 1, started_at: Timestamp::UNIX_EPOCH }];
    let claimed = async || claimer.claim(&lanes, &sessions).await.unwrap().len();
    assert_eq!(claimed().await, 1);
    database.execute("INSERT INTO mill.queues (name, held_back) VALUES ('default', 'it')").await;
    assert_eq!(claimed().await, 0);
    // A check of the conditions, of which there are none, ends it.
    assert_eq!(database.value::<i32>("SELECT mill.check_queue_conditions()").await, 1);
    assert_eq!(claimed().await, 1);
}

#[tokio::test]
async fn conditions_are_checked_while_a_sync_of_the_schedules_is_open() {
    let database = Database::new().await;
    database.execute("INSERT INTO mill.queues (name, held_back) VALUES ('etl', 'it')").await;
    let mut session = database.connect().await;
    let mut sync = session.transaction().await.unwrap();
    reconcile(&mut sync).await.unwrap();
    assert_eq!(database.value::<i32>("SELECT mill.check_queue_conditions()").await, 1);
    assert_eq!(database.value::<String>(HELD_BACK).await, "");
    sync.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_check_stops_nothing_else_and_is_reported() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_queue_conditions('etl', max_active_sessions => 1000);
             CREATE OR REPLACE FUNCTION mill.check_queue_conditions() RETURNS integer
             LANGUAGE plpgsql AS 'BEGIN RAISE division_by_zero; END'",
        )
        .await;
    let _worker = Worker::start(&database, &FLAGS);
    // Only a poll tells the worker when this task is due.
    let id = database.enqueue("SELECT 1", ", due_at => now() + interval '1 second'").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    let error = "SELECT count(*) FROM mill.workers WHERE error LIKE 'conditions of queues: %'";
    eventually("the worker reports the error", async || database.value::<i64>(error).await == 1)
        .await;
    // The report ends with the conditions.
    database.execute("UPDATE mill.queues SET max_active_sessions = NULL").await;
    eventually("the report has ended", async || database.value::<i64>(error).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_are_checked_and_lags_stay_known_after_the_clock_was_set_back() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_queue_conditions('etl', max_active_sessions => 1000);
             UPDATE mill.queues SET held_back = 'before' WHERE name = 'etl';
             INSERT INTO mill.wal_positions VALUES (now() + interval '1 hour', '0/2'),
                 (now() + interval '1 hour' - interval '30 s', '0/1')",
        )
        .await;
    let _worker = Worker::start(&database, &FLAGS);
    eventually("the queue is not held back", async || {
        database.value::<String>(HELD_BACK).await.is_empty()
    })
    .await;
    let kept: String = database
        .value(
            "SELECT concat_ws(' ', max(written_at) FILTER (WHERE lsn = '0/2') - min(written_at),
                 count(*) FILTER (WHERE written_at > clock_timestamp())) FROM mill.wal_positions",
        )
        .await;
    assert_eq!(kept, "00:00:30 0", "their distance, and how many are in the future");
}

#[tokio::test]
async fn a_change_of_several_settings_is_made_as_a_whole_and_its_dry_run_asks_the_database() {
    let database = Database::new().await;
    // The last setting is out of range.
    let set =
        ["queue", "set", "etl", "--create", "--max-running", "5", "--max-replication-lag", "1s"];
    for flags in [&["--dry-run"][..], &[]] {
        let (code, _, error) = Program::pgmill(&database, &[&set[..], flags].concat()).run().await;
        assert_eq!(code, 5, "{error}");
        let stored =
            "SELECT (SELECT count(*) FROM mill.queues) + (SELECT count(*) FROM mill.limits)";
        assert_eq!(database.value::<i64>(stored).await, 0, "{flags:?}");
    }
    let limit = ["limit", "set", "k", "--create", "--max-running", "5", "--rate", "5/366d"];
    let (code, _, error) = Program::pgmill(&database, &limit).run().await;
    assert_eq!(code, 5, "{error}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.limits").await, 0);
}
