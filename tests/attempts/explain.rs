//! A task with EXPLAIN runs once, has its effects, and stores its plan.

use serde_json::Value;

use crate::harness::login::answer;
use crate::harness::{Database, Program, Worker};

async fn plan(database: &Database, id: i64) -> Value {
    database.value(&format!("SELECT plan FROM mill.history WHERE task_id = {id} AND final")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_explained_task_has_its_effects_once_and_leaves_its_plan() {
    let database = Database::new().await;
    database
        .execute("CREATE TABLE t (n int, words text); CREATE TYPE mood AS ENUM ('good', 'bad')")
        .await;
    let mut worker = Worker::start(&database, &["--readers", "1"]);
    let explain = ", explain => true";
    // Parameters of any type, a leading comment, a trailing semicolon.
    let insert =
        "-- in front\nINSERT INTO t SELECT g, $2 || $3::mood FROM generate_series(1, $1) AS g;";
    let params = ", explain => true, params => '[3, \"it is \", \"good\"]'";
    let id = database.enqueue(insert, params).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    let rows = "SELECT count(*) || ' ' || max(words) FROM t";
    assert_eq!(database.value::<String>(rows).await, "3 it is good");
    let record = database.record(id).await;
    assert_eq!((record.rows, record.result, record.attempts), (Some(3), Value::Null, 1));
    let kept = plan(&database, id).await;
    assert_eq!(kept["Plan"]["Node Type"], "ModifyTable");
    assert!(kept["Execution Time"].as_f64().unwrap() > 0.0, "{kept}");
    let costs =
        "SELECT wal_bytes > 0 AND blocks_hit > 0 AND blocks_read >= 0 AND temp_blocks_written = 0
        FROM mill.history WHERE task_id = ";
    assert!(database.value::<bool>(&format!("{costs}{id}")).await);

    // MERGE exists since version 15.
    let merge = "MERGE INTO t USING (VALUES (11), (99)) AS v(n) ON t.n = v.n
        WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (n) VALUES (v.n)";
    let apart = "WITH gone AS (DELETE FROM t WHERE n = 11) INSERT INTO t (n) VALUES (99)";
    for (statement, rows) in [
        ("SELECT n FROM t WHERE n > 1", 2),
        ("(TABLE t) UNION ALL TABLE t", 6),
        ("WITH gone AS (DELETE FROM t WHERE n = 3 RETURNING n) SELECT * FROM gone", 1),
        ("UPDATE t SET n = n + 10", 2),
        if database.major().await >= 15 { (merge, 2) } else { (apart, 1) },
    ] {
        let ran = database.run(statement, explain).await;
        assert_eq!((&*ran.outcome, ran.rows), ("succeeded", Some(rows)), "{statement}");
    }
    assert_eq!(
        database.value::<String>("SELECT string_agg(n::text, ' ' ORDER BY n) FROM t").await,
        "12 99"
    );
    // Tasks without EXPLAIN are unaffected.
    let plain = database.enqueue("SELECT 1", "").await;
    assert_eq!(database.outcome(plain).await, "succeeded");
    let nothing =
        "SELECT num_nonnulls(plan, wal_bytes, blocks_hit) = 0 FROM mill.history WHERE task_id = ";
    assert!(database.value::<bool>(&format!("{nothing}{plain}")).await);

    // An error keeps its position; a retry explains again.
    let divided = "/* ä */ SELECT 1 / (n - 12) FROM t WHERE n = 12";
    let ran = database.run(divided, ", explain => true, max_attempts => 1").await;
    assert_eq!((&*ran.outcome, &*ran.sqlstate), ("failed", "22012"));
    let ran = database.run("SELECT 1,\n  nothing FROM t", explain).await;
    assert_eq!((&*ran.sqlstate, ran.position), ("42703", Some(13)));
    database.execute(&format!("SELECT mill.retry({plain}), mill.retry({id})")).await;
    database.until_empty().await;
    let plans = format!("SELECT count(plan) FROM mill.history WHERE task_id = {id}");
    assert_eq!(database.value::<i64>(&plans).await, 2);
    assert!(worker.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_with_a_deeply_nested_plan_succeeds_and_leaves_its_top_nodes() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let nested =
        |inner: String, _| format!("SELECT n FROM ({inner}) AS inner_{} LIMIT 1", inner.len());
    let statement = (0..100).fold("SELECT 1 AS n".to_owned(), nested);
    let id = database.enqueue(&statement, ", explain => true, max_attempts => 1").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    let plan = plan(&database, id).await;
    assert_eq!(plan["Truncated"], true);
    assert_eq!(plan["Plan"]["Node Type"], "Limit");
    assert_eq!(plan["Plan"]["Plans"][0].get("Plans"), None);
    let rows = "SELECT rows FROM mill.attempts";
    assert_eq!(database.value::<i64>(rows).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_a_rule_rewrites_into_several_leaves_its_own_plan() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE TABLE t (n integer);
             CREATE TABLE log (n integer);
             CREATE RULE inserted AS ON INSERT TO t DO ALSO INSERT INTO log VALUES (0);
             CREATE RULE updated AS ON UPDATE TO t DO ALSO INSERT INTO log VALUES (0);
             CREATE RULE deleted AS ON DELETE TO t DO ALSO NOTIFY deleted",
        )
        .await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let statements = [
        ("INSERT INTO t SELECT generate_series(1, 3)", 3),
        ("/* two */ UPDATE t SET n = n + 1 WHERE n > 1", 2),
        ("DELETE FROM t", 3),
    ];
    for (statement, rows) in statements {
        let id = database.enqueue(statement, ", explain => true, max_attempts => 1").await;
        assert_eq!(database.outcome(id).await, "succeeded");
        assert_eq!(plan(&database, id).await["Plan"]["Relation Name"], "t", "{statement}");
        let changed = format!("SELECT rows FROM mill.attempts WHERE task_id = {id}");
        assert_eq!(database.value::<i64>(&changed).await, rows, "{statement}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_without_a_plan_is_refused() {
    let database = Database::new().await;
    let refused = [
        "SELECT mill.enqueue('VACUUM', explain => true)",
        "SELECT mill.enqueue('CREATE TABLE t ()', explain => true)",
        "SELECT mill.enqueue('selected', explain => true)",
        "SELECT mill.enqueue('SELECT 1', mode => 'autocommit', explain => true)",
        "SELECT mill.enqueue_many(ARRAY['SELECT 1', 'CALL p()'], explain => true)",
    ];
    for sql in refused {
        assert_eq!(answer(database.client(), sql).await, "22023", "{sql}");
    }
    for statement in ["SELECT 1; SELECT 2", "VACUUM", "DO 'BEGIN END'"] {
        let (code, _, output) = Program::enqueue(&database, &["--explain", statement]).run().await;
        assert_eq!(code, 5, "{output}");
        assert!(output.contains("EXPLAIN does not support this statement"), "{output}");
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 0);
    // At the enqueue, the database checks only the first word. The worker finds the second
    // statement before it runs the first.
    let _worker = Worker::start(&database, &["--readers", "1"]);
    database.execute("CREATE TABLE t (n int)").await;
    let ran = database.run("INSERT INTO t VALUES (1); DROP TABLE t", ", explain => true").await;
    ran.assert_failed("0A000", "EXPLAIN does not support this statement");
    assert_eq!(ran.attempts, 1);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM t").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_shown_as_a_tree_and_compared_with_the_previous_one() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE TABLE t AS SELECT n, n % 7 AS m FROM generate_series(1, 20000) AS n; ANALYZE t",
        )
        .await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let enqueued = ["--explain", "--name", "look", "SELECT m FROM t WHERE n = $1", "--param", "7"];
    let run = async || {
        let id = Program::enqueue(&database, &enqueued).succeeds().await.trim().to_owned();
        assert_eq!(database.outcome(id.parse().unwrap()).await, "succeeded");
        let shown = Program::pgmill(&database, &["task", "show", &id, "--plan"]).succeeds().await;
        (id, shown)
    };
    let (first, shown) = run().await;
    assert!(shown.contains("Seq Scan on t") && shown.contains(" bytes of WAL"), "{shown}");
    assert!(!shown.contains("the previous one"), "{shown}");
    let (second, shown) = run().await;
    assert!(shown.contains(&format!("same plan as the previous one, of task {first}")), "{shown}");
    database.execute("CREATE UNIQUE INDEX t_n ON t (n); ANALYZE t").await;
    let (third, shown) = run().await;
    let changed = format!("plan changed since the previous one, of task {second}");
    assert!(shown.contains(&changed), "{shown}");
    assert!(shown.contains("  - Seq Scan on t\n  + Index Scan using t_n on t"), "{shown}");
    let document = Program::pgmill(&database, &["task", "show", &third, "--plan", "--json"]);
    let document: Value = serde_json::from_str(&document.succeeds().await).unwrap();
    assert_eq!(document["changed"], true);
    assert_ne!(document["shape"], document["before"]["shape"]);
    assert_eq!(document["plan"]["Plan"]["Index Name"], "t_n");
    let plain = database.enqueue("SELECT 1", "").await;
    assert_eq!(database.outcome(plain).await, "succeeded");
    let none = Program::pgmill(&database, &["task", "show", &plain.to_string(), "--plan"]);
    let (code, _, output) = none.run().await;
    assert_eq!(code, 4, "{output}");
}
