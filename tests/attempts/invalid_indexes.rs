//! An index that a failed build has left is invalid, and is no success of the next attempt.

use crate::harness::{Database, Program, Worker};

const CREATE: &str = "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS \"T i\" ON t (a)";

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_index_of_an_earlier_attempt_is_not_a_success() {
    let database = Database::new().await;
    database.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (1)").await;
    let mut worker = Worker::start_as_superuser(
        &database,
        "the task changes a table that it does not own",
        &["--readers", "1"],
    );
    let once = ", mode => 'autocommit', max_attempts => 1";
    let failed = database.run(CREATE, once).await;
    failed.assert_failed("23505", "could not create unique index");
    assert!(failed.hint.contains("invalid indexes: public.\"T i\""), "{}", failed.hint);
    database.execute("DELETE FROM t WHERE ctid = '(0,1)'").await;
    let again = database.run(&format!("SELECT 1; {CREATE}"), once).await;
    again.assert_failed("55000", "the index public.\"T i\" exists and is invalid");
    assert!(
        again.hint.contains("DROP INDEX CONCURRENTLY public.\"T i\", and retry"),
        "{}",
        again.hint
    );
    let doctor = async || Program::pgmill(&database, &["doctor"]).run().await.1;
    let found = doctor().await;
    assert!(found.contains("warning  indexes          1 invalid index: public.\"T i\""), "{found}");
    let dropped = format!("DROP INDEX CONCURRENTLY \"T i\"; {CREATE}");
    assert_eq!(database.run(&dropped, once).await.outcome, "succeeded");
    assert_eq!(database.run(CREATE, once).await.outcome, "succeeded");
    let found = doctor().await;
    assert!(found.contains("ok       indexes          all are valid"), "{found}");
    assert!(worker.terminate().await.success());
}

/// The index of a partitioned table is invalid until each partition has its own, which is how it is built.
#[tokio::test(flavor = "multi_thread")]
async fn what_reindex_leaves_is_named_and_an_unfinished_partitioned_index_is_not() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE TABLE p (a int) PARTITION BY RANGE (a); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (9);
             CREATE INDEX pi ON ONLY p (a); CREATE TABLE t (a int); CREATE INDEX i ON t (a)",
        )
        .await;
    let mut worker = Worker::start_as_superuser(
        &database,
        "the task changes a table that it does not own",
        &["--readers", "1"],
    );
    let once = ", mode => 'autocommit', max_attempts => 1, timeout => '1 s'";
    let holder = database.connect().await;
    holder.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
    let failed = database.run("REINDEX (CONCURRENTLY) INDEX i", once).await;
    assert_eq!(failed.outcome, "timed_out");
    assert!(failed.hint.contains("invalid indexes: public.i_ccnew. "), "{}", failed.hint);
    holder.batch_execute("COMMIT").await.unwrap();
    let found = Program::pgmill(&database, &["doctor"]).run().await.1;
    assert!(found.contains("1 invalid index: public.i_ccnew\n"), "{found}");
    assert!(worker.terminate().await.success());
}
