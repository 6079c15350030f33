//! Calls run in a handler in Rust, and take effect exactly once together with their success.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use pgmill_worker::{Builder, Call, CallError, Disposition, Outcome, Worker as Library};
use serde::{Deserialize, Serialize};

use crate::harness::{Database, Embedded, Worker, eventually};

const INSERT: &str = "INSERT INTO effect VALUES (current_setting('mill.task_id')::bigint, $1)";

#[derive(Deserialize)]
struct Invoice {
    invoice: i64,
}

#[derive(Serialize)]
struct Sent {
    number: i64,
    to: &'static str,
}

/// Creates a database with the table `effect`.
async fn database() -> Database {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (task bigint UNIQUE, invoice bigint)").await;
    database
}

/// Leaves an effect.
async fn insert(call: &Call<'_>) -> Result<i64> {
    let Invoice { invoice } = call.args()?;
    let inserted = call.transaction().execute(INSERT, &[&invoice]).await?;
    assert_eq!(inserted, 1);
    Ok(invoice)
}

async fn send_invoice(call: Call<'_>) -> Result<Sent> {
    Ok(Sent { number: insert(&call).await?, to: "Ada" })
}

fn with_handler() -> Builder {
    Library::builder().handler("send_invoice", |call| Box::pin(send_invoice(call)))
}

async fn effects(database: &Database) -> i64 {
    database.value("SELECT count(*) FROM effect").await
}

const INVOICE: &str = r#", params => '[{"invoice": 7}]'"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_effects_of_a_handler_commit_together_with_the_success_of_its_task() {
    let database = database().await;
    let _worker = Embedded::start(&database, with_handler());
    let ran = database.run("CALL send_invoice($1);", INVOICE).await;
    assert_eq!(
        (ran.outcome.as_str(), ran.attempts, ran.rows),
        ("succeeded", 1, Some(1)),
        "{ran:?}"
    );
    assert_eq!(ran.result["columns"], serde_json::json!(["send_invoice"]));
    assert_eq!(ran.row(0), [r#"{"number":7,"to":"Ada"}"#]);
    let same = "SELECT e.xmin = a.xmin AND e.task = a.task_id AND e.invoice = 7
                FROM effect e, mill.attempts a";
    assert!(database.value::<bool>(same).await);
    // Other tasks run in the same session.
    assert_eq!(database.run("SELECT current_setting('mill.task_id')", "").await.rows, Some(1));
    database.execute("CREATE PROCEDURE archive(j jsonb) BEGIN ATOMIC SELECT 1; END").await;
    let ran = database.run("CALL archive($1)", INVOICE).await;
    assert_eq!(ran.outcome, "succeeded", "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_with_a_schema_in_its_name_and_without_a_result() {
    let database = database().await;
    let builder = Library::builder().handler("billing.send", |call| {
        Box::pin(async move {
            assert_eq!((call.name(), call.attempt()), ("billing.send", 1));
            assert_eq!(call.json(), r#"[1.10, {"a": null}]"#);
            Ok(())
        })
    });
    let _worker = Embedded::start(&database, builder);
    let ran = database.run("CALL Billing.Send($1)", r#", params => '[[1.10, {"a": null}]]'"#).await;
    assert_eq!((ran.outcome.as_str(), ran.rows), ("succeeded", Some(0)), "{ran:?}");
    assert!(ran.result.is_null(), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_fails_is_rolled_back_and_runs_again() {
    let database = database().await;
    let builder = Library::builder().handler("send_invoice", |call| {
        Box::pin(async move {
            let invoice = insert(&call).await?;
            if call.attempt() == 1 {
                Err(std::io::Error::other("connection refused")).context("no mail server")?;
            }
            Ok(invoice)
        })
    });
    let _worker = Embedded::start(&database, builder);
    let options = format!("{INVOICE}, max_attempts => 3, retry_interval => '0'");
    let id = database.enqueue("CALL send_invoice($1)", &options).await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(database.attempts(id).await, "failed succeeded");
    assert_eq!(effects(&database).await, 1);
    let error: String = database
        .value("SELECT sqlstate || ' ' || message FROM mill.attempts WHERE outcome = 'failed'")
        .await;
    assert_eq!(error, "P0001 no mail server: connection refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_sql_in_a_handler_is_the_error_of_the_attempt() {
    let database = database().await;
    let builder = Library::builder()
        .handler("divide", |call| {
            Box::pin(async move {
                let row = call.transaction().query_one("SELECT 1 / $1::int", &[&0]).await;
                Ok(row.context("cannot divide")?.get::<_, i32>(0))
            })
        })
        .handler("swallow", |call| {
            Box::pin(async move {
                let row = call.transaction().query_one("SELECT 1 / $1::int", &[&0]).await;
                assert_eq!(row.unwrap_err().sqlstate(), Some("22012"));
                Ok(())
            })
        });
    let _worker = Embedded::start(&database, builder);
    let options = ", params => '[0]', max_attempts => 1";
    let ran = database.run("CALL divide($1)", options).await;
    ran.assert_failed("22012", "division by zero");
    // The server does not commit the transaction, although the handler returned Ok.
    let ran = database.run("CALL swallow($1)", options).await;
    ran.assert_failed("25P02", "current transaction is aborted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_fails_the_attempt_and_the_worker_lives() {
    let database = database().await;
    let builder = Library::builder().handler("send_invoice", |call| {
        Box::pin(async move {
            let invoice = insert(&call).await?;
            assert!(invoice != 13, "no invoice {invoice}");
            Ok(())
        })
    });
    let _worker = Embedded::start(&database, builder);
    let options = r#", params => '[{"invoice": 13}]', max_attempts => 1"#;
    let ran = database.run("CALL send_invoice($1)", options).await;
    ran.assert_failed("XX000", "the handler panicked: no invoice 13");
    assert_eq!(effects(&database).await, 0);
    assert_eq!(database.run("CALL send_invoice($1)", INVOICE).await.outcome, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_that_does_not_fit_the_handler_fails_the_task_with_the_reason() {
    let database = database().await;
    let _worker = Embedded::start(&database, with_handler());
    for (params, reason) in [
        (r#"[{"invoice": "x"}]"#, "invalid type: string \"x\", expected i64 at line 1 column 15"),
        ("[{}]", "missing field `invoice` at line 1 column 2"),
    ] {
        let options = format!(", params => '{params}', max_attempts => 5");
        let ran = database.run("CALL send_invoice($1)", &options).await;
        ran.assert_failed("MT900", "the parameter of send_invoice does not fit its handler: ");
        ran.assert_failed("MT900", reason);
        assert_eq!(ran.attempts, 1);
    }
    assert_eq!(effects(&database).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_can_fail_permanently_and_snooze() {
    let database = database().await;
    let snoozes = Arc::new(AtomicU32::new(0));
    let builder = Library::builder()
        .handler("fail", |_| {
            Box::pin(async { Err::<(), _>(CallError::fatal("no address").into()) })
        })
        .handler("snooze", move |call| {
            let snoozes = Arc::clone(&snoozes);
            Box::pin(async move {
                insert(&call).await?;
                if snoozes.fetch_add(1, Ordering::Relaxed) < 2 {
                    bail!(CallError::snooze());
                }
                Ok(())
            })
        });
    let _worker = Embedded::start(&database, builder);
    let options = format!("{INVOICE}, max_attempts => 5, retry_interval => '0'");
    let ran = database.run("CALL fail($1)", &options).await;
    ran.assert_failed("MT900", "no address");
    assert_eq!(ran.attempts, 1);
    let ran = database.run("CALL snooze($1)", &options).await;
    assert_eq!((ran.outcome.as_str(), ran.attempts), ("succeeded", 1), "{ran:?}");
    assert_eq!(effects(&database).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_cannot_end_its_transaction() {
    let database = database().await;
    let builder = Library::builder().handler("execute", |call| {
        Box::pin(async move {
            let sql: String = call.args()?;
            call.transaction().batch_execute("INSERT INTO effect VALUES (1, 1)").await?;
            call.transaction().batch_execute(&sql).await?;
            Ok(())
        })
    });
    let _worker = Embedded::start(&database, builder);
    let run = async |sql: &str| {
        let params = serde_json::json!([sql]).to_string().replace('\'', "''");
        database
            .run("CALL execute($1)", &format!(", params => '{params}', max_attempts => 3"))
            .await
    };
    for sql in ["COMMIT", "SELECT 1; ROLLBACK; BEGIN", "PREPARE TRANSACTION 'x'", "SAVEPOINT a"] {
        let ran = run(sql).await;
        ran.assert_failed(
            "0A000",
            "is not allowed in a task, because the worker owns the transaction",
        );
        assert_eq!((ran.attempts, effects(&database).await), (1, 0), "{sql}");
    }
    // The scanner does not see this COMMIT, but the completion finds another transaction.
    let hidden = r"SET standard_conforming_strings = off; SELECT 'a\', 'b; COMMIT; BEGIN; --'";
    let set = "SET standard_conforming_strings = off";
    let (_, hidden) = hidden.split_once("; ").unwrap();
    let name: String = database.value("SELECT current_database()::text").await;
    database.execute(&format!("ALTER DATABASE {name} {set}")).await;
    let readers = "SELECT pid FROM pg_stat_activity
                   WHERE application_name LIKE '%reader%' AND datname = current_database()";
    let sessions = database.rows(readers, &[]).await;
    assert_eq!(sessions.len(), 1);
    let killed: i32 = sessions[0].get(0);
    database.execute(&format!("SELECT pg_terminate_backend({killed})")).await;
    // A task that starts in the session that ends would have another attempt.
    eventually("the reader has a new session", async || {
        let sessions = database.rows(readers, &[]).await;
        sessions.iter().any(|session| session.get::<_, i32>(0) != killed)
    })
    .await;
    let ran = run(hidden).await;
    ran.assert_failed("MT900", "the task ended its own transaction");
    assert_eq!((ran.attempts, effects(&database).await), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_in_autocommit_mode_are_refused() {
    let database = database().await;
    let _worker = Embedded::start(&database, with_handler());
    let run = async |options: &str| {
        database
            .run("CALL send_invoice($1)", &format!("{INVOICE}{options}, max_attempts => 3"))
            .await
    };
    let ran = run(", mode => 'autocommit'").await;
    ran.assert_failed("0A000", "a handler does not run in autocommit mode");
    assert_eq!(ran.attempts, 1);
    assert_eq!(effects(&database).await, 0);
    let ran = run(", options => '{\"isolation\": \"serializable\"}'").await;
    assert_eq!(ran.outcome, "succeeded", "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_handler_fails_with_a_hint() {
    let database = database().await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let ran = database.run("CALL send_invoice($1)", INVOICE).await;
    ran.assert_failed("42883", "this worker has no handler \"send_invoice\"");
    ran.assert_failed("42883", "let only this program serve the queue \"default\"");
    assert_eq!(ran.attempts, 1);
    let ran = database.run("SELECT send_invoice($1)", INVOICE).await;
    assert!(!ran.hint.contains("handler"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn types_of_the_database_do_not_break_the_next_call() {
    let database = database().await;
    database.execute("CREATE TYPE colour AS ENUM ('red'); CREATE TYPE size AS ENUM ('s')").await;
    let builder = Library::builder().handler("paint", |call| {
        Box::pin(async move {
            let name: String = call.args()?;
            let sql = format!("SELECT ('{{}}'::{name}[])::text, '{{}}'::{name}[] AS sizes");
            let rows = call.transaction().query(&sql, &[]).await?;
            Ok(rows[0].get::<_, String>(0))
        })
    });
    let _worker = Embedded::start(&database, builder);
    for name in ["colour", "size", "colour"] {
        let options = format!(", params => '[\"{name}\"]', max_attempts => 1");
        let ran = database.run("CALL paint($1)", &options).await;
        assert_eq!(ran.outcome, "succeeded", "{ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_learns_the_end_of_each_attempt() {
    let database = database().await;
    let ends = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&ends);
    let builder = with_handler().on_attempt_end(move |end| {
        seen.lock().push((end.task_id, end.call.clone(), end.attempt, end.disposition));
        assert!(end.call.is_some(), "a panic of the hook does not end the worker");
    });
    let _worker = Embedded::start(&database, builder);
    let failing = database.enqueue("SELECT 1 / 0", ", max_attempts => 1").await;
    database.outcome(failing).await;
    let options = format!("{INVOICE}, max_attempts => 1");
    let call = database.enqueue("CALL send_invoice($1)", &options).await;
    database.outcome(call).await;
    let done = database.enqueue("SELECT 1", "").await;
    database.outcome(done).await;
    eventually("all ends are reported", async || ends.lock().len() == 3).await;
    let name = Some("send_invoice".to_owned());
    let expected = [
        (failing, None, 1, Disposition::Finished(Outcome::Failed)),
        (call, name, 1, Disposition::Finished(Outcome::Succeeded)),
        (done, None, 1, Disposition::Finished(Outcome::Succeeded)),
    ];
    assert_eq!(*ends.lock(), expected);
}

#[test]
fn invalid_settings_and_names_of_handlers_are_refused() {
    let handled =
        |name: &str| Library::builder().handler(name, |_| Box::pin(async { Ok(()) })).readers(1);
    let error = |builder: Builder| format!("{:#}", builder.build().unwrap_err());
    let missing = error(handled("billing.send_2").config_file("/no/such/file"));
    assert!(missing.contains("could not read the configuration file /no/such/file"), "{missing}");
    assert!(handled("billing.send_2").setting("no_scheduler", "true").build().is_ok());
    for name in ["Send", "send invoice", "\"a\"", "a($1", "", "a.", "1"] {
        assert!(error(handled(name)).contains("invalid name of a handler"), "{name}");
    }
    let twice = handled("send").handler("send", |_| Box::pin(async { Ok(()) }));
    assert_eq!(error(twice), "two handlers have the name \"send\"");
    let builder = handled("send").setting("heartbeat", "5s");
    assert!(error(builder).contains("unknown setting \"heartbeat\""));
    let builder = handled("send").setting("no_scheduler", "yes");
    assert!(error(builder).contains("must be true or false"));
    let builder = handled("send").setting("heartbeat_interval", "soon");
    assert!(error(builder).contains("invalid value 'soon' for '--heartbeat-interval"));
    let builder = handled("send").setting("heartbeat_interval", "1h");
    assert!(error(builder).contains("orphan_timeout"));
}
