//! Citus: what a plain installation has of it, and an error of a coordinator. `make citus-check`
//! runs a fleet on a real coordinator.

use crate::harness::{Database, Worker};

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_citus_has_no_trigger_for_it() {
    let database = Database::new().await;
    let triggers = "SELECT count(*) FROM pg_trigger
        WHERE tgrelid = 'mill.tasks'::regclass AND NOT tgisinternal";
    assert_eq!(database.value::<i64>(triggers).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_a_node_has_not_confirmed_is_resolved_and_uses_up_no_attempt() {
    let database = Database::new().await;
    // A deferred trigger raises the coordinator's error during the first COMMIT.
    database
        .execute(
            "CREATE TABLE effects (n int);
             CREATE FUNCTION unconfirmed() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF current_setting('mill.attempt') = '1' THEN
                     RAISE EXCEPTION 'could not commit transaction for shard 102009 on at least one active node'
                         USING ERRCODE = 'XX000';
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER unconfirmed AFTER INSERT ON effects
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION unconfirmed()",
        )
        .await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let id = database.enqueue("INSERT INTO effects VALUES (1)", ", max_attempts => 1").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    let attempts =
        "SELECT string_agg(outcome || coalesce(' ' || sqlstate, ''), ', ' ORDER BY attempt)
        FROM mill.attempts";
    assert_eq!(database.value::<String>(attempts).await, "interrupted XX000, succeeded");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM effects").await, 1);
}
