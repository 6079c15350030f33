//! A statement needs more space for temporary files than the server has or allows.

use crate::harness::{PrivateDatabase, Worker, eventually};

const EFFECT: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";

/// A task that sorts some megabytes with less memory, so that the server writes temporary files.
const SPILLS: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
    SELECT count(*) FROM (SELECT md5(n::text) FROM generate_series(1, 60000) AS n ORDER BY 1 OFFSET 1) AS s";

#[tokio::test(flavor = "multi_thread")]
async fn a_task_with_too_many_temporary_files_fails_with_the_reason_and_is_retried() {
    let settings = [("temp_file_limit", "1MB"), ("work_mem", "64kB"), ("fsync", "off")];
    let private = PrivateDatabase::new(&settings).await;
    let database = &private.database;
    database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
    let flags = ["--readers", "2", "--poll-interval", "50ms", "--heartbeat-interval", "300ms"];
    let mut worker = Worker::start(database, &flags);
    let retried = ", max_attempts => 1000, retry_interval => '200 ms', backoff => 'fixed'";
    let spills = database.enqueue(SPILLS, retried).await;
    let once = database.enqueue(SPILLS, ", max_attempts => 1").await;
    let autocommit = database.enqueue(SPILLS, &format!("{retried}, mode => 'autocommit'")).await;
    assert_eq!(database.outcome(once).await, "failed");
    let failed = format!(
        "SELECT sqlstate || ' ' || message FROM mill.attempts WHERE task_id = {once} AND final"
    );
    // PostgreSQL 18 quotes the name of the setting.
    assert_eq!(
        database.value::<String>(&failed).await.replace('"', ""),
        "53400 temporary file size exceeds temp_file_limit (1024kB)"
    );
    for id in [spills, autocommit] {
        eventually("the task has failed twice", async || {
            database.attempts(id).await.starts_with("failed failed")
        })
        .await;
    }
    // The worker runs other tasks meanwhile, and a failed attempt leaves no file.
    database.enqueue_many(100, EFFECT).await;
    let others = format!(
        "SELECT count(*) FROM mill.attempts WHERE outcome = 'succeeded' AND statement = $${EFFECT}$$"
    );
    eventually("other tasks run", async || database.value::<i64>(&others).await == 100).await;

    let lift = "ALTER SYSTEM SET temp_file_limit = -1";
    database.execute(lift).await;
    database.execute("SELECT pg_reload_conf()").await;
    for id in [spills, autocommit] {
        assert_eq!(database.outcome(id).await, "succeeded");
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM pg_ls_tmpdir()").await, 0);
    let effects = format!("SELECT count(*) FROM effect WHERE task IN ({spills}, {once})");
    assert_eq!(database.value::<i64>(&effects).await, 1);
    assert!(worker.terminate().await.success());
}
