//! Removed schedules: lists hide them, and maintenance deletes them after their last run has left
//! history.

use serde_json::json;

use crate::harness::console::Console;
use crate::harness::{Database, Worker, eventually};
use crate::runs::run::end;
use crate::runs::run_cli::json_of;
use crate::schedules::schedule::{FLAGS, schedule};
use crate::schedules::schedule_cli::output_of;

#[tokio::test(flavor = "multi_thread")]
async fn lists_hide_removed_schedules_and_show_them_on_request() {
    let database = Database::new().await;
    for name in ["gone", "kept"] {
        schedule(&database, name, "daily(03:15)", "SELECT 1", "").await;
    }
    output_of(&database, &["schedule", "run-now", "gone"]).await;
    output_of(&database, &["schedule", "remove", "gone"]).await;
    let names = async |arguments: &[&str], key: &str| {
        let list = json_of(&database, arguments).await;
        let list = if key.is_empty() { list } else { list[key].clone() };
        let names = list.as_array().unwrap().iter().map(|it| it["name"].clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&["schedule", "list"], "schedules").await, ["kept"]);
    let all = names(&["schedule", "list", "--removed"], "schedules").await;
    assert_eq!(all, ["gone", "kept"]);
    assert_eq!(names(&["job", "list"], "").await, ["kept"]);
    let shown = output_of(&database, &["schedule", "show", "gone"]).await;
    assert!(shown.contains("\nif it were enabled, it would fire:\n"), "{shown}");
    let kept = output_of(&database, &["schedule", "show", "kept"]).await;
    assert!(!kept.contains("if it were enabled"), "{kept}");
    let history = json_of(&database, &["schedule", "history", "gone"]).await;
    assert_eq!(history.as_array().unwrap().len(), 1);
    let console = Console::start(&database, &[]).await;
    for (path, shown) in [("/schedules", false), ("/schedules?removed=true", true)] {
        let page = console.get(path).await.body;
        assert!(page.contains("name=kept") && page.contains("name=gone") == shown, "{page}");
    }
    let list: serde_json::Value =
        serde_json::from_str(&console.get("/api/v1/schedules?removed=true").await.body).unwrap();
    assert_eq!(list["schedules"][0]["name"], json!("gone"));
    let page = console.get("/schedules/detail?name=gone").await.body;
    assert!(page.contains("if it were enabled"), "{page}");
}

#[tokio::test]
async fn a_removed_schedule_is_deleted_when_history_has_none_of_its_runs() {
    let database = Database::new().await;
    let worker = Worker::start(&database, &FLAGS);
    for name in ["old", "ran", "new", "kept"] {
        schedule(&database, name, "daily(03:15)", "SELECT 1", "").await;
    }
    output_of(&database, &["schedule", "run-now", "ran"]).await;
    assert_eq!(end(&database, 1).await, "succeeded");
    for name in ["old", "ran", "new"] {
        output_of(&database, &["schedule", "remove", name]).await;
    }
    drop(worker);
    database
        .execute(
            "UPDATE mill.schedules SET removed_at = now() - interval '31 days' WHERE name IN ('old', 'ran');
             UPDATE mill.jobs SET disabled_at = now() - interval '31 days' WHERE name IN ('old', 'ran')",
        )
        .await;
    let left =
        "SELECT concat_ws('; ', (SELECT string_agg(name, ' ' ORDER BY name) FROM mill.schedules),
        (SELECT string_agg(name, ' ' ORDER BY name) FROM mill.jobs),
        (SELECT string_agg(job, ' ' ORDER BY job) FROM mill.job_tasks))";
    database.execute("SELECT mill.prune_schedule_log()").await;
    let all = "kept new ran";
    assert_eq!(database.value::<String>(left).await, format!("{all}; {all}; {all}"));
    let history = json_of(&database, &["schedule", "history", "ran"]).await;
    assert_eq!(history[0]["state"], "succeeded");
    // History drops the run after its retention.
    database
        .execute(
            "UPDATE mill.runs SET finished_at = now() - interval '1 year'; SELECT mill.prune();
             SELECT mill.prune_schedule_log()",
        )
        .await;
    assert_eq!(database.value::<String>(left).await, "kept new; kept new; kept new");
    // The name is free.
    schedule(&database, "old", "daily(03:15)", "SELECT 2", "").await;
    let _worker = Worker::start(&database, &FLAGS);
    let planned = "SELECT next_fire_at IS NOT NULL FROM mill.schedules WHERE name = 'old'";
    eventually("the new schedule is planned", async || database.value(planned).await).await;
}
