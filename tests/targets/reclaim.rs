//! Tasks of dead workers wait only for what they need: neither for another task of their worker, nor for a
//! target in which they do not run.

use crate::harness::{Database, PrivateDatabase, Worker, eventually};
use crate::targets::target::{Configuration, EFFECT, EFFECTS, FLAGS, as_flags, effects};

const FIRST_ATTEMPT: &str = "current_setting('mill.attempt') = '1'";

/// A table whose deferred trigger waits for an advisory lock during the first COMMIT.
const WAIT_AT_COMMIT: &str = "CREATE TABLE slow (task bigint);
    CREATE FUNCTION wait_once() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock(1) WHERE current_setting('mill.attempt') = '1';
        RETURN NULL;
    END
    $$;
    CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION wait_once()";

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_commit_does_not_delay_the_other_tasks_of_a_dead_worker() {
    let queue = Database::new().await;
    let server = PrivateDatabase::new(&[]).await;
    let dwh = &server.database;
    dwh.execute(WAIT_AT_COMMIT).await;
    let configuration = Configuration::new(&queue, &[("dwh", dwh, dwh.url())]).await;
    let flags = configuration.flags();
    let mut first = Worker::start(&queue, &as_flags(&flags));
    dwh.execute("SELECT pg_advisory_lock(1)").await;
    let in_commit = queue.enqueue("INSERT INTO slow VALUES (1)", ", run_as => 'dwh'").await;
    let statement = format!("{EFFECT}; SELECT pg_sleep(3600) WHERE {FIRST_ATTEMPT}");
    let other = queue.enqueue(&statement, ", run_as => 'dwh'").await;
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND wait_event IN ('advisory', 'PgSleep')";
    eventually("both tasks wait", async || dwh.value::<i64>(busy).await == 2).await;
    first.kill();
    let _second = Worker::start(&queue, &as_flags(&flags));
    // The lock is held all the time.
    for id in [other, in_commit] {
        assert_eq!(queue.outcome(id).await, "succeeded");
        assert_eq!(queue.attempts(id).await, "lost succeeded");
    }
    assert_eq!(effects(dwh).await, (1, 1));
    assert_eq!(dwh.value::<i64>("SELECT count(*) FROM slow").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_target_does_not_delay_the_tasks_of_other_dead_workers() {
    let queue = Database::new().await;
    let dwh = PrivateDatabase::new(&[]).await;
    let url = dwh.database.url();
    let configuration = Configuration::new(&queue, &[("dwh", &dwh.database, url)]).await;
    queue.execute(EFFECTS).await;
    let flags = configuration.flags();
    let with_target = |queues| [&as_flags(&flags)[..], &["--queues", queues]].concat();
    let mut of_target = Worker::start(&queue, &with_target("default"));
    let mut of_queue = Worker::start(&queue, &[&FLAGS[..], &["--queues", "other"]].concat());
    let slow = format!("{EFFECT}; SELECT pg_sleep(3600) WHERE {FIRST_ATTEMPT}");
    let in_target = queue.enqueue(&slow, ", run_as => 'dwh'").await;
    let at_home = queue.enqueue(&slow, ", queue => 'other'").await;
    for id in [in_target, at_home] {
        queue.until_state(id, "running").await;
    }
    let survivor = Worker::start(&queue, &with_target("default,other"));
    survivor.until_logged("ready").await;
    // The survivor has sessions in the target.
    let epoch = "SELECT last_value FROM mill.target_epochs";
    let checked = "SELECT count(*) FROM mill.targets WHERE epoch = (SELECT last_value FROM mill.target_epochs)";
    eventually("the epochs are compared", async || queue.value::<i64>(checked).await == 1).await;
    let before: i64 = queue.value(epoch).await;
    dwh.cluster.freeze().unwrap();
    of_target.kill();
    eventually("the survivor resolves", async || queue.value::<i64>(epoch).await > before).await;
    of_queue.kill();
    assert_eq!(queue.outcome(at_home).await, "succeeded");
    let log = survivor.log();
    assert!(!log.contains("could not resolve"), "the task has waited for the target: {log}");
    dwh.cluster.thaw().unwrap();
    assert_eq!(queue.outcome(in_target).await, "succeeded");
    assert_eq!(effects(&dwh.database).await, (1, 1));
}
