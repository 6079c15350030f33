//! Tables without statistics: after a restore, after `pg_upgrade` before version 18, or without
//! autovacuum.

use crate::harness::{Database, Program};

/// Deletes the statistics of all tables, as `pg_upgrade` does.
pub(crate) async fn forget_statistics(database: &Database) {
    database
        .execute(
            "SET allow_system_table_mods = on;
            DELETE FROM pg_statistic WHERE starelid IN (SELECT c.oid FROM pg_class c
                WHERE c.relnamespace = 'mill'::regnamespace);
            UPDATE pg_class SET reltuples = -1, relpages = 0, relallvisible = 0
                WHERE relnamespace = 'mill'::regnamespace;
            RESET allow_system_table_mods",
        )
        .await;
}

/// Keeps autovacuum from these tables, so that only the tests make statistics.
async fn without_autovacuum(database: &Database, tables: &[&str]) {
    for table in tables {
        database.execute(&format!("ALTER TABLE mill.{table} SET (autovacuum_enabled = off)")).await;
    }
}

/// Creates this many concurrency keys. Each has a pending task, which holds the permit, and a task
/// that waits for it.
async fn fill_limits(database: &Database, count: i32) {
    database
        .execute(&format!(
            "INSERT INTO mill.limits (kind, name, max_running)
                SELECT 'key', 'k' || n, 1 FROM generate_series(1, {count}) AS n;
            WITH waiting AS (
                INSERT INTO mill.tasks (statement, queue, concurrency_key, limits, state, blocking_limit_id)
                SELECT 'SELECT 1', 'etl', l.name, ARRAY[l.id], s.state::mill.state,
                    CASE s.state WHEN 'blocked' THEN l.id END
                FROM mill.limits l CROSS JOIN unnest('{{pending,blocked}}'::text[]) AS s (state)
                WHERE l.kind = 'key' ORDER BY s.state DESC, l.id
                RETURNING id, state, limits
            )
            INSERT INTO mill.permits (limit_id, task_id)
                SELECT w.limits[1], w.id FROM waiting w WHERE w.state = 'pending';
            -- A scan of the index of all permits that are held reads many blocks.
            INSERT INTO mill.limits (kind, name, max_running) VALUES ('key', 'wide', 100000);
            INSERT INTO mill.permits (limit_id, task_id)
                SELECT l.id, 10000000 + n FROM mill.limits l CROSS JOIN generate_series(1, 50000) AS n
                WHERE l.name = 'wide'"
        ))
        .await;
}

/// Returns how many blocks the statement reads, as the fewest of three calls, each rolled back.
async fn blocks_of(database: &Database, sql: &str) -> i64 {
    let mut fewest = i64::MAX;
    for _ in 0..3 {
        database.execute("BEGIN").await;
        fewest = fewest.min(database.blocks_of(sql).await);
        database.execute("ROLLBACK").await;
    }
    fewest
}

#[tokio::test]
async fn statements_about_limits_probe_one_limit_without_statistics() {
    let database = Database::new().await;
    without_autovacuum(&database, &["tasks", "limits", "permits"]).await;
    fill_limits(&database, 10_000).await;
    database.execute("VACUUM ANALYZE mill.tasks, mill.limits, mill.permits").await;
    let waits = "(SELECT min(t.id) FROM mill.tasks t WHERE t.state = 'blocked')";
    let statements = [
        ("grant", "SELECT mill.grant_waiting_permits(0)", 400),
        ("revocation", "SELECT mill.set_max_running('key', 'k7', 2)", 50),
        ("answer", &format!("SELECT mill.why({waits})"), 100),
        ("use of a limit", "SELECT * FROM mill.limit_status l WHERE l.id = 7", 20),
    ];
    let mut known = Vec::new();
    for (_, sql, _) in &statements {
        known.push(blocks_of(&database, sql).await);
    }
    forget_statistics(&database).await;
    for ((what, sql, more), known) in statements.iter().zip(known) {
        let blocks = blocks_of(&database, sql).await;
        println!("blocks of a {what}: {known} with statistics, {blocks} without");
        assert!(blocks <= known + more, "{what}: {blocks} blocks, and {known} with statistics");
    }
}

#[tokio::test]
async fn a_prune_reads_the_waiting_tasks_once_whatever_their_number() {
    let database = Database::new().await;
    without_autovacuum(&database, &["tasks", "limits", "permits"]).await;
    fill_limits(&database, 10_000).await;
    database
        .execute("DELETE FROM mill.permits; DELETE FROM mill.tasks WHERE state = 'pending'")
        .await;
    database
        .execute(
            "INSERT INTO mill.limits (kind, name, max_running) VALUES ('key', 'idle', 1);
            SET work_mem = '64kB'",
        )
        .await;
    forget_statistics(&database).await;
    // Rows that a statement reads more than once, and that do not fit into work_mem, are read from a file.
    let plan: serde_json::Value =
        database.value("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT mill.prune()").await;
    let blocks = plan[0]["Plan"]["Temp Read Blocks"].as_i64().unwrap();
    println!("temporary blocks that a prune reads: {blocks}");
    assert!(blocks < 1000, "{blocks} blocks");
    let left = "SELECT ARRAY[count(*), count(*) FILTER (WHERE l.name = 'idle')] FROM mill.limits l";
    // With the wide one.
    assert_eq!(database.value::<Vec<i64>>(left).await, [10_001, 0]);
}

#[tokio::test]
async fn a_retry_of_many_tasks_probes_the_history_without_statistics() {
    let database = Database::new().await;
    let today: String =
        database.value("SELECT 'attempts_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')").await;
    without_autovacuum(&database, &[&today]).await;
    database
        .execute(
            "INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, attempt, outcome,
            priority, final, queue, statement, sqlstate)
            SELECT now(), 1000000 + n, now(), now(), now(), 1, 'failed', 'normal', true, 'etl', repeat('-',
                400) || n, '22012'
            FROM generate_series(1, 100000) AS n",
        )
        .await;
    database.execute(&format!("VACUUM ANALYZE mill.{today}")).await;
    let retry = "SELECT count(*) FROM mill.retry_many(ARRAY(
        SELECT 1000000 + n * 997 FROM generate_series(1, 100) AS n))";
    let known = blocks_of(&database, retry).await;
    forget_statistics(&database).await;
    let blocks = blocks_of(&database, retry).await;
    println!("blocks of a retry of 100 tasks: {known} with statistics, {blocks} without");
    let pages = format!("SELECT pg_relation_size('mill.{today}') / 8192");
    let pages: i64 = database.value(&pages).await;
    assert!(known.max(blocks) < pages, "{known} and {blocks} blocks, of {pages} pages");
}

/// Returns the tables that have statistics, out of these.
async fn analyzed(database: &Database, tables: &str) -> String {
    let sql = format!(
        "SELECT coalesce(string_agg(DISTINCT s.tablename, ' '), '') FROM pg_stats s
         WHERE s.schemaname = 'mill' AND s.tablename = ANY ('{{{tables}}}')"
    );
    database.value(&sql).await
}

#[tokio::test]
async fn init_analyzes_tables_with_rows_and_without_statistics() {
    let database = Database::new().await;
    let tables = "groups,limits,priorities,settings,tasks";
    without_autovacuum(&database, &["groups", "limits", "priorities", "settings", "tasks"]).await;
    assert_eq!(analyzed(&database, tables).await, "priorities settings");
    fill_limits(&database, 1000).await;
    forget_statistics(&database).await;
    let init = async || Program::init(&database).run().await;
    let (code, _, errors) = init().await;
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(analyzed(&database, tables).await, "limits priorities settings tasks");
    let sampled = "SELECT reltuples::bigint FROM pg_class WHERE oid = 'mill.tasks'::regclass";
    let before: i64 = database.value(sampled).await;
    database.enqueue_many(1000, "SELECT 1").await;
    assert_eq!(init().await.0, 0);
    assert_eq!(database.value::<i64>(sampled).await, before);
}
