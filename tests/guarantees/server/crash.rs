//! After a crash of the server, the tasks that ran then run one at a time, until the one that crashes it is found.

use cluster::Mode;
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::NoTls;

use crate::harness::{Database, PrivateDatabase, eventually};

const SUSPECTS: &str = "SELECT count(*) FROM mill.crash_suspects";

/// A statement that runs until it is interrupted, and then succeeds at once.
const LONG: &str = "SELECT pg_sleep(3600) WHERE current_setting('mill.attempt') = '1'";

const ONCE: &str = ", max_attempts => 1";

async fn until_all_run(database: &Database, ids: &[i64]) {
    for id in ids {
        database.until_state(*id, "running").await;
    }
    // A commit that waits for the disk makes the earlier claims durable as well.
    database.execute("CREATE TABLE IF NOT EXISTS flushed (); TRUNCATE flushed").await;
}

/// Kills the backend of a task, after which the server ends all others and recovers.
async fn crash(private: &mut PrivateDatabase, id: i64) {
    let active = format!(
        "SELECT max(a.pid) FROM mill.tasks t JOIN pg_stat_activity a ON a.pid = t.session_pid
         WHERE t.id = {id} AND a.state = 'active' AND a.query LIKE '%pg_sleep%'"
    );
    let mut pid = None;
    eventually("the task runs", async || {
        pid = private.database.value::<Option<i32>>(&active).await;
        pid.is_some()
    })
    .await;
    kill_process(Pid::from_raw(pid.unwrap()).unwrap(), Signal::KILL).unwrap();
    eventually("the server has ended the sessions", async || private.database.client().is_closed())
        .await;
    let url = private.database.url();
    eventually("the server has recovered", async || {
        tokio_postgres::connect(&url, NoTls).await.is_ok()
    })
    .await;
    private.database.reconnect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_task_that_crashes_the_server_is_found_and_the_others_lose_nothing() {
    let mut private = PrivateDatabase::new(&[]).await;
    private.database.execute("UPDATE mill.settings SET max_crashes = 2").await;
    let worker = super::worker(&private.database, "4", "60s", &[]);
    let culprit = private.database.enqueue("SELECT pg_sleep(3600)", ONCE).await;
    let mut innocent = Vec::new();
    for _ in 0..3 {
        innocent.push(private.database.enqueue(LONG, ONCE).await);
    }
    until_all_run(&private.database, &[&innocent[..], &[culprit]].concat()).await;
    // The pause ends when all wait, so that the first to run alone is the oldest.
    private.database.execute("SELECT mill.pause('default')").await;
    crash(&mut private, culprit).await;
    eventually("all four are suspects", async || {
        private.database.value::<i64>(SUSPECTS).await == 4
    })
    .await;
    private.database.execute("SELECT mill.resume('default')").await;
    for (id, reason) in [
        (culprit, ", alone among the tasks that ran when the server crashed"),
        (innocent[0], "it ran when the server crashed at "),
    ] {
        let why = format!("SELECT mill.why({id})");
        eventually(reason, async || private.database.value::<String>(&why).await.contains(reason))
            .await;
    }
    crash(&mut private, culprit).await;
    crash(&mut private, culprit).await;
    let database = &private.database;
    assert_eq!(database.outcome(culprit).await, "lost");
    assert_eq!(database.attempts(culprit).await, "interrupted interrupted lost");
    for id in innocent {
        assert_eq!(database.outcome(id).await, "succeeded");
        assert_eq!(database.attempts(id).await, "interrupted succeeded");
    }
    assert_eq!(database.value::<i64>(SUSPECTS).await, 0);
    drop(worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_makes_no_task_a_suspect() {
    let mut private = PrivateDatabase::new(&[]).await;
    private.database.execute("UPDATE mill.settings SET max_crashes = 2").await;
    let _worker = super::worker(&private.database, "4", "60s", &[]);
    private.database.execute("CREATE TABLE go ()").await;
    let long = "SELECT pg_sleep(3600) WHERE NOT EXISTS (SELECT FROM go)";
    let ids =
        [private.database.enqueue(long, ONCE).await, private.database.enqueue(long, ONCE).await];
    for round in 0..3 {
        until_all_run(&private.database, &ids).await;
        if round == 2 {
            private.database.execute("INSERT INTO go DEFAULT VALUES").await;
        }
        private.cluster.restart(Mode::Fast).unwrap();
        private.database.reconnect().await;
        assert_eq!(private.database.value::<i64>(SUSPECTS).await, 0);
    }
    for id in ids {
        assert_eq!(private.database.outcome(id).await, "succeeded");
    }
}

/// A host that fails takes the worker with the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_the_server_and_its_workers_counts_for_no_task() {
    let mut private = PrivateDatabase::new(&[]).await;
    private.database.execute("UPDATE mill.settings SET max_crashes = 1").await;
    let mut first = super::worker(&private.database, "4", "1s", &[]);
    let ids =
        [private.database.enqueue(LONG, ONCE).await, private.database.enqueue(LONG, ONCE).await];
    until_all_run(&private.database, &ids).await;
    first.kill();
    private.cluster.crash().unwrap();
    private.cluster.start_again().unwrap();
    private.database.reconnect().await;
    let _second = super::worker(&private.database, "4", "1s", &[]);
    for id in ids {
        assert_eq!(private.database.outcome(id).await, "succeeded");
        assert_eq!(private.database.attempts(id).await, "interrupted succeeded");
    }
}

/// The tasks of a shared commit whose session ends are released. The row of `mill.uptime` is gone after a crash.
#[tokio::test]
async fn a_claim_that_is_released_after_a_crash_leaves_a_suspect() {
    const CRASH: &str = "DELETE FROM mill.uptime";
    const RELEASE: &str =
        "SELECT mill.release_claim(id, token, '0') FROM mill.tasks WHERE state = 'running'";
    let database = Database::new().await;
    database.execute("UPDATE mill.settings SET max_crashes = 1").await;
    let ids = [database.enqueue("SELECT 1", "").await, database.enqueue("SELECT 1", "").await];
    database.run_as_worker("true").await;
    database.execute(CRASH).await;
    database.execute(RELEASE).await;
    assert_eq!(database.value::<i64>(SUSPECTS).await, 2);
    database.execute("SELECT mill.grant_waiting_permits()").await;
    database.run_as_worker("true").await;
    database.execute(CRASH).await;
    database.execute(RELEASE).await;
    assert_eq!(database.outcome(ids[0]).await, "lost");
    database.until_state(ids[1], "blocked").await;
}
