//! The token of a running task: no other session sees it, and it is of no use to one that knows it.

use crate::harness::login::{Login, answer};
use crate::harness::{Database, Worker, eventually};
use crate::targets::target::{Configuration, as_flags};

/// A table whose rows a deferred trigger rejects at COMMIT, with the SQLSTATE that the row names. Before, the trigger
/// waits for the advisory lock 7.
const REJECTING: &str = "CREATE TABLE rejected (code text);
    CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock(7);
        RAISE EXCEPTION 'rejected at commit' USING ERRCODE = new.code;
    END $$;
    CREATE CONSTRAINT TRIGGER reject AFTER INSERT ON rejected DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION reject()";

/// Number of sessions whose last statement contains the token of a running task or the receipt of a task.
const VISIBLE: &str = "SELECT count(*) FROM pg_stat_activity a, mill.tasks t
    WHERE strpos(a.query, t.token::text) > 0 OR strpos(a.query, t.receipt::text) > 0";

#[tokio::test(flavor = "multi_thread")]
async fn a_token_completes_nothing_in_another_session() {
    let database = Database::new().await;
    let tasks = Login::new(&database, "tasks", "").await;
    let other = Login::new(&database, "other", "mill_operator, pg_monitor").await;
    database.execute(REJECTING).await;
    database.execute(&format!("GRANT ALL ON rejected TO {}", tasks.name)).await;
    let flags = ["--readers", "1", "--task-url", &tasks.url()];
    let mut worker = Worker::start(&database, &flags);
    for function in [
        "mill.complete(ARRAY[id], ARRAY['TOKEN']::uuid[], pg_current_xact_id(), NULL, ARRAY[42]::bigint[], ARRAY[NULL]::jsonb[])",
        "mill.complete_with_proof(id, encode(sha256(uuid_send('TOKEN') || xid8send(pg_current_xact_id())), 'hex'), pg_current_xact_id(), 42, NULL)",
        "mill.complete(ARRAY[id], ARRAY['TOKEN']::uuid[], pg_current_xact_id(), ARRAY[NULL::float8], ARRAY[42], ARRAY[NULL]::jsonb[])",
    ] {
        let holder = database.connect().await;
        holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
        let task =
            database.enqueue("INSERT INTO rejected VALUES ('P0001')", ", max_attempts => 1").await;
        database.until_waiting_for_lock(task).await;
        assert_eq!(database.value::<i64>(VISIBLE).await, 0, "a statement contains the token");
        let token = format!("SELECT token::text FROM mill.tasks WHERE id = {task}");
        let call = function
            .replace("TOKEN", &database.value::<String>(&token).await)
            .replace("id,", &format!("{task},"))
            .replace("[id]", &format!("[{task}]::bigint[]"));
        let stranger = other.connect().await;
        stranger.batch_execute("SET lock_timeout = '1s'").await.unwrap();
        let call = format!("SELECT {call}");
        assert_eq!(answer(&stranger, &call).await, "MT001", "{call}");
        holder.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
        assert_eq!(database.outcome(task).await, "failed");
        assert_eq!(database.value::<i64>("SELECT count(*) FROM rejected").await, 0);
    }
    assert!(worker.terminate().await.success());
    other.gone().await;
    tasks.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_sqlstate_of_pgmill_that_a_task_raises_at_commit_is_an_ordinary_failure() {
    let (queue, dwh) = (Database::new().await, Database::empty().await);
    for database in [&queue, &dwh] {
        database.execute(REJECTING).await;
    }
    let configuration = Configuration::new(&queue, &[("dwh", &dwh, dwh.url())]).await;
    let flags = configuration.flags();
    let _worker = Worker::start(&queue, &as_flags(&flags));
    for place in ["", ", run_as => 'dwh'"] {
        for code in ["MT001", "MT002", "MT003", "MT004", "25006"] {
            let insert = format!("INSERT INTO rejected VALUES ('{code}')");
            let options = format!("{place}, max_attempts => 2, retry_interval => '0.01 s'");
            let ran = queue.run(&insert, &options).await;
            ran.assert_failed(code, "rejected at commit");
            assert_eq!((ran.attempts, ran.hint.as_str()), (2, ""), "{code}{place}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_is_refused_although_the_claim_is_held_counts_as_a_failure() {
    let database = Database::new().await;
    let tasks = Login::new(&database, "tasks", "").await;
    let mut worker = Worker::start(&database, &["--readers", "1", "--task-url", &tasks.url()]);
    database.execute("SELECT pg_advisory_lock(7)").await;
    let task = database
        .enqueue(
            "SELECT pg_advisory_xact_lock(7)",
            ", max_attempts => 2, retry_interval => '0.01 s'",
        )
        .await;
    for _ in 0..2 {
        database.until_waiting_for_lock(task).await;
        // As if a pooler had replaced the backend of the session.
        database.execute("UPDATE mill.tasks SET session_pid = 0").await;
        let tried = "SELECT count(*) FROM mill.attempts";
        let before: i64 = database.value(tried).await;
        database.execute("SELECT pg_advisory_unlock(7); SELECT pg_advisory_lock(7)").await;
        eventually("the attempt has ended", async || {
            database.value::<i64>(tried).await == before + 1
        })
        .await;
    }
    let record = database.record(task).await;
    record.assert_failed("MT001", "is no longer claimed with this token in this session");
    assert_eq!(record.attempts, 2);
    assert!(worker.terminate().await.success());
    tasks.gone().await;
}
