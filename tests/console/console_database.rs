//! The database page of the console.

use serde_json::Value;

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, Worker, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn the_database_page_shows_waiting_and_blocking_sessions() {
    let database = Database::new().await;
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    // The statements of other logins are shown to members of pg_read_all_stats.
    let rights = "mill_operator, pg_read_all_stats";
    let operator = Login::new(&database, "operator", rights).await;
    let console = Console::start_at(&database, &operator.url(), &[]).await;
    let viewer_console = Console::start_at(&database, &viewer.url(), &[]).await;
    database.execute("CREATE TABLE \"<script>t\" ()").await;
    let holder = database.connect().await;
    holder
        .batch_execute(
            "/* ORANGE */ SET application_name = '<script>a'; BEGIN; SELECT pg_current_xact_id();
             LOCK TABLE \"<script>t\"",
        )
        .await
        .unwrap();
    let mut worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "50ms"]);
    let id = database.enqueue("SELECT * FROM \"<script>t\"", ", name => 'waits'").await;
    eventually("the task waits", async || {
        console.get("/database").await.body.contains("AccessShareLock")
    })
    .await;
    let mut page = String::new();
    // On a busy machine, a query may reach its time limit.
    eventually("the sizes are read", async || {
        page = console.get("/database").await.body;
        !page.contains("its size cannot be read")
    })
    .await;
    for text in [
        &format!("schema version {}", queue::schema::VERSION),
        "&#34;&#60;script&#62;t&#34;",
        "&#60;script&#62;a",
        &format!("href=\"/tasks/{id}\">{id} waits</a>"),
        "idle in transaction",
        "ORANGE",
        "<th scope=\"row\">attempts <small",
        "30 days",
        "client_connection_check_interval = 0",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
    assert_eq!(page.matches("<script").count(), page.matches("<script src=").count());
    assert!(!page.contains("Not checked"), "{page}");
    let page = viewer_console.get("/database").await;
    assert_eq!(page.status, 200, "{}", page.body);
    // Hidden statements are hidden on this page, too, from users who may see other sessions.
    database
        .execute(&format!(
            "GRANT pg_read_all_stats TO {}; UPDATE mill.settings SET hide_statements = true",
            viewer.name
        ))
        .await;
    for path in ["/database", "/api/v1/database"] {
        let body = viewer_console.get(path).await.body;
        assert!(body.contains("idle in transaction") && !body.contains("ORANGE"), "{body}");
        assert!(console.get(path).await.body.contains("ORANGE"));
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(database.outcome(id).await, "succeeded");
    assert!(worker.terminate().await.success());
    drop((console, viewer_console));
    viewer.gone().await;
    operator.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_could_not_run_is_shown() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let page = console.get("/database").await.body;
    let (_, unchecked) = page.split_once("Not checked, because this login").unwrap();
    let (unchecked, passed) = unchecked.split_once("<details>").unwrap();
    let finding = "<strong>sessions</strong> <span>no session of a worker found";
    assert!(unchecked.contains(finding) && !passed.contains(finding), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_does_not_hide_its_lock_holder() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let holder = database.connect().await;
    holder
        .batch_execute("SET application_name = 'holds it'; BEGIN; LOCK TABLE mill.attempts")
        .await
        .unwrap();
    let page = console.get("/database").await;
    assert_eq!(page.status, 200, "{}", page.body);
    assert!(page.body.contains("its size cannot be read") && page.body.contains("holds it"));
    let known = console.get("/api/v1/database").await.body;
    let known: Value = serde_json::from_str(&known).unwrap();
    assert!(known["schema"].is_null() && known["checks"].is_array(), "{known}");
    holder.batch_execute("ROLLBACK").await.unwrap();
    eventually("the size is read", async || {
        !console.get("/database").await.body.contains("its size cannot be read")
    })
    .await;
}
