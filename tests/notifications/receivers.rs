//! Formats of the receivers, and what workers refuse to send, log or store.

use serde_json::{Value, json};

use crate::harness::receiver::TemporaryFile;
use crate::harness::{Database, Receiver, Worker, eventually};
use crate::notifications::delivery::worker;
use crate::notifications::events::subscribe;
use crate::runs::run::FLAGS;

const FAILURE: &str = "SELECT mill.notify('task_failed',
    '{\"task_id\": 42, \"task\": \"load <x>\", \"queue\": \"etl\"}', '{\"outcome\": \"failed\", \"message\": \"no\"}')";

/// Sends the failure to a destination with these settings, and returns what arrives.
async fn sent(kind: &str, settings: &str) -> (Database, Value) {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let url = receiver.url("/x");
    let config = TemporaryFile::new(&format!(
        "[destinations.ops]\nkind = \"{kind}\"\nurl = \"{url}\"\nallow_private = true\n{settings}"
    ));
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "ops"})).await;
    let _worker = worker(&database, &config);
    database.execute(FAILURE).await;
    let body = receiver.until_received(1).await.remove(0).body;
    (database, body)
}

/// Returns the error of the first attempt to deliver.
async fn error(database: &Database) -> String {
    database.execute(FAILURE).await;
    let sql = "SELECT coalesce(max(last_error), '') FROM mill.subscription_state";
    eventually("an attempt fails", async || !database.value::<String>(sql).await.is_empty()).await;
    database.value(sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn slack_gets_a_text_and_fields() {
    let (_, body) = sent("slack", "").await;
    assert_eq!(body["text"], "task load &lt;x&gt; (42): failed");
    assert_eq!(body["attachments"][0]["color"], "danger");
    let fields = body["attachments"][0]["fields"].as_array().unwrap();
    assert!(fields.iter().any(|it| it["title"] == "Queue" && it["value"] == "etl"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn teams_gets_an_adaptive_card() {
    let (_, body) = sent("teams", "").await;
    let attachment = &body["attachments"][0];
    assert_eq!(attachment["contentType"], "application/vnd.microsoft.card.adaptive");
    let title = &attachment["content"]["body"][0]["inlines"][0]["text"];
    assert_eq!(title, "task load <x> (42): failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn pagerduty_gets_an_event_with_the_routing_key() {
    let key = TemporaryFile::new("R0UT1NG\n");
    let (_, body) = sent("pagerduty", &format!("routing_key_file = \"{}\"", key.path())).await;
    assert_eq!(
        (&body["routing_key"], &body["event_action"]),
        (&json!("R0UT1NG"), &json!("trigger"))
    );
    assert_eq!(body["payload"]["summary"], "task load <x> (42): failed");
    assert_eq!(body["payload"]["severity"], "error");
    assert_eq!(body["dedup_key"], "pgmill s task etl load <x>");
}

#[tokio::test(flavor = "multi_thread")]
async fn alertmanager_gets_an_alert() {
    let (_, body) = sent("alertmanager", "").await;
    let labels = &body[0]["labels"];
    assert_eq!(
        (&labels["alertname"], &labels["queue"]),
        (&json!("PgmillTaskFailed"), &json!("etl"))
    );
    assert_eq!(body[0]["annotations"]["summary"], "task load <x> (42): failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_replaces_the_document() {
    let template =
        r#"template = '{"title": "{title}", "id": "{task_id}", "q": ["queue {queue}"]}'"#;
    let (_, body) = sent("webhook", template).await;
    let expected = json!({"title": "task load <x> (42): failed", "id": 42, "q": ["queue etl"]});
    assert_eq!(body, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() {
    let database = Database::new().await;
    let (receiver, elsewhere) = (Receiver::start().await, Receiver::start().await);
    receiver.answers(&format!("307 Temporary Redirect\r\nlocation: {}", elsewhere.url("/")));
    let url = receiver.url("/");
    let config = TemporaryFile::new(&format!(
        "[destinations.ops]\nkind = \"webhook\"\nurl = \"{url}\"\nallow_private = true\n"
    ));
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "ops"})).await;
    let _worker = worker(&database, &config);
    let error = error(&database).await;
    assert_eq!(error, "127.0.0.1 answered 307; redirects are not followed");
    assert!(elsewhere.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_address_is_refused_and_no_connection_is_opened() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let port = receiver.address.rsplit(':').next().unwrap();
    let config = TemporaryFile::new(&format!(
        "[destinations.ops]\nkind = \"webhook\"\nurl = \"https://localhost:{port}/\"\n"
    ));
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "ops"})).await;
    let _worker = worker(&database, &config);
    let error = error(&database).await;
    assert!(error.contains("which is not public") && error.contains("allow_private"), "{error}");
    assert!(receiver.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_neither_logged_nor_stored() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    receiver.answers("500 Internal Server Error");
    let url = TemporaryFile::new(&format!("{}\n", receiver.url("/services/s3cret-path?t0ken=x")));
    let headers = TemporaryFile::new("Authorization: Bearer s3cret-header\n");
    let config = TemporaryFile::new(&format!(
        "[destinations.ops]\nkind = \"webhook\"\nurl_file = \"{}\"\nheaders_file = \"{}\"\nallow_private = true\n",
        url.path(),
        headers.path()
    ));
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "ops"})).await;
    let flags = [&FLAGS[..], &["--config", config.path(), "--log", "trace"]].concat();
    let worker = Worker::start(&database, &flags);
    assert_eq!(error(&database).await, "127.0.0.1 answered 500");
    worker.until_logged("sending a notification failed").await;
    let received = receiver.until_received(1).await.remove(0);
    assert_eq!(received.path, "/services/s3cret-path?t0ken=x");
    assert!(received.headers.contains("authorization: bearer s3cret-header"));
    let rows: String = database
        .value(
            "SELECT concat((SELECT string_agg(n::text, '') FROM mill.notifications n),
                (SELECT string_agg(s::text, '') FROM mill.subscriptions s),
                (SELECT string_agg(s::text, '') FROM mill.subscription_state s),
                (SELECT string_agg(w::text, '') FROM mill.workers w),
                (SELECT string_agg(a::text, '') FROM mill.audit a))",
        )
        .await;
    for text in [rows, worker.log()] {
        assert!(!text.contains("s3cret") && !text.contains("t0ken"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_with_a_mistake_stops_the_worker_at_its_start() {
    let database = Database::new().await;
    for (settings, message) in [
        ("kind = \"webhook\"", "exactly one of url and url_file"),
        ("kind = \"webhook\"\nurl = \"http://example.com/\"", "must begin with https://"),
        ("kind = \"webhook\"\nurl_file = \"/nowhere\"", "could not read /nowhere"),
        ("kind = \"webhook\"\nurl = \"https://a.example/\"\nurll = \"x\"", "unknown field"),
        (
            "kind = \"webhook\"\nurl = \"https://a.example/\"\ntemplate = '{\"a\": \"{b}\"}'",
            "unknown placeholder",
        ),
    ] {
        let config = TemporaryFile::new(&format!("[destinations.ops]\n{settings}\n"));
        let mut worker = worker(&database, &config);
        assert_eq!(worker.ended().await.code(), Some(2), "{settings}: {}", worker.log());
        assert!(worker.log().contains(message), "{settings}: {}", worker.log());
    }
}
