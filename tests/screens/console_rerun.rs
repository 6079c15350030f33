//! The console runs tasks of an ended run again, and shows the times since then.

use serde_json::{Value, json};

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker};
use crate::runs::run::{FLAGS, end, job, start};

const ATTEMPTS: &str =
    "SELECT string_agg(name || ' ' || attempts, ', ' ORDER BY name) FROM mill.run_tasks";

/// Creates a job of three tasks, one after the other.
async fn chain(database: &Database) {
    let tasks = json!([
        {"name": "a", "statement": "SELECT 1"},
        {"name": "b \"x\"", "statement": "SELECT 1", "after": ["a"]},
        {"name": "c", "statement": "SELECT 1", "after": ["b \"x\""]},
    ]);
    job(database, "it", tasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_has_succeeded_is_run_again_by_three_clicks() {
    let database = Database::new().await;
    let viewer = Login::new(&database, "rerun_viewer", "mill_viewer").await;
    chain(&database).await;
    let _worker = Worker::start(&database, &FLAGS);
    let console = Console::start(&database, &[]).await;
    let viewer_console = Console::start_at(&database, &viewer.url(), &[]).await;
    start(&database, "it").await;
    assert_eq!(end(&database, 1).await, "succeeded");
    // From the overview to the list, from there to the open form, whose button is the third click.
    let form = "/runs/1?restart=true";
    for (path, link) in [("/", "href=\"/runs\""), ("/runs", &format!("href=\"{form}\""))] {
        let page = console.get(path).await.body;
        assert!(page.contains(link), "{link} in {page}");
    }
    let page = console.get(form).await.body;
    for text in [
        "<details class=\"confirm\" open><summary class=\"button\">Restart …",
        "name=\"which\" value=\"all\" checked",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
    for text in ["value=\"both\"", "value=\"failed\"", "value=\"never_run\"", "name=\"force\""] {
        assert!(!page.contains(text), "{text} cannot work: {page}");
    }
    for path in ["/runs", form] {
        let page = viewer_console.get(path).await.body;
        assert!(!page.contains("Restart …"), "{path} offers a viewer a restart");
    }
    assert_eq!(console.post("/runs/1/restart", "which=all").await.status, 303);
    assert_eq!(end(&database, 1).await, "succeeded");
    assert_eq!(database.value::<String>(ATTEMPTS).await, "a 2, b \"x\" 2, c 2");
    assert_eq!(console.post("/runs/1/restart", "which=task&task=z").await.status, 422);
    drop((console, viewer_console));
    viewer.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_task_that_succeeded_in_a_run_runs_it_and_the_tasks_after_it_again() {
    let database = Database::new().await;
    chain(&database).await;
    let _worker = Worker::start(&database, &FLAGS);
    let console = Console::start(&database, &[]).await;
    start(&database, "it").await;
    assert_eq!(end(&database, 1).await, "succeeded");
    let id: i64 = database.value("SELECT task_id FROM mill.run_tasks WHERE node = 2").await;
    let task = format!("/tasks/{id}");
    let page = console.get(&task).await.body;
    let form = "name=\"which\" value=\"task\"><input type=\"hidden\" name=\"task\" value=\"b &#34;x&#34;\">";
    assert!(page.contains("action=\"/runs/1/restart\"") && page.contains(form), "{page}");
    assert!(!page.contains(&format!("{task}/retry")), "a retry is refused: {page}");
    let body = format!("which=task&task=b%20%22x%22&return_to={task}");
    let answer = console.post("/runs/1/restart", &body).await;
    assert!(answer.headers.contains(&format!("location: {task}")), "{}", answer.headers);
    assert_eq!(end(&database, 1).await, "succeeded");
    assert_eq!(database.value::<String>(ATTEMPTS).await, "a 1, b \"x\" 2, c 2");
    // A task that a user assigned to the run is not part of the graph, and runs again by itself.
    let id = database.enqueue("SELECT 1", ", run_id => 1").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    let page = console.get(&format!("/tasks/{id}")).await.body;
    assert!(page.contains(&format!("action=\"/tasks/{id}/retry\"")), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_critical_path_counts_from_the_last_restart_as_on_the_command_line() {
    let database = Database::new().await;
    database.create_days_before().await;
    let tasks = json!([
        {"name": "a", "statement": "SELECT 1"},
        {"name": "b", "statement": "SELECT 1", "after": ["a"]},
    ]);
    job(&database, "it", tasks).await;
    let mut worker = Worker::start(&database, &FLAGS);
    start(&database, "it").await;
    assert_eq!(end(&database, 1).await, "succeeded");
    let console = Console::start(&database, &[]).await;
    assert_eq!(console.post("/runs/1/restart", "which=all").await.status, 303);
    assert_eq!(end(&database, 1).await, "succeeded");
    assert!(worker.terminate().await.success());
    // The run succeeded a day before the restart. After the restart, a waited for 10 s and ran for 1 s;
    // b waited for 5 s and ran for 2 s.
    database
        .execute(
            "UPDATE mill.runs SET started_at = now() - interval '25 hours', restarted_at = now() - interval '1 hour',
                 finished_at = now() - interval '59 minutes';
             UPDATE mill.attempts h SET due_at = t.due, started_at = t.started, finished_at = t.finished
             FROM (SELECT v.name, v.attempt, v.began + make_interval(secs => v.due) AS due,
                     v.began + make_interval(secs => v.started) AS started,
                     v.began + make_interval(secs => v.finished) AS finished
                 FROM (VALUES ('a', 1, now() - interval '25 hours', 0, 0, 60),
                         ('b', 1, now() - interval '25 hours', 60, 60, 61),
                         ('a', 2, now() - interval '1 hour', 0, 10, 11), ('b', 2, now() - interval '1 hour', 11, 16, 18))
                     AS v (name, attempt, began, due, started, finished)) AS t
             WHERE h.name = t.name AND h.attempt = t.attempt;
             UPDATE mill.run_tasks r SET started_at = h.started_at, finished_at = h.finished_at
             FROM mill.attempts h WHERE h.task_id = r.task_id AND h.attempt = 2",
        )
        .await;
    let known = console.get("/api/v1/runs/1").await.body;
    let path = serde_json::from_str::<Value>(&known).unwrap()["critical_path"].take();
    let seconds = |name: &str| path[name].as_f64().unwrap().round();
    let parts = ["waiting_seconds", "retrying_seconds", "running_seconds", "duration_seconds"];
    assert_eq!(parts.map(seconds), [15.0, 0.0, 3.0, 18.0], "{path}");
    let page = console.get("/runs/1").await.body;
    for text in [
        "Critical path, 18 s: a (waited 10 s, ran 1.0 s) → b (waited 5.0 s, ran 2.0 s)",
        "15 s waiting in the queue, 3.0 s running",
        // The timeline.
        "succeeded; due after 0 ms; waited 10 s; succeeded, ran 1.0 s",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
    let shown = Program::pgmill(&database, &["run", "show", "1"]).succeeds().await;
    let line = "critical path, 18s: a (waited 10s, ran 1.0s) → b (waited 5.0s, ran 2.0s); \
        15s waiting in the queue, 3.0s running";
    assert!(shown.contains(line), "{shown}");
}
