//! A receiver that is down, slow or refuses requests affects no task, and the worker reports that it
//! drops spans.

use crate::harness::exposition::parse;
use crate::harness::http::{free_address, get};
use crate::harness::receiver::Receiver;
use crate::harness::{Database, Worker, eventually};

async fn spans(address: &str, result: &str) -> f64 {
    let Some(answer) = get(address, "/metrics").await else { return 0.0 };
    let families = parse(&answer.body);
    let samples = &families["pgmill_trace_spans_total"].samples;
    let of_result = samples.iter().filter(|sample| sample.labels["result"] == result);
    of_result.map(|sample| sample.value).sum()
}

/// Runs tasks while the receiver fails.
async fn tasks_succeed(url: &str, tasks: i32) {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (task bigint)").await;
    let http = free_address();
    let flags = ["--readers", "2", "--otlp-endpoint", url, "--http", &http];
    let mut worker = Worker::start(&database, &flags);
    let insert = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";
    database.enqueue_many(tasks, insert).await;
    database.until_empty().await;
    let succeeded = "SELECT count(*) FROM effect JOIN mill.attempts a ON a.task_id = task
        WHERE a.outcome = 'succeeded'";
    assert_eq!(database.value::<i64>(succeeded).await, i64::from(tasks));
    eventually("spans are dropped", async || spans(&http, "dropped").await > 0.0).await;
    assert!(spans(&http, "exported").await < 0.5);
    assert!(worker.terminate().await.success());
    let warnings = worker.log().matches("spans of traces are dropped").count();
    assert_eq!(warnings, 1, "{}", worker.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_down_affects_no_task() {
    let nobody = free_address();
    tasks_succeed(&format!("http://{nobody}"), 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_never_answers_affects_no_task() {
    let receiver = Receiver::start().await;
    receiver.answers("");
    tasks_succeed(&receiver.url(""), 2000).await;
    // The worker has waited for the answer to a batch before it sent the next one.
    assert!((1..=2).contains(&receiver.most_unanswered()), "{}", receiver.most_unanswered());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_refuses_requests_affects_no_task() {
    for (answer, requests) in [
        ("500 Internal Server Error", 3),
        ("429 Too Many Requests\r\nretry-after: 0", 3),
        ("400 Bad Request", 1),
    ] {
        let receiver = Receiver::start().await;
        receiver.answers(answer);
        tasks_succeed(&receiver.url(""), 20).await;
        assert!(receiver.received().len() >= requests, "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_are_exported_again_when_the_receiver_is_back() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    receiver.answers_once("503 Service Unavailable\r\nretry-after: 1");
    let http = free_address();
    let url = receiver.url("");
    let _worker =
        Worker::start(&database, &["--readers", "1", "--otlp-endpoint", &url, "--http", &http]);
    database.enqueue("SELECT 1", "").await;
    eventually("the spans are exported", async || spans(&http, "exported").await >= 4.0).await;
    receiver.until_received(2).await;
    assert!(spans(&http, "dropped").await < 0.5);
}

#[tokio::test]
async fn invalid_settings_are_errors_at_the_start() {
    let database = Database::new().await;
    for (flags, error) in [
        (&["--otlp-endpoint", "localhost:4317"][..], "otlp_endpoint: the url is invalid"),
        (&["--otlp-endpoint", "http://u:p@localhost"], "otlp_endpoint: the url has a user name"),
        (&["--otlp-endpoint", "http://x", "--otlp-headers-file", "/no"], "could not read /no"),
        (&["--traces-sampler-arg", "2"], "a ratio is a number from 0 to 1"),
        (
            &["--otlp-endpoint", "http://x", "--otlp-resource-attributes", "x"],
            "\"x\" is not an attribute such as service.namespace=etl",
        ),
    ] {
        let mut worker = Worker::start(&database, flags);
        let code = worker.ended().await.code();
        assert!(worker.log().contains(error), "{}", worker.log());
        assert_eq!(code, Some(2), "{flags:?}");
    }
}
