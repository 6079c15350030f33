//! Parameters are bound with the types that the statement requests, and results are recorded as
//! text.

use crate::harness::{Database, Worker};

const TYPES: &str = "
    CREATE TYPE colour AS ENUM ('red', 'dark blue');
    CREATE DOMAIN percent AS numeric CHECK (VALUE BETWEEN 0 AND 100);
    CREATE TYPE pair AS (a int, b text)";

#[tokio::test(flavor = "multi_thread")]
async fn parameters_of_every_common_type_are_bound_with_the_type_of_the_statement() {
    let database = Database::new().await;
    database.execute(TYPES).await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    // Expression with $1, the value in JSON, and the server's text form of the result.
    let cases = [
        ("$1::text", r#""it's \"so\"; $$ \\ ü""#, r#"it's "so"; $$ \ ü"#),
        ("$1::text", "7", "7"),
        ("$1::int + 1", "41", "42"),
        ("$1::int + 1", "\"41\"", "42"),
        ("$1::bigint", "9223372036854775807", "9223372036854775807"),
        ("$1::numeric", "12345678901234567890.123456789", "12345678901234567890.123456789"),
        ("$1::numeric", "1e400", &format!("1{}", "0".repeat(400))),
        ("$1::float8", "0.1", "0.1"),
        ("NOT $1::bool", "false", "true"),
        ("coalesce($1::int, -1)", "null", "-1"),
        ("coalesce($1::text, 'none')", "null", "none"),
        ("$1::timestamptz AT TIME ZONE 'UTC'", "\"2026-03-29 03:30+02\"", "2026-03-29 01:30:00"),
        ("$1::date + 1", "\"2026-02-28\"", "2026-03-01"),
        ("$1::interval * 2", "\"1h 30m\"", "03:00:00"),
        (
            "$1::uuid",
            "\"00000000-0000-0000-0000-000000000001\"",
            "00000000-0000-0000-0000-000000000001",
        ),
        ("$1::bytea", r#""\\x00ff""#, "\\x00ff"),
        ("$1::inet", "\"10.0.0.0/8\"", "10.0.0.0/8"),
        ("$1::jsonb", r#"{"a": [1, null, "x"]}"#, r#"{"a": [1, null, "x"]}"#),
        ("$1::jsonb", "\"text\"", "\"text\""),
        ("jsonb_typeof($1::jsonb)", "null", "null"),
        ("$1::json->>'a'", r#"{"a": "it's"}"#, "it's"),
        ("$1::int[]", "[1, null, 3]", "{1,NULL,3}"),
        ("$1::int[][]", "[[1, 2], [3, 4]]", "{{1,2},{3,4}}"),
        (
            "$1::text[]",
            r#"["a,b", "c\"d\\", "{}", "", "NULL"]"#,
            r#"{"a,b","c\"d\\","{}","","NULL"}"#,
        ),
        ("$1::jsonb[]", r#"[{"a": 1}, [2]]"#, r#"{"{\"a\": 1}",[2]}"#),
        ("$1::int[]", "\"{7,8}\"", "{7,8}"),
        ("$1::colour", "\"dark blue\"", "dark blue"),
        ("$1::colour[]", r#"["red", "dark blue"]"#, "{red,\"dark blue\"}"),
        ("$1::percent", "99.5", "99.5"),
        ("$1::pair", "\"(1,\\\"a b\\\")\"", "(1,\"a b\")"),
    ];
    let mut tasks = Vec::new();
    for (expression, value, expected) in cases {
        let sql = format!("SELECT ({expression})::text");
        let quoted = value.replace('\'', "''");
        for mode in ["transaction", "autocommit"] {
            let options = format!(", params => '[{quoted}]', mode => '{mode}'");
            let id = database.enqueue(&sql, &options).await;
            tasks.push((id, expected, format!("{expression} of {value} in mode {mode}")));
        }
    }
    for (id, expected, what) in tasks {
        let ran = database.record(id).await;
        assert_eq!(ran.outcome, "succeeded", "{what}: {ran:?}");
        assert_eq!(ran.row(0), [expected], "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unusual_parameters_do_not_block_the_queue() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let deep = format!("'[{}{}]'", "[".repeat(1000), "]".repeat(1000));
    let ran = database.run("SELECT length($1::jsonb::text)", &format!(", params => {deep}")).await;
    assert_eq!((ran.outcome.as_str(), ran.row(0)), ("succeeded", vec!["2000"]), "{ran:?}");
    let once = format!(", params => {deep}, max_attempts => 1");
    let ran = database.run("SELECT $1::int[]", &once).await;
    assert_eq!(ran.outcome, "failed", "{ran:?}");
    let many = ", params => (SELECT jsonb_agg(n) FROM generate_series(1, 65535) AS n)";
    let ran = database.run("SELECT $1::int + $65535::int", many).await;
    ran.assert_failed("42P18", "could not determine data type of parameter $2");
    assert_eq!(database.run("SELECT 7", "").await.row(0), ["7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn mismatched_parameters_fail_the_task_with_the_reason() {
    let database = Database::new().await;
    database.execute(TYPES).await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let cases = [
        ("SELECT $1::int", "[]", "42P02", "wrong number of parameter values: expected 1, got 0"),
        (
            "SELECT $1::int",
            "[1, 2]",
            "42P02",
            "wrong number of parameter values: expected 1, got 2",
        ),
        ("SELECT 1", "[1]", "42P02", "wrong number of parameter values: expected 0, got 1"),
        ("SELECT $1::int", "[\"x\"]", "22P02", "invalid input syntax for type integer"),
        ("SELECT $1::int", "[1.5]", "22P02", "invalid input syntax for type integer"),
        ("SELECT $1::colour", "[\"green\"]", "22P02", "invalid input value for enum colour"),
        ("SELECT $1::percent", "[101]", "23514", "value for domain percent violates check"),
        ("SELECT 1; SELECT $1::int", "[1]", "42601", "cannot insert multiple commands"),
    ];
    for (statement, params, sqlstate, fragment) in cases {
        let options = format!(", params => '{params}', max_attempts => 1");
        let ran = database.run(statement, &options).await;
        ran.assert_failed(sqlstate, fragment);
        assert_eq!(ran.attempts, 1, "{statement} with {params}");
    }
    assert_eq!(database.run("SELECT 7", "").await.row(0), ["7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_runs_after_one_whose_statement_has_a_type_that_the_client_does_not_know() {
    let before = [
        ("SELECT $1::colour", "[1, 2]"),
        ("SELECT $1::colour, missing", "[1]"),
        ("SELECT d FROM pg_stat_database d WHERE datname = $1", "[\"x\"]"),
    ];
    let database = Database::new().await;
    database.execute(TYPES).await;
    for (statement, params) in before {
        // Another session.
        let _worker = Worker::start(&database, &["--readers", "1"]);
        database.run(statement, &format!(", params => '{params}', max_attempts => 1")).await;
        let sound =
            database.run("SELECT $1::percent", ", params => '[7]', max_attempts => 1").await;
        assert_eq!(sound.row(0), ["7"], "after {statement}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_read_the_same_with_and_without_parameters() {
    let database = Database::new().await;
    database.execute(TYPES).await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let columns = "1 AS one, 2::bigint, -1.50::numeric AS amount, true, false, NULL::int, 'ü'::text,
        'c'::char, 'red'::colour, 99.5::percent, '2026-02-03'::date, '12:30'::time,
        '2026-02-03 12:30'::timestamp, '2026-02-03 12:30+00'::timestamptz,
        '00000000-0000-0000-0000-000000000001'::uuid, '{\"a\": [1]}'::jsonb, 'name'::name, 1.5::float8,
        ARRAY[1, NULL, 3], ARRAY['a b', 'c']";
    let plain = database.run(&format!("SELECT {columns}"), "").await;
    let bound =
        database.run(&format!("SELECT {columns} WHERE $1::bool"), ", params => '[true]'").await;
    assert_eq!((plain.outcome.as_str(), bound.outcome.as_str()), ("succeeded", "succeeded"));
    assert_eq!(plain.row(0)[..3], ["1", "2", "-1.50"]);
    assert_eq!(plain.result["columns"], bound.result["columns"]);
    assert_eq!(plain.row(0), bound.row(0));
}
