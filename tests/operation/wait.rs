//! `CALL mill.wait` and `CALL mill.wait_run`: SQL clients wait for the end of a task or a run.

use serde_json::json;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::harness::login::Login;
use crate::harness::{Database, Worker, eventually};
use crate::runs::run::{FLAGS, job, start};

/// Returns the only value that a call returns, or its error as `SQLSTATE: message: detail`.
async fn call(client: &Client, sql: &str) -> Result<String, String> {
    match client.simple_query(sql).await {
        Ok(messages) => {
            let value = messages.iter().find_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            });
            Ok(value.unwrap().to_owned())
        }
        Err(error) => {
            let error = error.as_db_error().unwrap();
            let detail = error.detail().unwrap_or_default();
            Err(format!("{}: {}: {detail}", error.code().code(), error.message()))
        }
    }
}

#[tokio::test]
async fn a_wait_returns_the_outcome_and_holds_no_old_snapshot() {
    let database = Database::new().await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let id = database.enqueue("SELECT pg_advisory_xact_lock(1)", "").await;
    let _worker = Worker::start(&database, &FLAGS);
    let login = Login::new(&database, "waits", "mill_viewer").await;
    let client = login.connect().await;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let wait = format!("CALL mill.wait({id}, '10 minutes')");
    // Other sessions may hold back the xmin of every snapshot, so it need not grow with each look.
    let renewed = |since: &str, xmin: &str| {
        format!(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep'
                 AND xact_start > '{since}' AND backend_xmin::text::bigint >= {xmin})"
        )
    };
    let now = "SELECT clock_timestamp()::text, pg_snapshot_xmin(pg_current_snapshot())::text";
    let watch = async {
        for _ in 0..3 {
            let row = &database.rows(now, &[]).await[0];
            let sql = renewed(row.get(0), row.get(1));
            eventually("the snapshot of the waiting session is renewed", async || {
                database.value::<bool>(&sql).await
            })
            .await;
        }
        database.execute("SELECT pg_advisory_unlock(1)").await;
    };
    let (outcome, ()) = tokio::join!(call(&client, &wait), watch);
    assert_eq!(outcome.unwrap(), "succeeded");
    let failed = database.enqueue("SELECT 1/0", ", max_attempts => 1").await;
    for _ in 0..2 {
        assert_eq!(call(&client, &format!("CALL mill.wait({failed})")).await.unwrap(), "failed");
    }
    drop(client);
    login.drop().await;
}

#[tokio::test]
async fn a_wait_that_cannot_end_is_refused_with_its_reason() {
    let database = Database::new().await;
    let client = database.connect().await;
    let id = database.enqueue("SELECT 1", "").await;
    let error = call(&client, &format!("CALL mill.wait({id}, '10 ms')")).await.unwrap_err();
    assert_eq!(
        error,
        format!(
            "57014: task {id} has not ended within 00:00:00.01: why: no live worker serves queue \"default\""
        )
    );
    let error = call(&client, "CALL mill.wait(99)").await.unwrap_err();
    assert_eq!(error, "22023: there is no task 99: ");
    for block in ["BEGIN", "SELECT mill.cancel(1)"] {
        // Also if the task has already ended.
        database.execute(if block == "BEGIN" { "SELECT" } else { block }).await;
        client.batch_execute("BEGIN").await.unwrap();
        let error = call(&client, &format!("CALL mill.wait({id})")).await.unwrap_err();
        assert_eq!(error, "2D000: invalid transaction termination: ");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    assert_eq!(call(&client, &format!("CALL mill.wait({id})")).await.unwrap(), "cancelled");
    let producer = Login::new(&database, "produces", "mill_producer").await;
    let error =
        call(&producer.connect().await, &format!("CALL mill.wait({id})")).await.unwrap_err();
    assert_eq!(error, "42501: permission denied for procedure wait: ");
    producer.drop().await;
}

#[tokio::test]
async fn a_wait_for_a_run_returns_its_state_or_why_a_task_has_not_ended() {
    let database = Database::new().await;
    let tasks = json!([
        {"name": "a", "statement": "SELECT 1"},
        {"name": "b", "statement": "SELECT 1/0", "max_attempts": 1, "after": ["a"]},
    ]);
    job(&database, "j", tasks).await;
    let run = start(&database, "j").await;
    let viewer = Login::new(&database, "waits_run", "mill_viewer").await;
    let client = viewer.connect().await;
    let error = call(&client, &format!("CALL mill.wait_run({run}, '0')")).await.unwrap_err();
    assert_eq!(
        error,
        format!(
            "57014: run {run} has not ended within 00:00:00: why task \"a\" has not: \
             no live worker serves queue \"default\""
        )
    );
    let _worker = Worker::start(&database, &FLAGS);
    assert_eq!(call(&client, &format!("CALL mill.wait_run({run})")).await.unwrap(), "failed");
    let error = call(&client, "CALL mill.wait_run(99)").await.unwrap_err();
    assert_eq!(error, "22023: there is no run 99: ");
    drop(client);
    viewer.drop().await;
}
