//! Lists of tasks: their order, their filters, and searches for texts.

use serde_json::Value;

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker};

async fn list(database: &Database, arguments: &[&str]) -> Vec<Value> {
    let arguments = [&["task", "list", "--json"], arguments].concat();
    serde_json::from_str(&Program::pgmill(database, &arguments).succeeds().await).unwrap()
}

fn names(tasks: &[Value]) -> Vec<&str> {
    tasks.iter().map(|task| task["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_list_of_live_tasks_begins_with_what_runs_or_starts_next() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_max_running('queue', 'full', 0);
             SELECT mill.enqueue('SELECT 1', name => name, queue => queue, priority => priority::mill.priority,
                due_at => now() + due * interval '1 day')
             FROM (VALUES
                ('tomorrow 2', 'b', 'normal', 2), ('blocked', 'full', 'high', 0), ('low', 'a', 'low', 0),
                ('short', 'b', 'normal', 0), ('long', 'a', 'low', 0), ('high', 'b', 'high', 0),
                ('first', 'b', 'normal', 0), ('tomorrow 1', 'a', 'normal', 1), ('second', 'a', 'normal', 0)
             ) AS t (name, queue, priority, due);
             UPDATE mill.tasks SET state = 'running', attempt = 1, token = gen_random_uuid(),
                claimed_by = gen_random_uuid(), session_pid = 1, session_started_at = now(),
                claimed_at = now() - CASE name WHEN 'long' THEN interval '2 hours' ELSE '1 hour' END
             WHERE name IN ('long', 'short')",
        )
        .await;
    let order = ["long", "short", "high", "first", "second", "low", "blocked"];
    let all = list(&database, &[]).await;
    assert_eq!(names(&all), [&order[..], &["tomorrow 1", "tomorrow 2"]].concat());
    for (arguments, expected) in [
        (&["--limit", "3"][..], &["long", "short", "high"][..]),
        (&["--state", "pending", "--limit", "2"], &["high", "first"]),
        (&["--state", "pending", "--queue", "a"], &["second", "low"]),
        (&["--state", "scheduled", "--limit", "1"], &["tomorrow 1"]),
        (&["--state", "blocked"], &["blocked"]),
        (&["--order", "newest", "--limit", "2"], &["second", "tomorrow 1"]),
    ] {
        let tasks = list(&database, arguments).await;
        assert_eq!(names(&tasks), expected, "{arguments:?}");
    }
    // The claim takes the pending tasks of a queue and a priority in the same order.
    let _worker = Worker::start(&database, &["--readers", "1", "--exit-when-idle=100ms"]);
    for name in ["high", "first", "second", "low"] {
        let done = format!("SELECT id FROM mill.tasks WHERE name = '{name}'");
        if let Some(row) = database.rows(&done, &[]).await.first() {
            assert_eq!(database.outcome(row.get(0)).await, "succeeded");
        }
    }
    let claimed = "SELECT string_agg(name, ',' ORDER BY started_at) FROM mill.attempts
        WHERE (queue, priority) = ('b', 'normal')";
    assert_eq!(database.value::<String>(claimed).await, "first");
}

#[tokio::test]
async fn a_task_is_found_by_a_word_of_its_sql_or_of_its_error() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_job('j', '[{\"name\": \"of a run\", \"statement\": \"SELECT 1 /* Orders 100% */\"}]');
             SELECT mill.start_run(ARRAY['j']);
             SELECT mill.enqueue('SELECT 1/0 FROM generate_series(1, 2) AS ORDERS', name => 'fails', max_attempts => 1);
             SELECT mill.enqueue('SELECT ''customers''', name => 'other')",
        )
        .await;
    assert_eq!(names(&list(&database, &["--sql", "orders"]).await), ["fails", "of a run"]);
    assert_eq!(names(&list(&database, &["--sql", "100%"]).await), ["of a run"]);
    assert_eq!(names(&list(&database, &["--sql", "orders", "--run", "1"]).await), ["of a run"]);
    assert_eq!(names(&list(&database, &["--run", "1"]).await), ["of a run"]);
    assert!(list(&database, &["--sql", "orders%"]).await.is_empty());
    let console = Console::start(&database, &[]).await;
    let live = console.get("/tasks?q=sql:ORDERS").await.body;
    assert!(
        live.contains("fails") && live.contains("of a run") && !live.contains(">other<"),
        "{live}"
    );
    let worker = Worker::start(&database, &["--exit-when-idle=100ms"]);
    database.until_empty().await;
    drop(worker);
    for (arguments, expected) in [
        (&["--error", "DIVISION"][..], &["fails"][..]),
        (&["--finished", "--sql", "orders"], &["fails", "of a run"]),
        (&["--finished", "--run", "1"], &["of a run"]),
        (&["--error", "nothing"], &[]),
    ] {
        let mut found = list(&database, arguments).await;
        found.sort_by_key(|task| task["name"].to_string());
        assert_eq!(names(&found), expected, "{arguments:?}");
    }
    for (arguments, expected) in
        [(["--error", "by zero"], 1), (["--sql", "Orders"], 2), (["--run", "1"], 1)]
    {
        let arguments = [&["history", "--json"][..], &arguments].concat();
        let found: Vec<Value> =
            serde_json::from_str(&Program::pgmill(&database, &arguments).succeeds().await).unwrap();
        assert_eq!(found.len(), expected, "{arguments:?}");
    }
    let failed = console.get("/tasks?q=error:zero").await.body;
    assert!(failed.contains(">fails<") && !failed.contains(">of a run<"), "{failed}");
}

#[tokio::test]
async fn a_search_that_ends_early_says_how_far_it_got() {
    let database = Database::new().await;
    let oldest = database.enqueue("SELECT 'a needle'", "").await;
    database.enqueue_many(100_000, "SELECT 1").await;
    let arguments = ["task", "list", "--sql", "needle"];
    let (code, stdout, stderr) = Program::pgmill(&database, &arguments).run().await;
    assert_eq!((code, stdout.as_str()), (0, ""));
    let end = format!("down to id {}", oldest + 1);
    assert!(stderr.contains(&end) && stderr.contains("no matching live task"), "{stderr}");
    database.execute("UPDATE mill.tasks SET queue = 'few' WHERE statement LIKE '%needle%'").await;
    let arguments = [&arguments[..], &["--queue", "few"]].concat();
    let (code, stdout, stderr) = Program::pgmill(&database, &arguments).run().await;
    assert!(code == 0 && stdout.contains("needle") && stderr.is_empty(), "{stdout}{stderr}");
    // The search of history has a time limit; a lock takes more time than that.
    let holder = database.connect().await;
    holder.batch_execute("BEGIN; LOCK TABLE mill.attempts IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let arguments = ["history", "--error", "needle"];
    let (code, _, stderr) = Program::pgmill(&database, &arguments).run().await;
    assert!(code == 1 && stderr.contains("statement timeout"), "{code} {stderr}");
    assert!(stderr.contains("Narrow the search to a queue"), "{stderr}");
    // Other commands have a longer one, and the user can set another.
    let mut status = Program::pgmill(&database, &["status"]).into_command();
    let output = status.env("PGOPTIONS", "-c statement_timeout=1s").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains("ANALYZE mill.tasks"), "{stderr}");
}

#[tokio::test]
async fn a_search_does_not_read_hidden_texts() {
    let database = Database::new().await;
    database.enqueue("SELECT 'a needle'", ", name => 'hidden'").await;
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    let search = async || {
        let arguments = ["task", "list", "--sql", "needle"];
        Program::pgmill(&database, &arguments).at(&viewer.url()).run().await
    };
    assert!(search().await.1.contains("hidden"));
    database.execute("UPDATE mill.settings SET hide_statements = true").await;
    let (code, stdout, stderr) = search().await;
    assert_eq!((code, stdout.as_str()), (5, ""), "{stderr}");
    assert!(stderr.contains("hidden from this login"), "{stderr}");
    let console = Console::start_at(&database, &viewer.url(), &[]).await;
    let page = console.get("/tasks?q=sql:needle").await.body;
    assert!(page.contains("No tasks match"), "{page}");
    viewer.drop().await;
}

/// The note that a list read only the default period.
const NOTE: &str = "only the last 24 hours were read; --since '7 days' reads more\n";

#[tokio::test]
async fn a_list_says_that_it_read_only_the_last_day_and_reads_all_attempts_of_a_run() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_job('j', '[{\"name\": \"old\", \"statement\": \"SELECT 1\"}]');
             SELECT mill.start_run('{j}');
             SELECT mill.enqueue('SELECT 1', name => 'new')",
        )
        .await;
    let worker = Worker::start(&database, &["--exit-when-idle=100ms"]);
    database.until_empty().await;
    drop(worker);
    database
        .execute(
            "DO $$ BEGIN
                 EXECUTE format('CREATE TABLE mill.attempts_older PARTITION OF mill.attempts FOR VALUES FROM (%L) TO (%L)',
                     now() - interval '50 hours', now() - interval '46 hours');
             END $$;
             ALTER TABLE mill.attempts_older REPLICA IDENTITY FULL;
             UPDATE mill.attempts SET finished_at = finished_at - interval '2 days' WHERE run_id = 1;
             UPDATE mill.runs SET started_at = started_at - interval '2 days' WHERE id = 1",
        )
        .await;
    for command in [&["history"][..], &["task", "list", "--finished"]] {
        for (arguments, rows, note) in [
            (&["--limit", "2"][..], 1, NOTE),
            (&["--sql", "select"], 1, NOTE),
            (&["--since", "3 days"], 2, ""),
            (&["--run", "1"], 1, ""),
            (&["--run", "1", "--sql", "select"], 1, ""),
            (&["--run", "2", "--since", "1h"], 0, "no matching"),
        ] {
            let arguments = [command, arguments].concat();
            let (code, stdout, stderr) = Program::pgmill(&database, &arguments).run().await;
            let shown = stdout.lines().count().saturating_sub(1);
            assert_eq!((code, shown), (0, rows), "{arguments:?}: {stdout}{stderr}");
            assert!(stderr.starts_with(note), "{arguments:?}: {stderr}");
            assert!(!note.is_empty() || stderr.is_empty(), "{arguments:?}: {stderr}");
            let arguments = [&arguments[..], &["--json"]].concat();
            assert_eq!(Program::pgmill(&database, &arguments).run().await.2, "", "{arguments:?}");
        }
    }
}
