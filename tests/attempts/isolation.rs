//! The option `isolation` of a task: the level of its transaction, wherever the task comes from.

use crate::harness::{Database, Program, Worker, amount, eventually};

const LEVEL: &str = "INSERT INTO effect VALUES (current_setting('transaction_isolation'))";

async fn database() -> Database {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (level text)").await;
    database
}

async fn levels(database: &Database) -> Vec<String> {
    database.until_empty().await;
    let levels = database.value("SELECT array_agg(level ORDER BY level) FROM effect").await;
    database.execute("TRUNCATE effect").await;
    levels
}

#[tokio::test]
async fn the_option_sets_the_level_of_the_transaction_in_every_kind_of_task() {
    let database = database().await;
    database
        .execute(&format!(
            "CREATE PROCEDURE twice() LANGUAGE plpgsql AS $$ BEGIN {LEVEL}; COMMIT; {LEVEL}; END $$;
             CREATE PROCEDURE nightly() LANGUAGE sql AS $$ {LEVEL} $$;
             COMMENT ON PROCEDURE nightly() IS '@manual() @task(isolation: serializable)'"
        ))
        .await;
    let _worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "20ms"]);
    for options in ["", ", params => '[]'", ", explain => true"] {
        let level = r#", options => '{"isolation": "Repeatable Read"}'"#;
        let with_level = database.enqueue(LEVEL, &format!("{options}{level}")).await;
        database.enqueue(LEVEL, options).await;
        assert_eq!(levels(&database).await, ["read committed", "repeatable read"], "{options}");
        let kept = format!(
            "SELECT (options).isolation::text FROM mill.history WHERE task_id = {with_level}"
        );
        assert_eq!(database.value::<String>(&kept).await, "repeatable_read");
    }
    let program = ["--isolation", "serializable", "--mode", "autocommit"];
    for (statement, expected) in [("CALL twice()", 2), (LEVEL, 1)] {
        Program::enqueue(&database, &[&program[..], &[statement]].concat()).succeeds().await;
        assert_eq!(levels(&database).await, vec!["serializable"; expected], "{statement}");
    }
    database.enqueue("CALL twice()", ", mode => 'autocommit'").await;
    assert_eq!(levels(&database).await, ["read committed"; 2], "the next task has no level");
    database
        .execute(&format!(
            r#"SELECT mill.set_job('j', jsonb_build_array(jsonb_build_object(
                   'name', 't', 'statement', $${LEVEL}$$, 'isolation', 'serializable')));
               SELECT mill.start_run('{{j}}')"#
        ))
        .await;
    assert_eq!(levels(&database).await, ["serializable"], "a task of a job");
    Program::pgmill(&database, &["schedule", "sync"]).succeeds().await;
    database.execute("SELECT mill.run_now(name) FROM mill.schedules").await;
    assert_eq!(levels(&database).await, ["serializable"], "a procedure with a schedule");
}

#[tokio::test]
async fn serializable_tasks_that_conflict_run_again_until_their_effects_are_serial() {
    let tasks: i64 = amount(30, 60);
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (n bigint)").await;
    let _worker = Worker::start(&database, &["--readers", "8"]);
    let readers = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND application_name LIKE '%reader%'";
    eventually("all readers are connected", async || database.value::<i64>(readers).await == 8)
        .await;
    let sql = "SELECT mill.enqueue('INSERT INTO effect SELECT count(*) FROM effect', max_attempts => 1000,
            retry_interval => '10 ms', backoff => 'fixed', options => '{\"isolation\": \"serializable\"}')
        FROM generate_series(1, $1::bigint)";
    let serial = "SELECT array_agg(n ORDER BY n) = array_agg(row - 1 ORDER BY row)
        FROM (SELECT n, row_number() OVER (ORDER BY n) AS row FROM effect) AS e";
    let conflicts = "SELECT count(*) FROM mill.attempts WHERE sqlstate = '40001'";
    // On a busy machine, one reader may run all tasks.
    for _ in 0..20 {
        database.execute("TRUNCATE effect").await;
        database.rows(sql, &[&tasks]).await;
        database.until_empty().await;
        assert!(database.value::<bool>(serial).await);
        assert_eq!(database.value::<i64>("SELECT count(*) FROM effect").await, tasks);
        if database.value::<i64>(conflicts).await > 0 {
            return;
        }
    }
    panic!("no two of the tasks conflicted in 20 runs");
}

#[tokio::test]
async fn an_unknown_level_is_refused_and_setting_a_level_in_a_task_gets_a_hint() {
    let database = database().await;
    let sql = r#"SELECT mill.enqueue('SELECT 1', options => '{"isolation": "snapshot"}')"#;
    let refused = database.client().query(sql, &[]).await.unwrap_err();
    let refused = refused.as_db_error().unwrap();
    assert_eq!(refused.message(), "isolation is \"snapshot\"");
    assert_eq!(refused.hint(), Some("Use one of read_committed, repeatable_read, serializable."));
    let (status, _, stderr) =
        Program::enqueue(&database, &["--isolation", "snapshot", "SELECT 1"]).run().await;
    assert_eq!(status, 2, "{stderr}");
    let _worker = Worker::start(&database, &["--readers", "1"]);
    for statement in ["set transaction\n isolation level serializable; SELECT 1"] {
        let ran = database.run(statement, "").await;
        ran.assert_failed("25001", "--isolation serializable");
    }
}
