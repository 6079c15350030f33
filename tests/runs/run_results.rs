//! Results as parameters: a later task gets the value that was returned, or fails.

use serde_json::{Value, json};

use super::run::{FLAGS, end, job, start};
use crate::harness::{Database, Worker};
use crate::targets::target::{Configuration, as_flags};

fn returns(name: &str, statement: &str) -> Value {
    json!({"name": name, "statement": statement})
}

/// A task that inserts a column of the result of another task into a table.
fn takes(name: &str, from: &str, column: &str) -> Value {
    json!({"name": name, "after": [from], "statement": "INSERT INTO taken VALUES ($1::text)",
           "params": [{"$result": from, "column": column}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_fails_if_its_parameter_is_a_value_that_the_run_could_not_keep() {
    let database = Database::new().await;
    database.execute("CREATE TABLE taken (v text)").await;
    let typed = "SELECT $1::interval AS v, '\\xfe00'::bytea AS bytes, 'infinity'::date AS day";
    job(
        &database,
        "results",
        json!([
            returns("long", "SELECT repeat('x', 4097) AS v, repeat('y', 4096) AS fits"),
            returns("wide", "SELECT repeat('x', 3000) AS v, repeat('y', 3000) AS w, repeat('z', 3000) AS x"),
            returns("latin", "SET client_encoding = 'LATIN1'; SELECT 'José' AS v"),
            {"name": "typed", "statement": typed, "params": ["1 day"]},
            takes("from long", "long", "v"),
            takes("from wide", "wide", "v"),
            takes("from latin", "latin", "v"),
            takes("from typed", "typed", "v"),
            takes("same row", "long", "fits"),
            takes("bytes", "typed", "bytes"),
            takes("day", "typed", "day"),
            {"name": "after", "statement": "SELECT 1", "after": ["from long"]},
        ]),
    )
    .await;
    let run = start(&database, "results").await;
    let _worker = Worker::start(&database, &FLAGS);
    assert_eq!(end(&database, run).await, "failed");
    let taken = "SELECT array_agg(CASE WHEN length(v) > 99 THEN length(v)::text ELSE v END ORDER BY v) FROM taken";
    assert_eq!(database.value::<Vec<String>>(taken).await, ["\\xfe00", "infinity", "4096"]);
    let failed = "SELECT array_agg(concat_ws(' ', outcome, message, started_at) ORDER BY name) FROM mill.attempts
        WHERE outcome <> 'succeeded' AND final AND hint LIKE 'Store the value in a table.%'";
    let reason = |task: &str, reason: &str| {
        format!("failed column \"v\" of task \"{task}\" cannot be a parameter: {reason}")
    };
    assert_eq!(
        database.value::<Vec<String>>(failed).await,
        [
            reason("latin", "the value is not valid UTF-8"),
            reason("long", "the value is longer than 4 KiB"),
            reason(
                "typed",
                "the value of type interval has no text form in a task with parameters"
            ),
            reason("wide", "the row is longer than 8 kB"),
        ]
    );
    let states = format!(
        "SELECT string_agg(DISTINCT state, ' ' ORDER BY state)
         FROM mill.run_task_status WHERE run_id = {run} AND (name LIKE 'from %' OR name = 'after')"
    );
    assert_eq!(database.value::<String>(&states).await, "failed upstream_failed");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 0);
    // Tasks that failed without a start are among those that a restart runs again.
    let again =
        format!("SELECT array_agg(name ORDER BY name) FROM mill.restart_run({run}) AS name");
    assert_eq!(
        database.value::<Vec<String>>(&again).await,
        ["after", "from latin", "from long", "from typed", "from wide"]
    );
}

/// The server reads what a session sends in the session's `client_encoding`, also when the worker
/// reports the result.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_changes_the_encoding_after_its_result_changes_no_value() {
    let database = Database::new().await;
    let dwh = Database::empty().await;
    let configuration = Configuration::new(&database, &[("dwh", &dwh, dwh.url())]).await;
    database.execute("CREATE TABLE taken (v text)").await;
    let changes =
        "SELECT 'José' AS v; SET client_encoding = 'LATIN1'; SET standard_conforming_strings = off";
    let in_dwh = json!({"name": "in dwh", "statement": changes, "run_as": "dwh"});
    let tasks = [returns("here", changes), takes("from here", "here", "v"), in_dwh];
    job(&database, "results", json!(tasks)).await;
    let run = start(&database, "results").await;
    let flags = configuration.flags();
    let _worker = Worker::start(&database, &as_flags(&flags));
    assert_eq!(end(&database, run).await, "succeeded");
    assert_eq!(database.value::<String>("SELECT v FROM taken").await, "José");
    let kept = "SELECT result->'rows'->0->>0 FROM mill_target.receipts";
    assert_eq!(dwh.value::<String>(kept).await, "José");
}
