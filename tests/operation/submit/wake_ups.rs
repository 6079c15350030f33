//! An enqueue by SQL notifies the workers, unless one of them looks for tasks in its lane anyway.

use crate::harness::login::Login;
use crate::harness::{Database, PrivateDatabase, Worker, eventually};
use crate::notifications::listener::Listener;

/// A statement, and whether the workers are notified.
const CASES: &[(&str, bool)] = &[
    ("SELECT mill.enqueue('SELECT 1')", true),
    ("SELECT mill.enqueue_many(ARRAY['SELECT 1', 'SELECT 2'])", true),
    ("SELECT mill.enqueue_many('{}')", false),
    ("SELECT mill.start_run('{j}')", true),
    ("SELECT mill.cancel_run(max(r.id)) FROM mill.runs r", true),
    ("SELECT mill.restart_run(max(r.id), force => true) FROM mill.runs r", true),
    ("SELECT mill.start_run('{approved}')", true),
    ("SELECT mill.approve(max(r.id), 't') FROM mill.runs r", true),
    ("SELECT mill.enqueue('SELECT 1', due_at => now() + interval '1 day')", false),
    ("SELECT mill.enqueue('SELECT 1', group_name => 'narrow')", true),
    ("SELECT mill.enqueue('SELECT 1', key => 'live')", false),
    ("BEGIN; SELECT mill.enqueue('SELECT 1'); ROLLBACK", false),
    ("BEGIN; SET LOCAL mill.notify = off; SELECT mill.enqueue('SELECT 1'); COMMIT", false),
    ("SELECT {watch}, mill.enqueue('SELECT 1')", false),
    ("SELECT {watch}, mill.enqueue_many(ARRAY['SELECT 1'])", false),
    ("SELECT {watch}, mill.enqueue('SELECT 1', priority => 'high')", true),
    ("SELECT {watch}, mill.enqueue('SELECT 1', queue => 'other')", true),
    ("SELECT {watch}, mill.start_run('{j}')", true),
    // Another worker does not end the watch, nor does it watch the same lane.
    ("SELECT {watch}, mill.watch_lanes('{b}', '{}', '{}', '{}', 0), mill.enqueue('SELECT 1')", false),
    ("SELECT {watch}, 1 / mill.watch_lanes('{b}', '{default}', '{normal}', ARRAY[''], 1000)::integer", false),
    ("SELECT {watch}, mill.watch_lanes('{a}', '{}', '{}', '{}', 0), mill.enqueue('SELECT 1')", true),
    // A notification holds for all lanes, until a worker has followed it.
    ("SELECT mill.set_watched(4294967295, 0, 1000), mill.enqueue('SELECT 1'), mill.start_run('{j}')", false),
    (
        "SELECT mill.set_watched(4294967295, 0, 1000), mill.watch_lanes('{b}', '{}', '{}', '{}', 0),
            mill.enqueue('SELECT 1')",
        true,
    ),
    // What a server that has crashed, or another clock, has left.
    ("SELECT mill.set_watched(4294967295, 7, -1), mill.enqueue('SELECT 1')", true),
    ("SELECT mill.set_watched(4294967295, 7, 5000), mill.enqueue('SELECT 1')", true),
];

const A: &str = "00000000-0000-0000-0000-00000000000a";
const B: &str = "00000000-0000-0000-0000-00000000000b";

#[tokio::test]
async fn an_enqueue_notifies_unless_a_worker_watches_the_lane() {
    let database = Database::new().await;
    database
        .execute(
            r#"SELECT mill.set_job('j', '[{"name": "t", "statement": "SELECT 1"}]');
            SELECT mill.set_job('approved', '[{"name": "t", "statement": "SELECT 1", "approval": true}]');
            SELECT mill.set_group('narrow'); SELECT mill.set_max_running('group', 'narrow', 1); SELECT mill.enqueue('SELECT 1', key => 'live')"#,
        )
        .await;
    let mut listener = Listener::start(&database, "mill").await;
    let watch = format!("mill.watch_lanes('{A}', '{{default}}', '{{normal}}', ARRAY[''], 1000)");
    let mut wrong = Vec::new();
    for (case, notified) in CASES {
        database.execute("SELECT mill.set_watched(0, 0, 0)").await;
        let sql = case.replace("{watch}", &watch).replace("{a}", A).replace("{b}", B);
        // The case of the second watch ends with a division by its answer.
        let ended = database.client().batch_execute(&sql).await;
        assert_eq!(ended.is_err(), sql.contains("1 / "), "{sql}: {ended:?}");
        let received = listener.all().await;
        let expected: &[&str] = if *notified { &["work"] } else { &[] };
        if received != expected {
            wrong.push(format!("{sql}: {received:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn notifications_are_switched_off_for_a_login_or_the_database() {
    let database = Database::new().await;
    let mut listener = Listener::start(&database, "mill").await;
    let producer = Login::new(&database, "producer", "mill_producer").await;
    let mut enqueue = async || {
        database.execute("SELECT mill.set_watched(0, 0, 0)").await;
        producer.connect().await.batch_execute("SELECT mill.enqueue('SELECT 1')").await.unwrap();
        listener.all().await.len()
    };
    assert_eq!(enqueue().await, 1);
    let (name, login) = (database.name(), &producer.name);
    database.execute(&format!("ALTER ROLE {login} SET mill.notify = off")).await;
    assert_eq!(enqueue().await, 0);
    database.execute(&format!("ALTER ROLE {login} RESET mill.notify")).await;
    database.execute(&format!("ALTER DATABASE {name} SET mill.notify = off")).await;
    assert_eq!(enqueue().await, 0);
    database.execute(&format!("ALTER ROLE {login} SET mill.notify = on")).await;
    assert_eq!(enqueue().await, 1);
    producer.gone().await;
}

#[tokio::test]
async fn a_transaction_that_enqueues_can_be_prepared() {
    let private = PrivateDatabase::new(&[("max_prepared_transactions", "4")]).await;
    let database = &private.database;
    database
        .execute(r#"SELECT mill.set_job('j', '[{"name": "t", "statement": "SELECT 1"}]')"#)
        .await;
    let mut listener = Listener::start(database, "mill").await;
    database.execute("BEGIN; SELECT mill.enqueue('SELECT 1'); PREPARE TRANSACTION 'p'").await;
    database.execute("COMMIT PREPARED 'p'").await;
    assert_eq!(listener.all().await.len(), 0);
    database.execute("SET mill.notify = on; SELECT mill.enqueue('SELECT 1')").await;
    assert_eq!(listener.all().await, ["work"]);
    // The action of an operator is not prepared.
    database.execute("RESET mill.notify; SELECT mill.start_run(ARRAY['j'])").await;
    assert_eq!(listener.all().await, [""; 0]);
    database.execute("SELECT mill.cancel_run(1)").await;
    assert_eq!(listener.all().await, ["work"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_watches_its_lanes_while_tasks_come_and_then_wants_to_be_notified() {
    let database = Database::new().await;
    let mut worker = Worker::start(&database, &["--readers", "4"]);
    // The number of the worker, and whether the lane of the tasks is watched.
    let watch = "SELECT coalesce(pg_sequence_last_value('mill.watched_lanes') >> 32 & 2047 <> 0, false)
        AND pg_sequence_last_value('mill.watched_lanes') & mill.lane_bit('default', 'normal', '') <> 0";
    eventually("the worker watches the lane", async || {
        database.enqueue("SELECT 1", "").await;
        database.value(watch).await
    })
    .await;
    database.until_empty().await;
    // A worker that was stopped meanwhile lets its watch expire.
    let ended = "SELECT mill.is_watched(mill.lane_bit('default', 'normal', '')) IS NOT TRUE";
    eventually("the watch of the worker has ended", async || database.value(ended).await).await;
    let mut listener = Listener::start(&database, "mill").await;
    let task = database.enqueue("SELECT 1", "").await;
    assert_eq!(listener.next().await, "work");
    assert_eq!(database.outcome(task).await, "succeeded");
    assert!(worker.terminate().await.success());
}

#[tokio::test]
async fn an_enqueue_in_an_idle_fleet_asks_for_permits_before_the_next_poll() {
    let private = PrivateDatabase::new(&[("log_min_duration_statement", "0")]).await;
    let database = &private.database;
    database.execute("SELECT mill.set_max_running('queue', 'narrow', 1)").await;
    let _worker = Worker::start(database, &["--readers", "1"]);
    let log = || std::fs::read_to_string(private.cluster.log()).unwrap();
    // A poll may come first by chance.
    eventually("a permit is granted before a poll", async || {
        // The last poll has found no task.
        let idle = log().len();
        let polls = || log()[idle..].matches("queue.poll").count();
        eventually("the fleet has polled twice", async || polls() >= 2).await;
        let begun = log().len();
        let task = database.enqueue("SELECT 1", ", queue => 'narrow'").await;
        assert_eq!(database.outcome(task).await, "succeeded");
        let log = &log()[begun..];
        let granted = log.find("queue.grant_waiting_permits").unwrap_or(log.len());
        !log[..granted].contains("queue.poll")
    })
    .await;
}
