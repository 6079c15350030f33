//! Problems for an operator on call: backlogs, limits that hold tasks back, and tasks and runs that
//! take much longer than usual.

use serde_json::Value;

use crate::harness::console::Console;
use crate::harness::{Database, Program, Worker, eventually};

/// Returns the messages of the problems in `pgmill status`.
pub(crate) async fn problems(database: &Database) -> Vec<String> {
    let printed = Program::pgmill(database, &["status", "--json"]).succeeds().await;
    let status: Value = serde_json::from_str(&printed).unwrap();
    let messages = status["problems"].as_array().unwrap().iter();
    messages.map(|it| it["message"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_a_problem_with_the_number_of_busy_readers() {
    let database = Database::new().await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let _worker = Worker::start(&database, &["--readers", "1", "--queues", "etl"]);
    let etl = ", queue => 'etl'";
    database.enqueue("SELECT pg_advisory_xact_lock(1)", etl).await;
    eventually("the reader is busy", async || {
        database.value::<i64>("SELECT count(*) FROM mill.running").await == 1
    })
    .await;
    for _ in 0..2 {
        database.enqueue("SELECT 1", etl).await;
    }
    let backlog = |problems: &[String]| problems.iter().any(|it| it.starts_with("queue etl: "));
    assert!(!backlog(&problems(&database).await));
    let waited =
        "UPDATE mill.tasks SET due_at = now() - interval '8 minutes' WHERE state = 'pending'";
    database.execute(waited).await;
    let found = problems(&database).await;
    let message = found.iter().find(|it| it.starts_with("queue etl: ")).unwrap();
    assert!(
        message.starts_with("queue etl: 2 pending tasks, the oldest has waited for 8m")
            && message.ends_with("; the only reader is busy"),
        "{message}"
    );
    let status = Program::pgmill(&database, &["status"]).succeeds().await;
    assert!(status.contains("pgmill task list --state running"), "{status}");
    let console = Console::start(&database, &[]).await;
    let overview = console.get("/").await.body;
    let link = "\"/tasks?q=state%3Arunning&#38;sort=duration\">queue etl: 2 pending tasks";
    assert!(overview.contains(link), "{overview}");
    database.execute("UPDATE mill.settings SET backlog_wait = '10 minutes'").await;
    assert!(!backlog(&problems(&database).await));
    database.execute("SELECT pg_advisory_unlock(1)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_names_the_rate_of_a_queue() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_rate('queue', 'mail', 1, '1 hour')").await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    assert_eq!(database.run("SELECT 1", ", queue => 'mail'").await.outcome, "succeeded");
    let waiting = database.enqueue("SELECT 1", ", queue => 'mail'").await;
    let why = format!("SELECT mill.why({waiting})");
    assert_eq!(
        database.value::<String>(&why).await,
        "queue \"mail\" allows 1 start per 01:00:00; tasks ahead with the same priority: 0"
    );
}

#[tokio::test]
async fn a_limit_that_holds_tasks_back_is_shown_with_its_value() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_rate('queue', 'mail', 1, '1 hour');
             SELECT mill.set_group('later');
             SELECT mill.set_active_period('later', (now() + '2 hours')::time, (now() + '3 hours')::time,
                 current_setting('TimeZone'));
             SELECT mill.enqueue('SELECT 1', queue => 'mail'), mill.enqueue('SELECT 1', queue => 'mail'),
                 mill.enqueue('SELECT 1', concurrency_key => 'customer-17'),
                 mill.enqueue('SELECT 1', group_name => 'later');
             SELECT mill.renew_chains(NULL)",
        )
        .await;
    let status = Program::pgmill(&database, &["status"]).succeeds().await;
    for limit in [
        "queue mail allows 1 start in 1h 0m  2",
        "concurrency key customer-17 allows 1 task at once",
        " only, opens in ",
    ] {
        let shown =
            status.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let limit = limit.replace("  ", " ");
        assert!(shown.into_iter().any(|line| line.contains(&limit)), "{limit}: {status}");
    }
    let held = |problems: Vec<String>| {
        problems.into_iter().filter(|it| it.contains(" allows ") || it.contains(" only")).collect()
    };
    let found: Vec<String> = held(problems(&database).await);
    assert_eq!(found, [""; 0]);
    database.execute("UPDATE mill.tasks SET due_at = now() - interval '6 minutes'").await;
    let mut found: Vec<String> = held(problems(&database).await);
    found.sort();
    assert_eq!(
        found,
        [
            "concurrency key customer-17 allows 1 task at once, and 1 task waits",
            "queue mail allows 1 start in 1h 0m, and 2 tasks wait",
        ]
    );
    let console = Console::start(&database, &[]).await;
    let overview = console.get("/").await.body;
    assert!(overview.contains("Limits that hold tasks back"), "{overview}");
    assert!(overview.contains("queue mail allows 1 start in 1h 0m</th>"), "{overview}");
}

#[tokio::test]
async fn a_limit_that_was_removed_is_not_shown_although_its_tasks_are_still_blocked() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_max_running('queue', 'mail', 1);
             SELECT mill.set_group('day', max_running => 1);
             SELECT mill.enqueue('SELECT 1', queue => 'mail'), mill.enqueue('SELECT 1', queue => 'mail'),
                 mill.enqueue('SELECT 1', group_name => 'day'), mill.enqueue('SELECT 1', group_name => 'day');
             SELECT mill.renew_chains(NULL);
             UPDATE mill.tasks SET due_at = now() - interval '6 minutes'",
        )
        .await;
    let status = async || Program::pgmill(&database, &["status"]).succeeds().await;
    let before = status().await;
    assert!(before.contains("queue mail allows 1 task at once, and "), "{before}");
    assert!(before.contains("group day allows 1 task at once in each run, and "), "{before}");
    // Without a worker no permit is granted, so the tasks stay blocked. The active period of the
    // group is open now.
    database
        .execute(
            "SELECT mill.set_max_running('queue', 'mail', NULL);
             SELECT mill.set_max_running('group', 'day', NULL);
             SELECT mill.set_active_period('day', (now() - interval '1 hour')::time,
                 (now() + interval '1 hour')::time, current_setting('TimeZone'))",
        )
        .await;
    let blocked = "SELECT count(*) FROM mill.tasks WHERE state = 'blocked'";
    assert!(database.value::<i64>(blocked).await > 0);
    let after = status().await;
    assert!(!after.contains(" allows "), "{after}");
}

/// Ten successful attempts and runs of one minute, and one of each that goes on for five minutes.
const SLOW: &str = r#"
INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, attempt, outcome,
    priority, final, queue, name, statement)
SELECT now(), n, now(), now(), now() - '1 minute'::interval, 1, 'succeeded', 'normal', true, 'etl', 'load',
    'SELECT 1' FROM generate_series(1000, 1009) AS n;
SELECT mill.set_job('daily', '[{"name": "wait", "statement": "SELECT 1", "queue": "none"}]');
SELECT mill.start_run('{daily}') FROM generate_series(1, 11);
UPDATE mill.runs SET state = 'succeeded', succeeded = 1, finished_at = started_at + '1 minute'::interval WHERE id < 11;
DELETE FROM mill.tasks WHERE run_id < 11"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_task_and_a_run_that_take_four_times_as_long_as_usual_are_problems() {
    let database = Database::new().await;
    database.execute(SLOW).await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let _worker = Worker::start(&database, &["--readers", "2", "--queues", "etl"]);
    let held = "SELECT pg_advisory_xact_lock(1)";
    let id = database.enqueue(held, ", queue => 'etl', name => 'load'").await;
    let other = database.enqueue(held, ", queue => 'etl', name => 'new'").await;
    eventually("both tasks run", async || {
        database.value::<i64>("SELECT count(*) FROM mill.running").await == 2
    })
    .await;
    let slow = async |minutes: i32| {
        database
            .execute(&format!(
                "UPDATE mill.tasks SET claimed_at = now() - interval '{minutes} minutes' WHERE state = 'running';
                 UPDATE mill.tasks SET claimed_at = claimed_at - interval '1 s' WHERE id = {other};
                 UPDATE mill.runs SET started_at = now() - interval '{minutes} minutes' WHERE id = 11"
            ))
            .await;
        let found = problems(&database).await;
        found.into_iter().filter(|it| it.contains("longer than usual")).collect::<Vec<_>>()
    };
    assert_eq!(slow(3).await, [""; 0]);
    let mut found = slow(5).await;
    found.sort();
    assert_eq!(
        found,
        [
            "run 11 of daily takes much longer than usual: p95 is 1m 0s".to_owned(),
            format!("task {id} (load) takes much longer than usual: p95 is 1m 0s"),
        ]
    );
    let slow_runs =
        Program::pgmill(&database, &["run", "list", "--slow", "--json"]).succeeds().await;
    let runs: Value = serde_json::from_str(&slow_runs).unwrap();
    assert_eq!(runs.as_array().unwrap().iter().map(|run| &run["id"]).collect::<Vec<_>>(), [11]);
    let listed = Program::pgmill(&database, &["task", "list", "--state", "running", "--json"]);
    let tasks: Value = serde_json::from_str(&listed.succeeds().await).unwrap();
    let ids: Vec<i64> =
        tasks.as_array().unwrap().iter().map(|it| it["id"].as_i64().unwrap()).collect();
    assert_eq!(ids, [other, id], "the longest-running task is first");
    database.execute("UPDATE mill.settings SET slow_factor = 10").await;
    assert_eq!(slow(5).await, [""; 0]);
    database.execute("SELECT pg_advisory_unlock(1)").await;
}

#[tokio::test]
async fn problems_have_a_severity_and_the_most_severe_are_first() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_max_running('queue', 'mail', 1); SELECT mill.pause('etl');
             SELECT mill.enqueue('SELECT 1', queue => queue) FROM unnest('{mail,mail,etl,unserved}'::text[]) AS queue;
             SELECT mill.grant_waiting_permits();
             UPDATE mill.tasks SET due_at = now() - interval '8 minutes' WHERE state = 'blocked';
             UPDATE mill.tasks SET due_at = now() - interval '1 hour' WHERE queue = 'etl';
             DELETE FROM mill.tasks WHERE queue = 'mail' AND state = 'pending'",
        )
        .await;
    let expected = [
        ("critical", "queue unserved has no live worker"),
        ("warning", "queue mail allows 1 task at once"),
        ("info", "queue etl is paused"),
    ];
    let printed = Program::pgmill(&database, &["status", "--json"]).succeeds().await;
    let status: Value = serde_json::from_str(&printed).unwrap();
    let console = Console::start(&database, &[]).await;
    let overview = console.get("/api/v1/overview").await.body;
    let overview: Value = serde_json::from_str(&overview).unwrap();
    for document in [status, overview] {
        let problems = document["problems"].as_array().unwrap();
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, (severity, message)) in problems.iter().zip(expected) {
            assert_eq!(problem["severity"], severity, "{problem}");
            assert!(problem["message"].as_str().unwrap().starts_with(message), "{problem}");
        }
    }
    let text = Program::pgmill(&database, &["status"]).succeeds().await;
    let page = console.get("/").await.body;
    let (mut in_text, mut in_page) = (0, 0);
    for (severity, message) in expected {
        let line = text.lines().position(|line| line.trim().starts_with(severity)).unwrap();
        assert!(text.lines().nth(line).unwrap().contains(message), "{text}");
        let shown =
            page.find(&format!("<span class=\"tag severity-{severity}\">{severity}</span>"));
        let shown = shown.unwrap_or_else(|| panic!("{severity} in {page}"));
        assert!(page[shown..].contains(message) && line > in_text && shown > in_page, "{page}");
        (in_text, in_page) = (line, shown);
    }
}
