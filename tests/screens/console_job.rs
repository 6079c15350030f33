//! The job screen: the grid of the last runs, the plot of durations, schedules and dependencies.

use crate::harness::console::Console;
use crate::harness::{Database, Worker};
use crate::runs::run::{FLAGS, end, job};

/// Creates a job whose second task fails, and runs it three times.
async fn three_runs(database: &Database) {
    let tasks = serde_json::json!([
        {"name": "z first", "statement": "SELECT pg_sleep(0)", "max_attempts": 1},
        {"name": "a second", "statement": "SELECT 1/0", "after": ["z first"], "max_attempts": 1},
        {"name": "last", "statement": "SELECT 1", "after": ["a second"]},
    ]);
    job(database, "nightly", tasks).await;
    database
        .execute(
            "SELECT mill.set_schedule('every night', 'daily(03:00)', jobs => '{nightly}');
             SELECT mill.set_dependency('last', 'elsewhere');
             SELECT mill.start_run(ARRAY['nightly']) FROM generate_series(1, 3)",
        )
        .await;
    let _worker = Worker::start(database, &FLAGS);
    for run in 1..=3 {
        assert_eq!(end(database, run).await, "failed");
    }
}

/// Returns the position of a text that the page contains.
fn place(page: &str, text: &str) -> usize {
    page.find(text).unwrap_or_else(|| panic!("{text}: {page}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_shows_its_runs_as_a_grid_in_the_order_of_the_dependencies() {
    let database = Database::new().await;
    three_runs(&database).await;
    let console = Console::start(&database, &[]).await;
    let page = console.get("/jobs/detail?name=nightly").await.body;
    let rows = ["z first", "a second", "last"].map(|task| format!("{task} in run 1: "));
    assert!(place(&page, &rows[0]) < place(&page, &rows[1]));
    assert!(place(&page, &rows[1]) < place(&page, &rows[2]));
    for text in [
        "a second in run 3: failed",
        "last in run 2: upstream_failed",
        "class=\"run-bar\"",
        "<time class=\"short\"",
        "every night",
        "/lineage?name=elsewhere",
        "version 1",
    ] {
        place(&page, text);
    }
    assert_eq!(page.matches("class=\"run-bar\"").count(), 3);
    let run = console.get("/runs/2").await.body;
    assert_eq!(run.matches("class=\"run-bar\"").count(), 2, "the runs up to this one");
    assert!(run.contains("aria-current=\"page\">2</a>"), "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_plots_the_durations_of_a_task_in_the_zone_of_the_browser() {
    let database = Database::new().await;
    three_runs(&database).await;
    database
        .execute(
            "UPDATE mill.run_tasks SET started_at = '2026-01-10 23:30Z', finished_at = '2026-01-10 23:31Z'
             WHERE name = 'z first'; UPDATE mill.runs SET started_at = '2026-01-10 23:30Z'",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    let path = "/jobs/detail?name=nightly&task=z+first&runs=90";
    let page = console.get(path).await.body;
    for text in ["run 2, 01-10 23:30: succeeded, 1 min 0 s", "the median of the runs", "Dates: UTC"]
    {
        place(&page, text);
    }
    assert!(page.contains("href=\"/tasks/"), "a bar leads to the attempt of the task");
    let cookie = [("Host", console.address.as_str()), ("Cookie", "pgmill_zone=Asia/Tokyo")];
    let page = console.request("GET", path, &cookie, "").await.body;
    for text in ["run 2, 01-11 08:30: succeeded", "Dates: Asia/Tokyo"] {
        place(&page, text);
    }
    let runs = console.get("/jobs/detail?name=nightly").await.body;
    place(&runs, "aria-label=\"durations of 3 runs");
}
