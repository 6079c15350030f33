//! Failures grouped by cause, and the bulk retry of a cause.

use serde_json::Value;

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, Worker};

const DIVIDES: &str = "SELECT 1 / 0";

fn raises(what: &str) -> String {
    format!("DO $$ BEGIN RAISE 'no \"{what}\" <script>'; END $$")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cause_is_one_line_and_is_retried_as_a_whole_after_a_confirmation() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let mut worker = Worker::start(&database, &["--readers", "2", "--poll-interval", "50ms"]);
    let once = ", max_attempts => 1, queue => 'etl'";
    for what in ["a", "b", "c"] {
        database.enqueue(&raises(what), once).await;
    }
    database.enqueue(DIVIDES, ", max_attempts => 1").await;
    // Another cause with the same SQLSTATE.
    database.enqueue("DO $$ BEGIN RAISE 'another'; END $$", once).await;
    database.until_empty().await;
    assert!(worker.terminate().await.success());

    let groups = console.get("/api/v1/failures").await.body;
    let groups: Value = serde_json::from_str(&groups).unwrap();
    let groups = groups["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 3, "{groups:?}");
    assert_eq!(groups[0]["message"], "no \"…\" <script>");
    assert_eq!((&groups[0]["attempts"], &groups[0]["tasks"]), (&Value::from(3), &Value::from(3)));
    let cause = groups[0]["cause"].as_str().unwrap();

    let page = console.get("/failures?since=1d").await.body;
    assert!(page.contains("no &#34;…&#34; &#60;script&#62;"), "{page}");
    assert_eq!(page.matches("<script").count(), page.matches("<script src=").count());
    let path = format!("/tasks/bulk?q=state%3Afailed%20cause%3A{cause}%20since%3A1d");
    assert!(page.contains(&path), "{path} in {page}");
    let asked = console.get(&path).await.body;
    assert!(asked.contains("retry 3 tasks?"), "{asked}");
    let form = format!("q=state%3Afailed+cause%3A{cause}+since%3A1d&up_to=4000000000000000");
    let done = console.post("/tasks/bulk", &form).await.body;
    assert!(done.contains("<th scope=\"row\">retried</th><td class=\"n\">3</td>"), "{done}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 3);

    // They fail again. The confirmation lists each task once, not each of its ends.
    let retried: Vec<i64> = database.value("SELECT array_agg(id) FROM mill.tasks").await;
    let mut worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "50ms"]);
    database.until_empty().await;
    assert!(worker.terminate().await.success());
    let asked = console.get(&path).await.body;
    assert!(asked.contains("retry 3 tasks?"), "{asked}");
    for id in retried {
        assert_eq!(asked.matches(&format!("href=\"/tasks/{id}\"")).count(), 1, "{id}: {asked}");
    }

    let of_queue = console.get("/api/v1/failures?queue=default&since=1h").await.body;
    let of_queue: Value = serde_json::from_str(&of_queue).unwrap();
    assert_eq!(of_queue["groups"].as_array().unwrap().len(), 1);
    assert_eq!(console.get("/api/v1/failures?since=soon").await.status, 400);
    assert!(console.get("/failures?since=soon").await.body.contains("is not a duration"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_no_redacted_message_and_no_retry() {
    let database = Database::new().await;
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    let console = Console::start_at(&database, &viewer.url(), &[]).await;
    let mut worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "50ms"]);
    database.enqueue(&raises("a"), ", max_attempts => 1").await;
    database.until_empty().await;
    let page = console.get("/failures").await.body;
    assert!(page.contains("no &#34;…&#34;") && !page.contains("/tasks/bulk"), "{page}");
    database.execute("UPDATE mill.settings SET hide_statements = true").await;
    let page = console.get("/failures").await.body;
    assert!(page.contains("(hidden)") && !page.contains("no &#34;"), "{page}");
    assert!(worker.terminate().await.success());
    drop(console);
    viewer.gone().await;
}
