//! The option `traceparent`: checked at the enqueue, kept for all attempts, inherited by the tasks of a
//! run, and shown.

use serde_json::{Value, json};

use super::spans::{CALLER, TRACE, traced};
use crate::harness::console::Console;
use crate::harness::login::answer;
use crate::harness::{Database, Program, Worker};
use crate::notifications::events::{documents, subscribe};
use crate::runs::run::{FLAGS, end, job};

fn context() -> String {
    format!("00-{TRACE}-{CALLER}-01")
}

#[tokio::test]
async fn a_malformed_traceparent_is_an_error_of_the_caller() {
    let database = Database::new().await;
    job(&database, "j", json!([{"name": "a", "statement": "SELECT 1"}])).await;
    let zero = format!("00-{}-{CALLER}-01", "0".repeat(32));
    for wrong in ["x", "", &zero, &context().to_uppercase(), &format!("{}-x", context()), "ff"] {
        for call in [
            "mill.enqueue('SELECT 1', options => $1)",
            "mill.enqueue_many(ARRAY['SELECT 1'], options => $1)",
            "mill.start_run('{j}', options => $1)",
        ] {
            let options = json!({ "traceparent": wrong });
            let call = format!("SELECT {call}");
            let error = database.client().query(&call, &[&options]).await.unwrap_err();
            let error = error.as_db_error().unwrap();
            assert_eq!(error.code().code(), "22023", "{error:?}");
            assert_eq!(error.message(), format!("invalid traceparent \"{wrong}\""));
            assert!(error.hint().unwrap().contains("trace id"), "{error:?}");
        }
    }
    // Null is none. A declared task cannot have one, because each run has its own.
    database
        .execute(r#"SELECT mill.enqueue('SELECT 1', options => '{"traceparent": null}')"#)
        .await;
    let declared = format!(
        r#"SELECT mill.set_job('j', '[{{"name": "a", "statement": "SELECT 1", "traceparent": "{}"}}]')"#,
        context()
    );
    assert_eq!(answer(database.client(), &declared).await, "22023");
    let (code, _, error) =
        Program::enqueue(&database, &["--traceparent", "00-1-2-01", "SELECT 1"]).run().await;
    assert_eq!(code, 2);
    assert!(
        error.contains("--traceparent: invalid traceparent \"00-1-2-01\"; expected"),
        "{error}"
    );
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_ignores_a_malformed_traceparent() {
    let database = Database::new().await;
    let id = database.enqueue("SELECT 1", &traced()).await;
    database.execute("UPDATE mill.tasks SET options.traceparent = 'nonsense'").await;
    let _worker = Worker::start(&database, &["--otlp-endpoint", "http://127.0.0.1:9"]);
    assert_eq!(database.outcome(id).await, "succeeded");
    Program::pgmill(&database, &["task", "show", &id.to_string()]).succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_traceparent_is_shown_wherever_the_task_is() {
    let database = Database::new().await;
    subscribe(&database, "failed", json!({"events": ["attempt_failed"]})).await;
    let trace_url = ["--trace-url", "https://tempo.example/trace/{trace_id}?x=1"];
    let console = Console::start(&database, &trace_url).await;
    let command = Program::enqueue(&database, &["--max-attempts", "1", "SELECT 1/0"]);
    let mut command = command.into_command();
    let printed = command.env("TRACEPARENT", context()).output().unwrap();
    let id: i64 = String::from_utf8(printed.stdout).unwrap().trim().parse().unwrap();
    // An empty variable is as good as none.
    let mut command = Program::enqueue(&database, &["--queue", "other", "SELECT 1"]).into_command();
    assert!(command.env("TRACEPARENT", "").status().unwrap().success());
    let worker = Worker::start(&database, &["--queues", "default"]);
    assert_eq!(database.outcome(id).await, "failed");
    let stored = "SELECT (options).traceparent FROM mill.visible_attempts";
    assert_eq!(database.value::<String>(stored).await, context());
    let shown = Program::pgmill(&database, &["task", "show", &id.to_string()]).succeeds().await;
    assert!(shown.contains(&format!("trace     {TRACE}\n")), "{shown}");
    let show = ["task", "show", &id.to_string(), "--json"];
    let document: Value =
        serde_json::from_str(&Program::pgmill(&database, &show).succeeds().await).unwrap();
    assert_eq!(document["task"]["traceparent"], json!(context()), "{document}");
    assert_eq!(documents(&database, "failed").await[0]["traceparent"], json!(context()));
    let page = console.get(&format!("/tasks/{id}")).await.body;
    let link = format!("<a href=\"https://tempo.example/trace/{TRACE}?x=1\"");
    assert!(page.contains(&link), "{page}");
    worker.until_logged(&format!("trace_id=\"{TRACE}\"")).await;
    // The traceparent survives a retry.
    database.execute(&format!("SELECT mill.retry({id})")).await;
    let kept = "SELECT count(*) FROM mill.visible_attempts WHERE (options).traceparent IS NOT NULL";
    crate::harness::eventually("the task is retried", async || {
        database.value::<i64>(kept).await == 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tasks_of_a_run_have_the_traceparent_of_the_run() {
    let database = Database::new().await;
    let adds = "SELECT mill.add_run_task('added', 'SELECT 1')";
    let tasks = json!([
        {"name": "first", "statement": adds, "tags": ["etl"]},
        {"name": "second", "statement": "SELECT 1", "after": ["first"]},
    ]);
    job(&database, "load", tasks).await;
    let flags = ["--job", "load", "--traceparent", &context(), "--json"];
    let started = Program::enqueue(&database, &flags).succeeds().await;
    let started: Value = serde_json::from_str(&started).unwrap();
    let _worker = Worker::start_as_superuser(&database, "the task adds a task to its run", &FLAGS);
    let run = started["run_id"].as_i64().unwrap();
    assert_eq!(end(&database, run).await, "succeeded");
    let of_attempts =
        "SELECT string_agg(concat_ws(' ', name, (options).traceparent), ', ' ORDER BY name)
        FROM mill.visible_attempts";
    let of = |name: &str| format!("{name} {}", context());
    let expected = ["added", "first", "second"].map(of).join(", ");
    assert_eq!(database.value::<String>(of_attempts).await, expected);
    let tags = "SELECT (options).tags FROM mill.visible_attempts WHERE name = 'first'";
    assert_eq!(database.value::<Vec<String>>(tags).await, ["etl"]);
    // Another run of the job has none.
    let other: i64 = database.value("SELECT run_id FROM mill.start_run('{load}')").await;
    assert_eq!(end(&database, other).await, "succeeded");
    let none = format!(
        "SELECT count(*) FROM mill.visible_attempts WHERE run_id = {other} AND (options).traceparent IS NULL"
    );
    assert_eq!(database.value::<i64>(&none).await, 3);
}
