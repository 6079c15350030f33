//! Limits that no task waits for cost nothing, although the fleet reconciles limits every second.

use crate::harness::Database;

/// Returns how many blocks a reconciliation reads, as the fewest of 30 calls, each rolled back.
async fn blocks_of_a_reconciliation(database: &Database) -> i64 {
    let mut fewest = i64::MAX;
    for _ in 0..30 {
        database.execute("BEGIN; DELETE FROM mill.limit_reconciliation").await;
        let blocks = database.blocks_of("SELECT mill.reconcile_limits()").await;
        fewest = fewest.min(blocks);
        database.execute("ROLLBACK").await;
    }
    fewest
}

#[tokio::test]
async fn a_reconciliation_does_not_read_the_limits_and_groups_without_pending_tasks() {
    let database = Database::new().await;
    let set = |from: i32, to: i32| {
        format!(
            "INSERT INTO mill.limits (kind, name, max_running)
                SELECT 'queue', 'q' || n, 1 FROM generate_series({from}, {to}) AS n;
            INSERT INTO mill.groups (name, max_running)
                SELECT 'g' || n, 1 FROM generate_series({from}, {to}) AS n"
        )
    };
    database.execute(&set(1, 10)).await;
    database
        .execute(
            "SELECT mill.enqueue('SELECT 1', queue => 'q1', group_name => 'g1');
             SELECT mill.grant_waiting_permits()",
        )
        .await;
    let few = blocks_of_a_reconciliation(&database).await;
    database.execute(&set(11, 10_000)).await;
    let many = blocks_of_a_reconciliation(&database).await;
    println!("blocks of a reconciliation: {few} with 10 limits and groups, {many} with 10,000");
    assert!(many <= few + 20, "{many} blocks, and {few} with few limits");
}

#[tokio::test]
async fn a_reconciliation_finds_tasks_that_slipped_past_a_new_limit_in_every_queue_and_group() {
    let database = Database::new().await;
    // These tasks were enqueued when their limits were not yet visible.
    database
        .execute(
            "INSERT INTO mill.tasks (statement, queue) SELECT 'SELECT 1', 'q' || n % 3 FROM generate_series(1, 6) AS n;
             INSERT INTO mill.groups (name, max_running) VALUES ('free', NULL), ('g', 1), ('h', 1);
             INSERT INTO mill.tasks (statement, group_name) VALUES ('SELECT 1', 'free'), ('SELECT 1', 'g'), ('SELECT 1', 'h');
             INSERT INTO mill.limits (kind, name, max_running) VALUES ('queue', 'q0', 1), ('queue', 'q2', 1);
             SELECT mill.reconcile_limits()",
        )
        .await;
    let blocked = "SELECT string_agg(coalesce(group_name, queue), ' ' ORDER BY id) FROM mill.tasks WHERE state = 'blocked'";
    assert_eq!(database.value::<String>(blocked).await, "q2 q0 q2 q0 g h");
}

#[tokio::test]
async fn reconciliations_take_at_most_a_tenth_of_the_time() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE OR REPLACE FUNCTION mill.correct_starts() RETURNS void LANGUAGE sql
                SET search_path = pg_catalog, pg_temp AS 'SELECT pg_sleep(0.2)';
             SELECT mill.reconcile_limits()",
        )
        .await;
    let pause =
        "SELECT pause BETWEEN '1.8 seconds' AND '10 seconds' FROM mill.limit_reconciliation";
    assert!(database.value::<bool>(pause).await);
    let reconcile = "SELECT mill.reconcile_limits()";
    database.execute("UPDATE mill.limit_reconciliation SET at = now() - interval '1.5 seconds', pause = '1 hour'").await;
    assert!(!database.value::<bool>(reconcile).await);
    database.execute("UPDATE mill.limit_reconciliation SET pause = '1 second'").await;
    assert!(database.value::<bool>(reconcile).await);
}
