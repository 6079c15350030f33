//! A server that becomes unresponsive, and a standby promoted in its place, hang no worker.

use proxy::{FaultAction, MessageMatch, Proxy};
use queue::WorkerId;
use queue::release::release_unknown_claims;

use crate::harness::{Database, PrivateDatabase, Program, Worker, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_primary_hangs_no_worker_once_the_standby_is_promoted() {
    let primary = PrivateDatabase::new(&[("fsync", "off")]).await;
    let standby = primary.standby().await;
    let url = primary.cluster.url_with_standby(&standby, primary.database.name());
    // Each worker notices the failure at its next heartbeat. Rare heartbeats would be too far apart for
    // the first worker, which waits only some seconds for the other one.
    let flags = ["--readers", "2", "--heartbeat-interval", "1s"];
    let workers = [(); 2].map(|()| Worker::start_at(&url, &flags));
    for worker in &workers {
        worker.until_logged("ready").await;
    }
    // Two readers wait for the end of a statement, the others for tasks.
    let hangs =
        "SELECT pg_sleep(CASE current_setting('mill.attempt') WHEN '1' THEN 3600 ELSE 0 END)";
    let mut running = Vec::new();
    for _ in 0..2 {
        running.push(primary.database.enqueue(hangs, ", max_attempts => 1").await);
    }
    for id in &running {
        primary.database.until_state(*id, "running").await;
    }
    let at = primary.database.value::<String>("SELECT pg_current_wal_insert_lsn()::text").await;
    let copy = primary.database.in_copy(standby.url("postgres")).await;
    eventually("the standby has the claims", async || {
        copy.value(&format!("SELECT pg_last_wal_replay_lsn() >= '{at}'::pg_lsn")).await
    })
    .await;
    primary.cluster.freeze().unwrap();
    standby.promote().unwrap();
    let fresh = copy.enqueue("SELECT 1", "").await;
    for id in running.into_iter().chain([fresh]) {
        assert_eq!(copy.outcome(id).await, "succeeded");
    }
    // Both workers are alive, and neither considers the other dead.
    let lost = "SELECT count(*) FROM mill.attempts WHERE outcome = 'lost'";
    assert_eq!(copy.value::<i64>(lost).await, 0);
    eventually("both workers are registered", async || {
        copy.value::<i64>("SELECT count(*) FROM mill.workers").await == 2
    })
    .await;
}

/// As after the promotion of a standby that has the claims, but not the ends of the attempts.
#[tokio::test]
async fn a_claim_that_the_server_has_brought_back_starts_no_at_most_once_task_again() {
    let database = Database::new().await;
    let once = database.enqueue("SELECT 1", ", mode => 'autocommit', at_most_once => true").await;
    let often = database.enqueue("SELECT 1", ", mode => 'autocommit'").await;
    database.run_as_worker("true").await;
    for id in [once, often] {
        let claimed_by = format!("SELECT claimed_by FROM mill.tasks WHERE id = {id}");
        let worker = WorkerId(database.value(&claimed_by).await);
        assert_eq!(release_unknown_claims(database.client(), worker, &[]).await.unwrap(), 1);
    }
    assert_eq!(database.outcome(once).await, "unknown");
    database.until_state(often, "pending").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_whose_backend_ends_unreported_is_attempted_again() {
    let database = Database::new().await;
    let proxy = Proxy::start(&database.url()).await.unwrap();
    let through = proxy.url(&database.task_url());
    let _worker = Worker::start(&database, &["--readers", "1", "--task-url", &through]);
    let held = "current_setting('mill.attempt') = '1'";
    proxy.arm(MessageMatch::Text(held.to_owned()), FaultAction::HoldAnswer);
    let statement = format!("SELECT pg_sleep(CASE WHEN {held} THEN 3600 ELSE 0 END)");
    let id = database.enqueue(&statement, ", max_attempts => 1").await;
    proxy.fired().await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'pgmill reader 1 %'";
    assert_eq!(database.value::<i64>(end).await, 1);
    assert_eq!(database.outcome(id).await, "succeeded");
    let attempts = "SELECT string_agg(outcome::text, ',' ORDER BY attempt) FROM mill.attempts";
    assert_eq!(database.value::<String>(attempts).await, "interrupted,succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_that_is_never_answered_does_not_stop_the_polls() {
    let database = Database::new().await;
    let proxy = Proxy::start(&database.url()).await.unwrap();
    // Hold the reply to the first poll: a session sends the text of a prepared statement only once.
    proxy.arm(MessageMatch::Text("queue.poll".to_owned()), FaultAction::HoldAnswer);
    let through = proxy.url(&database.worker_url());
    let _worker = Worker::start_through(&through, &database, &["--readers", "1"]);
    proxy.fired().await;
    // Only a poll tells the worker when this task is due.
    let id = database.enqueue("SELECT 1", ", due_at => now() + interval '1 second'").await;
    assert_eq!(database.outcome(id).await, "succeeded");
}

#[tokio::test]
async fn an_unresponsive_host_does_not_delay_the_next_one() {
    let database = Database::new().await;
    // An address that accepts connections and never replies.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let url = database.url().replacen('@', &format!("@127.0.0.1:{port},"), 1);
    let url = format!("{url}?connect_timeout=3600");
    Program::pgmill(&database, &["status"]).at(&url).succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_asked_again_while_a_later_host_is_silent() {
    let primary = PrivateDatabase::new(&[("fsync", "off")]).await;
    let standby = primary.standby().await;
    // A frozen machine, as clients see it.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let url = standby.url(primary.database.name());
    let (host, name) = url.rsplit_once('/').unwrap();
    let attributes = "target_session_attrs=read-write&connect_timeout=60";
    let url = format!("{host},127.0.0.1:{port}/{name}?{attributes}");
    let status = Program::pgmill(&primary.database, &["status"]).at(&url).succeeds();
    let promotion = async {
        // The program turns to the silent host after the standby has refused it.
        let connection = silent.accept().await.unwrap();
        standby.promote().unwrap();
        connection
    };
    // The connection stays open until the program has ended.
    tokio::join!(status, promotion);
}

#[tokio::test]
async fn a_login_for_tasks_in_another_database_is_refused_at_the_start() {
    let database = Database::new().await;
    for other in [Database::empty().await, Database::new().await] {
        let flags = ["--task-url", &other.url()];
        let mut worker = Worker::start(&database, &flags);
        assert_eq!(worker.ended().await.code(), Some(5), "{}", worker.log());
        let log = worker.log();
        assert!(log.contains("another database than the queue"), "{log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[tokio::test]
async fn a_claim_unknown_to_its_worker_is_released() {
    let database = Database::new().await;
    database.execute("CREATE TABLE seen (n integer)").await;
    let _worker =
        Worker::start_as_superuser(&database, "the task changes the queue", &["--readers", "1"]);
    // The first attempt changes the token of its own claim, so that the worker does not know this
    // claim.
    let statement = "INSERT INTO seen VALUES (1);
        UPDATE mill.tasks SET token = gen_random_uuid() WHERE (SELECT count(*) FROM seen) = 1";
    let id = database.enqueue(statement, ", mode => 'autocommit'").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM seen").await, 2);
}

#[tokio::test]
async fn a_command_that_waits_for_a_lock_names_the_holder_and_gives_up() {
    let database = Database::new().await;
    let id = database.enqueue("SELECT 1", "").await;
    let pid: i32 = database.value("SELECT pg_backend_pid()").await;
    database.execute(&format!("BEGIN; SELECT FROM mill.tasks WHERE id = {id} FOR UPDATE")).await;
    let cancel = Program::pgmill(&database, &["task", "cancel", &id.to_string()]);
    let (code, _, output) = cancel.run().await;
    database.execute("ROLLBACK").await;
    assert_eq!(code, 75, "{output}");
    assert!(output.contains(&format!("waiting for a lock of session {pid}")), "{output}");
    assert!(output.contains("lock wait timed out after"), "{output}");
    database.until_state(id, "pending").await;
}
