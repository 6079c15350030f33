//! A task with any content ends cleanly, the worker continues, and the next task is unaffected.

use std::error::Error;

use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

use crate::harness::{Database, Worker, amount, eventually};

/// Bytes that are sent as text although they are not valid text.
#[derive(Debug)]
struct Raw(&'static [u8]);

impl ToSql for Raw {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(self.0);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// Returns the SQLSTATE with which an enqueue is refused. Panics if it is accepted.
async fn refused(database: &Database, sql: &str) -> String {
    let error = database.client().batch_execute(sql).await.expect_err(sql);
    error.as_db_error().map_or_else(|| format!("{error:?}"), |db| db.code().code().to_owned())
}

async fn nothing_is_stored(database: &Database) {
    let stored: i64 = database
        .value(
            "SELECT (SELECT count(*) FROM mill.tasks) + (SELECT count(*) FROM mill.dedup_keys)
                + (SELECT count(*) FROM mill.attempts)",
        )
        .await;
    assert_eq!(stored, 0);
}

#[tokio::test]
async fn an_invalid_enqueue_is_refused_and_stores_nothing() {
    let database = Database::new().await;
    let cases = [
        ("''", "22023"),
        ("NULL", "22023"),
        ("E' \\t\\n '", "22023"),
        ("repeat(' ', 5000)", "22023"),
        ("'SELECT 1', params => '{\"a\": 1}'", "22023"),
        ("'SELECT 1', params => '7'", "22023"),
        ("'SELECT 1', params => '[\"\\u0000\"]'", "22P05"),
        ("'SELECT 1', params => (SELECT jsonb_agg(1) FROM generate_series(1, 65536))", "54000"),
        ("'SELECT 1', queue => 'no such; DROP TABLE'", "23514"),
        ("'SELECT 1', queue => 'größer'", "23514"),
        ("'SELECT 1', queue => ''", "23514"),
        ("'SELECT 1', queue => repeat('q', 129)", "23514"),
        ("'SELECT 1', name => ''", "23514"),
        ("'SELECT 1', name => repeat('n', 513)", "23514"),
        ("'SELECT 1', key => ''", "23514"),
        ("'SELECT 1', key => repeat('k', 513)", "23514"),
        ("'SELECT 1', priority => 'urgent'", "22P02"),
        ("'SELECT 1', max_attempts => 0", "23514"),
        ("'SELECT 1', max_attempts => -1", "23514"),
        ("'SELECT 1', max_attempts => 10001", "23514"),
        ("'SELECT 1', max_attempts => 2147483647", "23514"),
        ("'SELECT 1', retry_interval => '-1 second'", "23514"),
        ("'SELECT 1', retry_interval => '366 days'", "23514"),
        ("'SELECT 1', timeout => '0'", "23514"),
        ("'SELECT 1', timeout => '-1 second'", "23514"),
        ("'SELECT 1', timeout => '10 years'", "23514"),
        ("'SELECT 1', due_at => 'infinity'", "23514"),
        ("'SELECT 1', due_at => '-infinity'", "23514"),
        ("'SELECT 1', due_at => '10000-01-01 00:00:00+00'", "23514"),
        ("'SELECT 1', at_most_once => true", "23514"),
        ("'SELECT 1', at_most_once => true, mode => 'autocommit', max_attempts => 2", "23514"),
    ];
    for (arguments, sqlstate) in cases {
        let sql = format!("SELECT mill.enqueue({arguments})");
        assert_eq!(refused(&database, &sql).await, sqlstate, "{sql}");
    }
    nothing_is_stored(&database).await;
    // Values exactly at the limits are accepted.
    database
        .execute(
            "SELECT mill.enqueue('SELECT 1', queue => repeat('q', 128), name => repeat('n', 512),
                key => repeat('k', 512), max_attempts => 10000, retry_interval => '365 days',
                timeout => '1 microsecond', due_at => '9999-12-30')",
        )
        .await;
}

#[tokio::test]
async fn invalid_text_is_refused() {
    let database = Database::new().await;
    for text in
        [&b"SELECT 'a\0b'"[..], b"SELECT '\xff'", b"SELECT '\xc3'", b"SELECT '\xed\xa0\x80'"]
    {
        let error = database
            .client()
            .query("SELECT mill.enqueue($1::text)", &[&Raw(text)])
            .await
            .expect_err("a statement that is not valid text");
        assert_eq!(
            error.code().map(tokio_postgres::error::SqlState::code),
            Some("22021"),
            "{error:?}"
        );
    }
    nothing_is_stored(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_of_a_megabyte_runs_and_one_above_the_limit_is_refused_with_it() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let sized = |bytes: usize| format!("SELECT length('{}')", "x".repeat(bytes));
    let ran = database.run(&sized(1 << 20), "").await;
    assert_eq!((ran.outcome.as_str(), ran.row(0)), ("succeeded", vec!["1048576"]));

    let huge = sized(amount(17 << 20, 100 << 20));
    let error = database
        .client()
        .query("SELECT mill.enqueue($1)", &[&huge])
        .await
        .expect_err("the statement is above the limit");
    let db = error.as_db_error().unwrap();
    assert_eq!(db.code().code(), "54000");
    assert!(db.message().ends_with("the maximum is 16777216 bytes"), "{}", db.message());
    assert!(db.hint().unwrap().contains("statement_limit_bytes in mill.settings"));

    let larger = sized(17 << 20);
    database.execute("UPDATE mill.settings SET statement_limit_bytes = 32 << 20").await;
    assert_eq!(database.run(&larger, "").await.row(0), ["17825792"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_control_is_refused_before_anything_runs() {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (n int)").await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let cases = [
        ("COMMIT", 1),
        ("rollback", 1),
        ("BEGIN", 1),
        ("SAVEPOINT s", 1),
        ("INSERT INTO effect VALUES (1); COMMIT", 32),
        ("INSERT INTO effect VALUES (1); /* ü; */ -- x\n  Commit; SELECT 1", 48),
        ("INSERT INTO effect VALUES (1); START TRANSACTION", 32),
        ("INSERT INTO effect VALUES (1); END", 32),
        ("INSERT INTO effect VALUES (1); ABORT", 32),
        ("INSERT INTO effect VALUES (1); PREPARE TRANSACTION 'x'", 32),
    ];
    for mode in ["transaction", "autocommit"] {
        for (statement, position) in cases {
            let ran = database.run(statement, &format!(", mode => '{mode}'")).await;
            ran.assert_failed("0A000", "the worker owns the transaction");
            assert_eq!((ran.attempts, ran.position), (1, Some(position)), "{statement}");
        }
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM effect").await, 0);
    assert_eq!(database.run("SELECT 'COMMIT'; SELECT 7", "").await.row(0), ["7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_cannot_run_in_a_transaction_fails_at_once_and_names_the_mode() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE TABLE effect (n int);
             CREATE PROCEDURE commits() LANGUAGE plpgsql AS
                $$ BEGIN INSERT INTO effect VALUES (1); COMMIT; END $$",
        )
        .await;
    let _worker = Worker::start_as_superuser(
        &database,
        "the task has statements that only owners and superusers may run",
        &["--readers", "1"],
    );
    let cases = [
        ("DO $$ BEGIN COMMIT; END $$", "2D000"),
        ("CALL commits()", "2D000"),
        ("VACUUM effect", "25001"),
        ("CREATE INDEX CONCURRENTLY ON effect (n)", "25001"),
    ];
    for (statement, sqlstate) in cases {
        let ran = database.run(statement, "").await;
        ran.assert_failed(sqlstate, "--mode autocommit");
        assert_eq!(ran.attempts, 1, "{statement}");
        let ran = database.run(statement, ", mode => 'autocommit'").await;
        assert_eq!(ran.outcome, "succeeded", "{statement}: {ran:?}");
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM effect").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_slips_past_the_scanner_and_commits_does_not_count_as_a_success() {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (n int)").await;
    let name: String = database.value("SELECT current_database()::text").await;
    database.execute(&format!("ALTER DATABASE {name} SET standard_conforming_strings = off")).await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    // Here a backslash escapes the following quote, so the constant that the scanner sees is not
    // the constant that the server sees.
    let ran =
        database.run("INSERT INTO effect VALUES (1); SELECT 'a\\', 'b; COMMIT; --'", "").await;
    ran.assert_failed("MT900", "the task ended its own transaction");
    assert!(ran.hint.contains("Changes that the task committed itself are kept"), "{ran:?}");
    assert_eq!(ran.attempts, 1);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM effect").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_through_the_client_is_refused_and_the_session_lives() {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (n int)").await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let pid = database.run("SELECT pg_backend_pid()", "").await.row(0).join("");
    for mode in ["transaction", "autocommit"] {
        let mode = format!(", mode => '{mode}'");
        database
            .run("SELECT 1; copy effect FROM /* here */ stdin", &mode)
            .await
            .assert_failed("0A000", "Load from a file on the server");
        database
            .run("COPY (SELECT 1) TO STDOUT", &mode)
            .await
            .assert_failed("0A000", "Write to a file on the server");
        database
            .run("DO $$ BEGIN EXECUTE 'COPY effect TO STDOUT'; END $$", &mode)
            .await
            .assert_failed("0A000", "cannot COPY to/from client");
    }
    assert_eq!(database.run("SELECT pg_backend_pid()", "").await.row(0).join(""), pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_never_ends_is_stopped_at_its_timeout_and_its_backend_with_it() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE TABLE slow (n int);
             CREATE FUNCTION forever() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN PERFORM pg_sleep(3600); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER forever AFTER INSERT ON slow
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION forever()",
        )
        .await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let forever = [
        "SELECT pg_sleep(3600)",
        "DO $$ BEGIN LOOP BEGIN PERFORM pg_sleep(3600);
            EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$",
        // The next two statements have their slow part only at COMMIT.
        "INSERT INTO slow VALUES (1)",
        "DECLARE c CURSOR WITH HOLD FOR SELECT pg_sleep(3600)",
    ];
    for mode in ["transaction", "autocommit"] {
        for statement in forever {
            let cursor = statement.starts_with("DECLARE");
            let stubborn = statement.starts_with("DO");
            // One mode suffices to test a backend that ignores a cancel.
            if mode == "autocommit" && (cursor || stubborn) {
                continue;
            }
            let options = format!(", mode => '{mode}', timeout => '200 ms', max_attempts => 1");
            let ran = database.run(statement, &options).await;
            assert_eq!(ran.outcome, "timed_out", "{mode}: {statement}: {ran:?}");
            assert!(ran.message.contains("timeout of 200ms"), "{ran:?}");
        }
    }
    let sleeping = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event = 'PgSleep'";
    eventually("no backend of a stopped statement is left", async || {
        database.value::<i64>(sleeping).await == 0
    })
    .await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM slow").await, 0);
    assert_eq!(database.run("SELECT 7", "").await.row(0), ["7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_ends_its_own_connection_has_failed() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let suicide = "SELECT pg_terminate_backend(pg_backend_pid())";
    let ran = database.run(suicide, ", max_attempts => 1").await;
    assert_eq!((ran.outcome.as_str(), ran.sqlstate.as_str()), ("failed", "57P01"), "{ran:?}");
    assert_eq!(ran.attempts, 1);
    let ran = database.run(suicide, ", mode => 'autocommit', max_attempts => 1").await;
    assert_eq!((ran.outcome.as_str(), ran.attempts), ("failed", 1), "{ran:?}");
    let once = ", mode => 'autocommit', at_most_once => true";
    let ran = database.run(suicide, once).await;
    assert_eq!((ran.outcome.as_str(), ran.attempts), ("unknown", 1), "{ran:?}");
    assert_eq!(database.run("SELECT 7", "").await.row(0), ["7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_transaction_timeout_ends_has_failed_once() {
    let database = Database::new().await;
    if database.major().await < 17 {
        println!("skipped: version 17 introduced transaction_timeout");
        return;
    }
    let _worker = Worker::start(&database, &["--readers", "1"]);
    database.execute("CREATE TABLE late (n int)").await;
    let in_transaction =
        "INSERT INTO late VALUES (1); SET LOCAL transaction_timeout = '200ms'; SELECT pg_sleep(60)";
    let in_autocommit = "SET transaction_timeout = '200ms'; SELECT pg_sleep(60)";
    let once = ", max_attempts => 1, mode => 'autocommit', at_most_once => true";
    for (statement, options) in [(in_transaction, ", max_attempts => 1"), (in_autocommit, once)] {
        let ran = database.run(statement, options).await;
        assert_eq!((ran.outcome.as_str(), ran.attempts), ("failed", 1), "{ran:?}");
        ran.assert_failed("25P04", "transaction_timeout ended the session");
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM late").await, 0);
    assert_eq!(database.run("SELECT 7", "").await.row(0), ["7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_cannot_be_completed_fails_with_the_reason_and_without_effect() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE TABLE parent (n int PRIMARY KEY);
             CREATE TABLE child (n int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let ran = database.run("INSERT INTO child VALUES (1)", ", max_attempts => 1").await;
    ran.assert_failed("23503", "violates foreign key constraint");
    assert!(ran.detail.contains("(n)=(1)"), "{ran:?}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM child").await, 0);

    let ran = database.run("SET TRANSACTION READ ONLY", ", max_attempts => 1").await;
    ran.assert_failed("25006", "the task's transaction is read-only");
    assert_eq!(database.run("SELECT 7", "").await.row(0), ["7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_keeps_every_field_of_the_server_error() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let ran = database.run("SELECT 'ü';\nSELECT 1 FRM t", "").await;
    ran.assert_failed("42601", "syntax error at or near \"t\"");
    assert_eq!((ran.attempts, ran.position), (1, Some(26)), "{ran:?}");

    let raise = "DO $$ BEGIN RAISE EXCEPTION 'what happened' USING ERRCODE = 'ZZ001',
        DETAIL = 'more of it', HINT = 'what to do'; END $$";
    let ran = database.run(raise, ", max_attempts => 1").await;
    ran.assert_failed("ZZ001", "what happened");
    assert_eq!((ran.detail.as_str(), ran.hint.as_str()), ("more of it", "what to do"));
    assert!(ran.context.contains("PL/pgSQL function inline_code_block line 1"), "{ran:?}");
    let same = database.run(raise, ", max_attempts => 1, mode => 'autocommit'").await;
    assert_eq!((same.detail, same.hint, same.context), (ran.detail, ran.hint, ran.context));
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_of_one_task_are_one_transaction_or_run_one_by_one() {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (n int)").await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let script = "INSERT INTO effect VALUES (1);\n/* ü */ INSERT INTO effect VALUES ('x')";
    let at = script.chars().position(|c| c == 'x').unwrap();
    let ran = database.run(script, ", max_attempts => 1").await;
    ran.assert_failed("22P02", "invalid input syntax");
    // Position of the constant's opening quote, counted from 1.
    assert_eq!(ran.position, i32::try_from(at).ok());
    assert_eq!(database.value::<i64>("SELECT count(*) FROM effect").await, 0);

    let ran = database.run(script, ", max_attempts => 1, mode => 'autocommit'").await;
    ran.assert_failed("22P02", "invalid input syntax");
    assert_eq!((ran.position, ran.rows), (i32::try_from(at).ok(), Some(1)));
    assert_eq!(database.value::<i64>("SELECT count(*) FROM effect").await, 1);

    let xids = "CREATE TEMP TABLE seen AS SELECT pg_current_xact_id()::text AS x;
        INSERT INTO seen SELECT pg_current_xact_id()::text; SELECT count(DISTINCT x) FROM seen";
    assert_eq!(database.run(xids, "").await.row(0), ["1"]);
    assert_eq!(database.run(xids, ", mode => 'autocommit'").await.row(0), ["2"]);
}

#[tokio::test]
async fn the_result_of_a_statement_is_kept_whatever_its_form() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    for shared in ["", "SELECT mill.set_shared_commit('default', '20ms')"] {
        database.execute(shared).await;
        let ran = database.run("SELECT 1 AS mill_task_boundary", "").await;
        assert_eq!((ran.row(0), ran.rows), (vec!["1"], Some(1)), "{shared}");
        for statement in
            ["SHOW work_mem", "EXPLAIN (COSTS OFF) SELECT 1", "SELECT 1; SHOW work_mem"]
        {
            let ran = database.run(statement, "").await;
            let rows = i64::try_from(statement.split(';').count()).unwrap();
            assert_eq!(ran.rows, Some(rows), "{statement}");
        }
        let ran = database.run("SET LOCAL client_encoding = 'LATIN1'; SELECT 'é', 'e'", "").await;
        assert_eq!(ran.row(0), ["(not valid UTF-8)", "e"], "{ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn history_keeps_the_first_hundred_rows_of_a_result() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &[]);
    for (bytes, rows, kept, truncated) in
        [(1, 100, 100, false), (1, 101, 100, true), (4096, 1, 1, false), (4097, 1, 1, true)]
    {
        let select = format!("SELECT repeat('x', {bytes}) FROM generate_series(1, {rows})");
        let id = database.enqueue(&select, "").await;
        assert_eq!(database.outcome(id).await, "succeeded");
        let result = format!(
            "SELECT concat_ws(' ', rows, jsonb_array_length(result->'rows'), result->'truncated')
             FROM mill.attempts WHERE task_id = {id}"
        );
        assert_eq!(database.value::<String>(&result).await, format!("{rows} {kept} {truncated}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_statement_changes_are_counted() {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (n integer)").await;
    let _worker = Worker::start(&database, &[]);
    for (statement, options) in [
        ("INSERT INTO effect SELECT generate_series(1, 7)", ""),
        ("INSERT INTO effect SELECT generate_series(1, $1::integer)", ", params => '[7]'"),
    ] {
        let id = database.enqueue(statement, options).await;
        assert_eq!(database.outcome(id).await, "succeeded");
        let rows = format!("SELECT rows FROM mill.attempts WHERE task_id = {id}");
        assert_eq!(database.value::<Option<i64>>(&rows).await, Some(7), "{statement}");
    }
}
