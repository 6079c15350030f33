//! A profile that is restricted to routines accepts nothing but a call of one of them.

use crate::harness::{Database, Program};

const ALLOWED: &[&str] = &[
    "CALL app.load()",
    "call App.LOAD ( $1 , 'it''s', -7.5, true, null ) ;",
    "\n SELECT\tapp.\"load\"(day => $1::date, n := '7'::int[])\n",
    r#"CALL "app"."Purge All"('x')"#,
];

const REFUSED: &[&str] = &[
    "SELECT 1",
    "CALL load()",
    "CALL app.other()",
    "CALL app.\"LOAD\"()",
    "CALL app.load(); DROP TABLE t",
    "CALL app.load();;",
    "CALL app.load(app.other())",
    "CALL app.load((SELECT 1))",
    "CALL app.load(1 + 1)",
    "CALL app.load(1) -- comment",
    "CALL app.load(/* comment */)",
    "SELECT app.load(), app.other()",
    "SELECT app.load() FROM t",
    "SELECT app.load() INTO t",
    "CALL app.load('a\\'); DROP TABLE t; --')",
    "CALL app.load(E'a\\'); DROP TABLE t; --')",
    "CALL app.load('a' 'b')",
    "CALL app.load($$a$$)",
    "CALL app.load('x'::app.evil)",
    "CALL app.load(U&'\\0061')",
    "CALL U&\"app\".load()",
    "WITH x AS (SELECT 1) SELECT app.load()",
    "CALL app.load.more()",
    "CALLapp.load()",
    "CALL app.load(",
    "CALL app.load(1,)",
    "DO $$ BEGIN CALL app.load(); END $$",
    "",
];

#[tokio::test]
async fn a_restricted_profile_accepts_only_calls_of_its_routines() {
    let database = Database::new().await;
    database
        .execute(
            r#"CREATE SCHEMA app;
               CREATE PROCEDURE app.load() LANGUAGE sql AS 'SELECT 1';
               CREATE PROCEDURE app."Purge All"(t text) LANGUAGE sql AS 'SELECT 1';
               SELECT mill.set_profile('etl', allowed => ARRAY[current_user]), mill.set_profile('web', allowed => ARRAY[current_user]);
               SELECT mill.set_job('before', '[{"name": "t", "statement": "SELECT 1", "run_as": "etl"}]')"#,
        )
        .await;
    let set = |routines| ["profile", "set", "etl", "--routines", routines];
    let (code, _, err) = Program::pgmill_as_owner(&database, &set("app.load,app.lod")).run().await;
    assert!(code == 5 && err.contains("there is no routine \"app.lod\""), "{code} {err}");
    let id = database.enqueue("SELECT 1", ", run_as => 'etl'").await;
    let end = format!("SELECT mill.cancel({id})");
    database.execute(&end).await;
    database.execute("SELECT mill.start_run('{before}')").await;
    let in_run: i64 = database.value("SELECT task_id FROM mill.run_tasks").await;
    database.execute("SELECT mill.cancel_run(1); SELECT mill.advance_run(1)").await;
    let again = [
        "SELECT mill.restart_run(1, force => true)".to_owned(),
        "SELECT mill.rerun_run(1)".to_owned(),
        "SELECT mill.retry_run_task(1, 't')".to_owned(),
        format!("SELECT mill.retry({in_run})"),
        format!("SELECT mill.retry_many(ARRAY[{in_run}])"),
    ];
    Program::pgmill_as_owner(&database, &set("App.load,app.\"Purge All\"")).succeeds().await;
    let list = Program::pgmill(&database, &["profile", "list"]).succeeds().await;
    assert!(list.contains("app.load, app.\"Purge All\""), "{list}");

    let refusal = async |sql: &str, statement: &str| {
        let result = database.client().query(sql, &[&statement]).await;
        result.err().map(|error| error.as_db_error().unwrap().message().to_owned())
    };
    let one = "SELECT mill.enqueue($1, run_as => 'etl')";
    let many = "SELECT mill.enqueue_many(ARRAY['CALL app.load()', $1],
                profile => mill.profile('etl'))";
    let job = "SELECT mill.set_job('j', jsonb_build_array(jsonb_build_object('name', 't', 'run_as', 'etl',
        'statement', $1::text)))";
    let wanted = r#"profile "etl" allows only calls of app.load, app."Purge All""#;
    for sql in [one, many, job] {
        for statement in ALLOWED {
            assert_eq!(refusal(sql, statement).await, None, "{statement}");
        }
        for statement in REFUSED {
            let message = refusal(sql, statement).await.unwrap_or_default();
            let refused = message.contains(wanted) || message.contains("the statement is empty");
            assert!(refused, "{statement}: {message}");
        }
    }
    for sql in [format!("SELECT mill.retry({id})"), "SELECT mill.start_run('{before}')".to_owned()]
    {
        let error = database.client().query(&sql, &[]).await.unwrap_err();
        assert!(error.as_db_error().unwrap().message().contains(wanted), "{sql}: {error:?}");
    }
    for sql in &again {
        let error = database.client().query(sql, &[]).await.unwrap_err();
        let message = error.as_db_error().unwrap().message();
        assert_eq!(message, format!("task \"t\": {wanted}"), "{sql}");
    }
    assert_eq!(refusal("SELECT mill.enqueue($1, run_as => 'web')", "SELECT 1").await, None);
    Program::pgmill_as_owner(&database, &set("off")).succeeds().await;
    assert_eq!(refusal(one, "SELECT 1").await, None);
}
