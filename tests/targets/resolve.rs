//! An attempt whose end nobody saw is resolved in its target, whatever moment it was interrupted at.

use proxy::{Cut, Damage, DamageKind, FaultAction, MessageMatch, Proxy};
use serde_json::json;

use crate::harness::login::PASSWORD;
use crate::harness::{Database, PrivateDatabase, Worker, eventually};
use crate::runs::run::{end, job, start};
use crate::targets::target::{Configuration, EFFECT, EFFECTS, as_flags, effects};

const COMMIT: &str = "queue.write_receipt";

/// Number of transactions in progress that have written. A transaction whose COMMIT was refused is aborted, and
/// remains open until its worker continues.
pub(crate) const OPEN: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND backend_xid IS NOT NULL AND state IN ('idle in transaction', 'active')";

/// A login that cannot terminate backends. Otherwise the backend of a reclaimed attempt would be gone before
/// its COMMIT arrives, and its receipt would have nothing to prevent.
const NO_TERMINATION: &str =
    "REVOKE EXECUTE ON FUNCTION pg_terminate_backend(integer, bigint) FROM PUBLIC";

/// A worker whose task has run in a target on another server, while a proxy holds the receipt and
/// COMMIT. Fields are in the order in which they are dropped.
pub(crate) struct HeldCommit {
    pub(crate) first: Worker,
    pub(crate) flags: Vec<String>,
    _configuration: Configuration,
    pub(crate) proxy: Proxy,
    pub(crate) server: PrivateDatabase,
    pub(crate) queue: Database,
    pub(crate) id: i64,
}

impl HeldCommit {
    async fn new() -> Self {
        Self::of(EFFECT, "").await
    }

    /// Prepares the target with some SQL, and runs a task with this statement.
    pub(crate) async fn of(statement: &str, prepare: &str) -> Self {
        let queue = Database::new().await;
        let server = PrivateDatabase::new(&[]).await;
        let dwh = &server.database;
        dwh.execute(prepare).await;
        dwh.execute(&format!("CREATE ROLE loader LOGIN PASSWORD '{PASSWORD}'; {NO_TERMINATION}"))
            .await;
        let url = dwh.url_as("loader", PASSWORD);
        let proxy = Proxy::start(&url).await.unwrap();
        let through = proxy.url(&url);
        let configuration = Configuration::new(&queue, &[("dwh", dwh, through)]).await;
        queue::receipt::init(dwh.client(), &["loader".to_owned()]).await.unwrap();
        dwh.execute("GRANT INSERT ON effect TO loader").await;
        let flags = configuration.flags();
        let first = Worker::start(&queue, &as_flags(&flags));
        first.until_logged("ready").await;
        proxy.arm(MessageMatch::Text(COMMIT.to_owned()), FaultAction::Hold);
        let id = queue.enqueue(statement, ", run_as => 'dwh'").await;
        proxy.fired().await;
        Self { first, flags, _configuration: configuration, proxy, server, queue, id }
    }
}

/// A queue, and a target that workers reach through a proxy.
async fn behind_proxy() -> (Database, Database, Proxy, Configuration) {
    let queue = Database::new().await;
    let dwh = Database::empty().await;
    let proxy = Proxy::start(&dwh.url()).await.unwrap();
    let through = proxy.url(&dwh.url());
    let configuration = Configuration::new(&queue, &[("dwh", &dwh, through)]).await;
    (queue, dwh, proxy, configuration)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_resolved_by_its_receipt() {
    for cut in [Cut::Before, Cut::After, Cut::Unseen] {
        let (queue, dwh, proxy, configuration) = behind_proxy().await;
        let flags = configuration.flags();
        let _worker = Worker::start(&queue, &as_flags(&flags));
        proxy.arm(MessageMatch::Text(COMMIT.to_owned()), FaultAction::Cut(cut));
        let id = queue.enqueue(EFFECT, ", run_as => 'dwh', max_attempts => 1").await;
        proxy.fired().await;
        assert_eq!(queue.outcome(id).await, "succeeded", "{cut:?}");
        assert_eq!(effects(&dwh).await, (1, 1), "{cut:?}");
        let rows = "SELECT rows FROM mill.attempts WHERE outcome = 'succeeded'";
        assert_eq!(queue.value::<i64>(rows).await, 1, "{cut:?}");
    }
}

/// The server notices nothing of the lost connection, so the transaction stays open with its row lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_never_arrives_leaves_no_lock_for_the_next_attempt() {
    let (queue, dwh, proxy, configuration) = behind_proxy().await;
    dwh.execute("CREATE TABLE counter AS SELECT 0 AS n").await;
    let flags = configuration.flags();
    let _worker = Worker::start(&queue, &as_flags(&flags));
    proxy.arm(MessageMatch::Text(COMMIT.to_owned()), FaultAction::Cut(Cut::UnseenBefore));
    let increment = "UPDATE counter SET n = n + 1";
    let id = queue.enqueue(increment, ", run_as => 'dwh', max_attempts => 1").await;
    proxy.fired().await;
    assert_eq!(queue.outcome(id).await, "succeeded");
    assert_eq!(dwh.value::<i32>("SELECT n FROM counter").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_its_receipt_completes_passes_its_result_on() {
    let (queue, _dwh, proxy, configuration) = behind_proxy().await;
    queue.execute("CREATE TABLE taken (text text)").await;
    let tasks = json!([
        {"name": "load", "run_as": "dwh", "max_attempts": 1, "statement": r"SELECT 'it''s \ here' AS text"},
        {"name": "use", "statement": "INSERT INTO taken VALUES ($1::text)", "after": ["load"],
         "params": [{"$result": "load", "column": "text"}]},
    ]);
    job(&queue, "daily", tasks).await;
    let flags = configuration.flags();
    let _worker = Worker::start(&queue, &as_flags(&flags));
    proxy.arm(MessageMatch::Text(COMMIT.to_owned()), FaultAction::Cut(Cut::After));
    let run = start(&queue, "daily").await;
    proxy.fired().await;
    assert_eq!(end(&queue, run).await, "succeeded");
    let taken: Option<String> = queue.value("SELECT text FROM taken").await;
    assert_eq!(taken.as_deref(), Some(r"it's \ here"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_arrives_after_its_claim_was_reclaimed_has_no_effect() {
    let HeldCommit { first, flags, proxy, server, queue, id, .. } = &HeldCommit::new().await;
    let (dwh, id) = (&server.database, *id);
    // The first worker does not run while the second one declares it dead and runs the task.
    first.signal(rustix::process::Signal::STOP);
    let _second = Worker::start(queue, &as_flags(flags));
    assert_eq!(queue.outcome(id).await, "succeeded");
    assert_eq!(queue.attempts(id).await, "lost succeeded");
    proxy.release(true);
    first.signal(rustix::process::Signal::CONT);
    let next = queue.enqueue(EFFECT, ", run_as => 'dwh'").await;
    assert_eq!(queue.outcome(next).await, "succeeded");
    eventually("no transaction is open", async || dwh.value::<i64>(OPEN).await == 0).await;
    assert_eq!(effects(dwh).await, (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_arrives_after_its_task_was_cancelled_has_no_effect() {
    let mut held = HeldCommit::new().await;
    let HeldCommit { first, flags, proxy, server, queue, id, .. } = &mut held;
    let (dwh, id) = (&server.database, *id);
    first.signal(rustix::process::Signal::STOP);
    queue.execute(&format!("SELECT mill.cancel({id})")).await;
    let _second = Worker::start(queue, &as_flags(flags));
    assert_eq!(queue.outcome(id).await, "cancelled");
    proxy.release(true);
    eventually("the transaction has ended", async || dwh.value::<i64>(OPEN).await == 0).await;
    first.kill();
    assert_eq!(effects(dwh).await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_down_makes_its_own_tasks_wait_and_no_other() {
    let queue = Database::new().await;
    let mut dwh = PrivateDatabase::new(&[]).await;
    let url = dwh.database.url();
    let configuration = Configuration::new(&queue, &[("dwh", &dwh.database, url)]).await;
    queue.execute(EFFECTS).await;
    let flags = configuration.flags();
    let mut first = Worker::start(&queue, &as_flags(&flags));
    let slow =
        format!("{EFFECT}; SELECT pg_sleep(3600) WHERE current_setting('mill.attempt') = '1'");
    let running = queue.enqueue(&slow, ", run_as => 'dwh'").await;
    queue.until_state(running, "running").await;
    // The worker dies before it can record that the connection was lost.
    first.kill();
    dwh.cluster.crash().unwrap();
    let _second = Worker::start(&queue, &as_flags(&flags));
    let waiting = queue.enqueue(EFFECT, ", run_as => 'dwh'").await;
    let at_home = queue.enqueue(EFFECT, "").await;
    assert_eq!(queue.outcome(at_home).await, "succeeded");
    // Nobody knows whether the task of the dead worker has committed, so it stays claimed.
    let reclaimed = "SELECT count(*) FROM mill.attempts WHERE outcome = 'lost'";
    let third = Worker::start(&queue, &as_flags(&flags));
    third.until_logged("could not resolve the tasks of a dead worker").await;
    assert_eq!(queue.value::<i64>(reclaimed).await, 0);
    let error = "SELECT count(*) FROM mill.workers WHERE error LIKE '%target dwh%'";
    eventually("the workers report the target", async || queue.value::<i64>(error).await > 0).await;
    let why = format!("SELECT mill.why({waiting})");
    eventually("the reason is the target", async || {
        queue.value::<String>(&why).await.contains("no worker reaches its target: target dwh: ")
    })
    .await;
    dwh.cluster.start_again().unwrap();
    dwh.database.reconnect().await;
    for id in [running, waiting] {
        assert_eq!(queue.outcome(id).await, "succeeded");
    }
    assert_eq!(effects(&dwh.database).await, (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_and_timeout_end_a_task_in_its_target() {
    let queue = Database::new().await;
    let dwh = Database::empty().await;
    let configuration = Configuration::new(&queue, &[("dwh", &dwh, dwh.url())]).await;
    let flags = configuration.flags();
    let _worker = Worker::start(&queue, &as_flags(&flags));
    let slow = format!("{EFFECT}; SELECT pg_sleep(3600)");
    let id = queue.enqueue(&slow, ", run_as => 'dwh'").await;
    queue.until_state(id, "running").await;
    queue.execute(&format!("SELECT mill.cancel({id})")).await;
    assert_eq!(queue.outcome(id).await, "cancelled");
    let limited = ", run_as => 'dwh', timeout => '100 milliseconds', max_attempts => 1";
    let id = queue.enqueue(&slow, limited).await;
    assert_eq!(queue.outcome(id).await, "timed_out");
    let autocommit = format!("{limited}, mode => 'autocommit'");
    let id = queue.enqueue("SELECT pg_sleep(3600)", &autocommit).await;
    assert_eq!(queue.outcome(id).await, "timed_out");
    assert_eq!(effects(&dwh).await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backend_of_a_dead_workers_autocommit_task_ends_before_the_task_runs_again() {
    let queue = Database::new().await;
    let server = PrivateDatabase::new(&[]).await;
    let dwh = &server.database;
    let configuration = Configuration::new(&queue, &[("dwh", dwh, dwh.url())]).await;
    let flags = configuration.flags();
    let mut first = Worker::start(&queue, &as_flags(&flags));
    // The sleeping backend does not notice that its client is gone.
    let sleeps = "SELECT pg_sleep(3600) WHERE current_setting('mill.attempt') = '1'";
    let statement = format!("{EFFECT}; {sleeps}");
    let id = queue.enqueue(&statement, ", run_as => 'dwh', mode => 'autocommit'").await;
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    eventually("the task sleeps", async || dwh.value::<i64>(asleep).await == 1).await;
    first.kill();
    let _second = Worker::start(&queue, &as_flags(&flags));
    assert_eq!(queue.outcome(id).await, "succeeded");
    assert_eq!(queue.attempts(id).await, "lost succeeded");
    assert_eq!(dwh.value::<i64>(asleep).await, 0);
    assert_eq!(effects(dwh).await, (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_damaged_is_resolved_by_its_receipt() {
    let (queue, dwh, proxy, configuration) = behind_proxy().await;
    let flags = configuration.flags();
    let _worker = Worker::start(&queue, &as_flags(&flags));
    // The client takes some types for a closed connection, and others for a protocol error.
    for (n, bit) in (1..).zip([0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80]) {
        let damage = Damage { message: 0, byte: 0, kind: DamageKind::Flip(bit) };
        let commit = MessageMatch::Text(COMMIT.to_owned());
        proxy.arm(commit, FaultAction::DamageAnswer(damage));
        let id = queue.enqueue(EFFECT, ", run_as => 'dwh', max_attempts => 1").await;
        proxy.fired().await;
        assert_eq!(queue.outcome(id).await, "succeeded", "{damage:?}");
        assert_eq!(effects(&dwh).await, (n, n), "{damage:?}");
        proxy.disarm();
    }
}

/// The cancel of a timeout ends the wait for a standby, and the server reports a success.
#[tokio::test(flavor = "multi_thread")]
async fn an_autocommit_statement_that_was_cancelled_succeeds_when_a_standby_has_it() {
    let queue = Database::new().await;
    let server = PrivateDatabase::new(&[]).await;
    let dwh = &server.database;
    let configuration = Configuration::new(&queue, &[("dwh", dwh, dwh.url())]).await;
    let flags = configuration.flags();
    let worker = Worker::start(&queue, &as_flags(&flags));
    worker.until_logged("ready").await;
    dwh.execute("SET synchronous_commit = local").await;
    dwh.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await;
    dwh.execute("SELECT pg_reload_conf()").await;
    let waits = "SELECT count(*) > 0 FROM pg_stat_activity
        WHERE wait_event = 'SyncRep' AND query LIKE '%mill_target.resolve%'";
    // The server applies the setting at some time.
    eventually("a success waits for a standby", async || {
        let options = ", run_as => 'dwh', mode => 'autocommit', timeout => '1 s'";
        queue.enqueue(EFFECT, options).await;
        dwh.value::<bool>(waits).await
    })
    .await;
    dwh.execute("ALTER SYSTEM RESET synchronous_standby_names").await;
    dwh.execute("SELECT pg_reload_conf()").await;
    queue.until_empty().await;
    let succeeded =
        "SELECT array_agg(task_id ORDER BY task_id) FROM mill.attempts WHERE outcome = 'succeeded'";
    let succeeded: Vec<i64> = queue.value(succeeded).await;
    let with_effect = "SELECT count(DISTINCT task) FROM effect WHERE task = ANY ($1)";
    let with_effect: i64 = dwh.rows(with_effect, &[&succeeded]).await[0].get(0);
    assert_eq!(usize::try_from(with_effect), Ok(succeeded.len()));
}

#[tokio::test]
async fn a_receipt_from_a_day_without_history_is_recorded_now() {
    let queue = Database::new().await;
    queue.create_day(20).await;
    let oldest = "SELECT to_date(right(min(relname::text), 8), 'YYYYMMDD')::text FROM pg_class
        JOIN pg_inherits ON inhrelid = oid WHERE inhparent = 'mill.attempts'::regclass";
    let oldest: String = queue.value(oldest).await;
    let recorded_in_the_past = async |claimed_at: &str| -> bool {
        let id = queue.enqueue("SELECT 1", "").await;
        queue.run_as_worker(&format!("id = {id}")).await;
        queue
            .execute(&format!("UPDATE mill.tasks SET claimed_at = {claimed_at} WHERE id = {id}"))
            .await;
        let record = format!(
            "SELECT mill.record_receipt(id, token, 1, 5, NULL) FROM mill.tasks WHERE id = {id}"
        );
        assert!(queue.value::<bool>(&record).await);
        let past = format!(
            "SELECT finished_at < now() - interval '10 days' FROM mill.attempts WHERE task_id = {id}"
        );
        queue.value(&past).await
    };
    assert!(recorded_in_the_past(&format!("'{oldest} 00:00Z'")).await);
    // A shorter retention has dropped the day before, and was then made longer again.
    assert!(
        !recorded_in_the_past(&format!("'{oldest} 00:00Z'::timestamptz - interval '9 h'")).await
    );
}
