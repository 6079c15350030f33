//! Params and output that must not be stored are in no table of the queue after the end of the
//! task.

use crate::harness::{Database, Program, Worker, eventually};

/// Returns the tables in which a text occurs.
async fn tables_with(database: &Database, text: &str) -> Vec<String> {
    let tables = database
        .rows(
            "SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = 'mill'::regnamespace
                AND c.relkind = 'r' ORDER BY 1",
            &[],
        )
        .await;
    let mut found = Vec::new();
    for table in tables.iter().map(|row| row.get::<_, String>(0)) {
        let sql = format!("SELECT EXISTS (SELECT FROM {table} t WHERE t::text LIKE '%{text}%')");
        if database.value::<bool>(&sql).await {
            found.push(table);
        }
    }
    found
}

async fn refused(database: &Database, sql: &str) -> String {
    let error = database.client().query(sql, &[]).await.unwrap_err();
    error.as_db_error().unwrap().message().to_owned()
}

/// `reveal` raises and returns its argument.
const SETUP: &str = r#"
CREATE FUNCTION reveal(t text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '%', t; RETURN t; END $$;
SELECT mill.set_queue_storage('payroll', params => false, output => false);
SELECT mill.set_job('pay', '[
    {"name": "parent", "statement": "SELECT reveal($1) AS v", "queue": "payroll", "params": [{"$param": "salary"}]},
    {"name": "child", "statement": "SELECT length($1)", "params": [{"$result": "parent", "column": "v"}],
        "after": ["parent"]},
    {"name": "last", "statement": "SELECT 1", "after": ["child"]}]')"#;

#[tokio::test(flavor = "multi_thread")]
async fn params_and_output_that_must_not_be_stored_are_in_no_table_after_the_end() {
    let database = Database::new().await;
    database.execute(SETUP).await;
    let secret = r#", queue => 'payroll', params => '["s3cret"]'"#;
    let first = database.enqueue("SELECT reveal($1)", secret).await;
    let fast = format!("{secret}, max_attempts => 2, retry_interval => '10 ms'");
    database.enqueue("SELECT 1/(length(reveal($1)) - 6)", &fast).await;
    database
        .execute(
            r#"SELECT mill.enqueue_many('{SELECT reveal($1)}', params => ARRAY['["s3cret"]'::jsonb],
                   queue => 'payroll');
               SELECT mill.start_run('{pay}', '{"salary": "s3cret"}')"#,
        )
        .await;
    assert!(tables_with(&database, "s3cret").await.contains(&"mill.tasks".to_owned()));
    let _worker = Worker::start(&database, &["--readers", "2", "--poll-interval", "50ms"]);
    database.until_empty().await;
    let state = "SELECT state::text FROM mill.runs";
    eventually("the run has ended", async || database.value::<String>(state).await == "succeeded")
        .await;
    // The worker deletes the output of a running task after its end.
    eventually("nothing is stored", async || tables_with(&database, "s3cret").await.is_empty())
        .await;
    let attempts = "SELECT count(*), count(*) FILTER (WHERE rows = 1) FROM mill.attempts";
    let row = &database.rows(attempts, &[]).await[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (7, 5), "the rest is stored");

    for (action, answer) in [
        (
            format!("SELECT mill.retry({first})"),
            format!("the parameters of task {first} were not stored"),
        ),
        (
            "SELECT mill.rerun_run(1)".to_owned(),
            "the parameters of task \"parent\" of run 1 were not stored".to_owned(),
        ),
        (
            "SELECT mill.rerun_run(1, '{child}', false)".to_owned(),
            "the result of task \"parent\", which task \"child\" of run 1 uses, was not stored"
                .to_owned(),
        ),
    ] {
        assert_eq!(refused(&database, &action).await, answer);
    }
    assert_eq!(database.value::<String>("SELECT mill.rerun_run(1, '{last}')").await, "last");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_option_of_the_task_takes_precedence_over_its_queue() {
    let database = Database::new().await;
    let set = ["queue", "set", "payroll", "--store-params", "false", "--create"];
    let answer = Program::pgmill(&database, &set).succeeds().await;
    assert_eq!(answer.trim(), "tasks of queue payroll do not store their params");
    let list = Program::pgmill(&database, &["queue", "list"]).succeeds().await;
    assert!(list.contains("params not stored") && !list.contains("output not stored"), "{list}");
    let _worker = Worker::start(&database, &["--poll-interval", "50ms"]);
    let run = async |flags: &[&str]| {
        let flags = [flags, &["--wait", "--param", "7", "SELECT $1::int"]].concat();
        let id = Program::enqueue(&database, &flags).succeeds().await;
        let id = id.lines().next().unwrap().trim().to_owned();
        let shown = Program::pgmill(&database, &["task", "show", &id]).succeeds().await;
        let stored =
            "SELECT params IS NOT NULL, result IS NOT NULL FROM mill.history WHERE task_id = $1";
        let row = &database.rows(stored, &[&id.parse::<i64>().unwrap()]).await[0];
        let what = shown.split_once("; not stored: ").map(|(_, rest)| rest.lines().next().unwrap());
        (row.get::<_, bool>(0), row.get::<_, bool>(1), what.map(str::to_owned))
    };
    for (flags, stored, not_stored) in [
        (&["--queue", "payroll"][..], (false, true), Some("params")),
        (&["--queue", "payroll", "--store-params"], (true, true), None),
        (&["--store-params=false", "--store-output=false"], (false, false), Some("params, output")),
        (&[], (true, true), None),
    ] {
        let (params, result, what) = run(flags).await;
        assert_eq!(((params, result), what.as_deref()), (stored, not_stored), "{flags:?}");
    }
}
