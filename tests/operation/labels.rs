//! Tags and metadata: given everywhere, found and shown everywhere, checked.

use serde_json::{Value, json};

use crate::harness::console::Console;
use crate::harness::{Database, Program, Worker, eventually};
use crate::runs::apply::Folder;

async fn json_of(database: &Database, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--json"]].concat();
    serde_json::from_str(&Program::pgmill(database, &arguments).succeeds().await).unwrap()
}

#[tokio::test]
async fn a_task_keeps_its_labels_from_the_command_line_to_the_history_and_a_retry() {
    let database = Database::new().await;
    let flags = ["--tag", "nightly", "--tag", "a b", "--tag", "nightly", "--metadata", "owner=bi"];
    let task = ["--metadata", "ticket=4711", "--max-attempts", "1", "SELECT 1/0"];
    let id = Program::enqueue(&database, &[&flags[..], &task].concat()).succeeds().await;
    Program::enqueue(&database, &["SELECT 1/0", "--max-attempts", "1"]).succeeds().await;
    let id = id.trim();
    let expected = (json!(["a b", "nightly"]), json!({ "owner": "bi", "ticket": 4711 }));
    let labels = |value: &Value| (value["tags"].clone(), value["metadata"].clone());
    let live = json_of(&database, &["task", "list", "--tag", "nightly"]).await;
    assert_eq!(live.as_array().unwrap().len(), 1, "{live}");
    assert_eq!(labels(&live[0]), expected);
    let worker = Worker::start(&database, &["--exit-when-idle=100ms"]);
    database.until_empty().await;
    drop(worker);
    for arguments in
        [&["task", "list", "--finished", "--tag", "a b"][..], &["history", "--tag", "nightly"]]
    {
        let found = json_of(&database, arguments).await;
        assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
        assert_eq!(labels(&found[0]), expected);
    }
    let none = json_of(&database, &["history", "--tag", "night"]).await;
    assert_eq!(none, json!([]));
    let arguments = ["task", "retry", "--outcome", "failed", "--tag", "nightly", "--yes"];
    Program::pgmill(&database, &arguments).succeeds().await;
    assert_eq!(labels(&json_of(&database, &["task", "show", id]).await["task"]), expected);
    let shown = Program::pgmill(&database, &["task", "show", id]).succeeds().await;
    assert!(shown.contains("tags      a b, nightly"), "{shown}");
    assert!(shown.contains(r#"metadata  {"owner":"bi","ticket":4711}"#), "{shown}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 1);
    Program::pgmill(&database, &["task", "cancel", "--tag", "nightly", "--yes"]).succeeds().await;
    database.until_empty().await;
}

#[tokio::test]
async fn a_run_has_the_labels_of_its_jobs_its_schedule_and_its_call() {
    let database = Database::new().await;
    database
        .execute(
            r#"SELECT mill.set_job('j', '[{"name": "t", "statement": "SELECT 1", "tags": ["x", "x"],
                "metadata": {"k": [1]}}]', options => '{"tags": ["job"], "metadata": {"a": 1, "b": 1}}');
            SELECT mill.set_job('i', '[{"name": "u", "statement": "SELECT 1"}]',
                options => '{"metadata": {"a": 2, "c": null}}');
            SELECT mill.set_schedule('s', 'manual', jobs => '{j,i}',
                options => '{"tags": ["schedule"], "metadata": {"b": 3}}');
            SELECT mill.run_now('s')"#,
        )
        .await;
    let arguments = ["--job", "j,i", "--tag", "call", "--metadata", "a=4"];
    Program::enqueue(&database, &arguments).succeeds().await;
    let runs = json_of(&database, &["run", "list"]).await;
    assert_eq!(runs[0]["tags"], json!(["call", "job"]));
    assert_eq!(runs[0]["metadata"], json!({ "a": 4, "b": 1, "c": null }));
    assert_eq!(runs[1]["tags"], json!(["job", "schedule"]));
    assert_eq!(runs[1]["metadata"], json!({ "a": 2, "b": 3, "c": null }));
    let found = json_of(&database, &["run", "list", "--tag", "schedule"]).await;
    assert_eq!(found.as_array().unwrap().len(), 1);
    let tasks = json_of(&database, &["task", "list", "--tag", "x"]).await;
    assert_eq!(tasks.as_array().unwrap().len(), 2, "the task t of both runs: {tasks}");
    assert_eq!(tasks[0]["metadata"], json!({ "k": [1] }));
    let job = json_of(&database, &["job", "show", "j"]).await;
    assert_eq!(job["jobs"][0]["tags"], json!(["job"]));
    let schedule = json_of(&database, &["schedule", "show", "s"]).await;
    assert_eq!(schedule["schedule"]["tags"], json!(["schedule"]));
    for (arguments, text) in [
        (&["job", "show", "j"][..], "tags job; metadata {\"a\":1,\"b\":1}"),
        (&["schedule", "show", "s"], "tags schedule"),
        (&["run", "show", "1"], "tags job, schedule"),
    ] {
        let shown = Program::pgmill(&database, arguments).succeeds().await;
        assert!(shown.contains(text), "{shown}");
    }
}

#[tokio::test]
async fn invalid_labels_are_refused_with_a_reason() {
    let database = Database::new().await;
    let long = format!(r#"{{"tags": ["{}"]}}"#, "x".repeat(65));
    let many = json!({ "tags": (0..33).map(|n| n.to_string()).collect::<Vec<_>>() }).to_string();
    let large = json!({ "metadata": { "x": "y".repeat(17_000) } }).to_string();
    for (options, message) in [
        ("[]", "options is a JSON array, not an object"),
        (r#"{"tag": ["a"]}"#, "unknown option \"tag\""),
        (r#"{"statement": "other"}"#, "unknown option \"statement\""),
        (r#"{"tags": "a"}"#, "tags is a JSON string, not an array of strings"),
        (r#"{"tags": ["a", 1]}"#, "invalid tag 1"),
        (r#"{"tags": [" a"]}"#, "invalid tag \" a\""),
        (r#"{"tags": ["a\u0007"]}"#, "invalid tag"),
        (r#"{"metadata": [1]}"#, "metadata is a JSON array, not an object"),
        (&long, "invalid tag"),
        (&many, "more than 32 tags"),
        (&large, "metadata is 17"),
    ] {
        for call in [
            "SELECT mill.enqueue('SELECT 1', options => $1::text::jsonb)",
            "SELECT mill.enqueue_many('{SELECT 1}', options => $1::text::jsonb)",
            "SELECT mill.set_schedule('s', 'manual', 'SELECT 1', options => $1::text::jsonb)",
            "SELECT mill.set_job('j', '[{\"name\": \"t\", \"statement\": \"SELECT 1\"}]', options => $1::text::jsonb)",
        ] {
            let error = database.client().query(call, &[&options]).await.unwrap_err();
            let error = error.as_db_error().unwrap().message();
            assert!(error.contains(message), "{call} {options}: {error}");
        }
    }
    database
        .execute(r#"SELECT mill.enqueue('SELECT 1', options => '{"tags": null, "metadata": {}}')"#)
        .await;
    let none = "SELECT count(*) FROM mill.tasks WHERE options IS NULL";
    assert_eq!(database.value::<i64>(none).await, 1);
    let (code, _, stderr) =
        Program::enqueue(&database, &["--metadata", "x", "SELECT 1"]).run().await;
    assert_eq!(code, 2, "{stderr}");
}

#[tokio::test]
async fn a_job_file_gives_labels_to_jobs_tasks_and_schedules() {
    let database = Database::new().await;
    let text = r#"
[job.j]
tags = ["job"]
metadata = { owner = "bi", tier = 1 }
[job.j.task.t]
statement = "SELECT 1"
tags = ["x"]
metadata = { since = 2026-11-23 }
[schedule.s]
timing = "manual"
job = "j"
tags = ["schedule"]
"#;
    let folder = Folder::new(&[("j.toml", text)]);
    Program::pgmill(&database, &["apply", folder.path()]).succeeds().await;
    let again = Program::pgmill(&database, &["apply", folder.path()]).succeeds().await;
    assert!(again.contains("no changes"), "{again}");
    Program::pgmill(&database, &["schedule", "run-now", "s"]).succeeds().await;
    let run = &json_of(&database, &["run", "list"]).await[0];
    assert_eq!(run["tags"], json!(["job", "schedule"]));
    assert_eq!(run["metadata"], json!({ "owner": "bi", "tier": 1 }));
    let task = &json_of(&database, &["task", "list", "--tag", "x"]).await[0];
    assert_eq!(task["metadata"], json!({ "since": "2026-11-23" }));
    folder.write("j.toml", &text.replace("tags = [\"x\"]\n", ""));
    Program::pgmill(&database, &["apply", folder.path()]).succeeds().await;
    let tagged = "SELECT count(*) FROM mill.visible_job_tasks WHERE tags IS NOT NULL";
    assert_eq!(database.value::<i64>(tagged).await, 0);
}

#[tokio::test]
async fn an_annotation_gives_tags_to_schedules_and_lists_show_tags() {
    let database = Database::new().await;
    let procedure = "CREATE PROCEDURE p() LANGUAGE sql AS 'SELECT 1';
        COMMENT ON PROCEDURE p() IS '@manual() @tags(ops, \"a, b\")'";
    database.execute(procedure).await;
    Program::pgmill(&database, &["schedule", "sync"]).succeeds().await;
    Program::pgmill(&database, &["schedule", "run-now", "public.p/manual"]).succeeds().await;
    database.enqueue("SELECT 'tagged'", r#", options => '{"tags": ["ops"]}'"#).await;
    for (list, shown) in
        [("schedule", "[a, b, ops]"), ("run", "[a, b, ops]"), ("task", "SELECT 'tagged' [ops]")]
    {
        let text = Program::pgmill(&database, &[list, "list"]).succeeds().await;
        assert!(text.contains(shown), "{text}");
    }
    database.execute("COMMENT ON PROCEDURE p() IS '@manual() @tags(\"\")'").await;
    let (_, _, error) = Program::pgmill(&database, &["schedule", "sync"]).run().await;
    assert!(error.contains("public.p, 1:1: invalid tag"), "{error}");
}

#[tokio::test]
async fn the_console_finds_and_shows_labels() {
    let database = Database::new().await;
    let options = r#", options => '{"tags": ["a b"], "metadata": {"owner": "<i>"}}'"#;
    let (id, other) = (
        database.enqueue("SELECT 'tagged'", options).await,
        database.enqueue("SELECT 'plain'", "").await,
    );
    let run = format!("SELECT run_id FROM mill.start_run('{{j}}'{options})");
    database
        .execute(r#"SELECT mill.set_job('j', '[{"name": "t", "statement": "SELECT 1"}]')"#)
        .await;
    let run: i64 = database.value(&run).await;
    let console = Console::start(&database, &[]).await;
    let list = console.get("/tasks?q=tag:%22a%20b%22").await.body;
    let row = |id: i64| format!("/tasks/{id}\"");
    assert!(list.contains(&row(id)) && !list.contains(&row(other)), "{list}");
    for path in [format!("/tasks/{id}"), format!("/runs/{run}")] {
        let page = console.get(&path).await.body;
        assert!(page.contains(">a b</a>"), "{page}");
        assert!(page.contains("<dt>owner</dt><dd><code>&#34;&#60;i&#62;&#34;</code>"), "{page}");
    }
}

#[tokio::test]
async fn a_task_added_to_a_run_and_tasks_in_bulk_take_options() {
    let database = Database::new().await;
    database
        .execute(
            r#"SELECT mill.set_job('j', '[{"name": "t", "statement": "SELECT 1"}]');
               SELECT mill.start_run('{j}');
               SELECT mill.add_run_task('added', 'SELECT 1', run_id => 1, options => '{"tags": ["added"]}');
               SELECT mill.advance_run(1);
               SELECT mill.enqueue_many('{SELECT 1,SELECT 2}', options => '{"tags": ["bulk"]}')"#,
        )
        .await;
    let tags = "SELECT array_agg(t ORDER BY t) FROM mill.visible_tasks, unnest(tags) AS t";
    assert_eq!(database.value::<Vec<String>>(tags).await, ["added", "bulk", "bulk"]);
}

/// An option that a migration adds to the type needs no change of a table, a function or a view.
#[tokio::test]
async fn a_new_attribute_of_the_options_is_kept_from_the_enqueue_to_the_history_and_a_retry() {
    let database = Database::new().await;
    let note = |text: &str| format!(r#"options => '{{"note": "{text}"}}'"#);
    let later = r#", due_at => now() + '1 hour', options => '{"tags": ["old"]}'"#;
    let old = database.enqueue("SELECT 1", later).await;
    let unknown = format!("SELECT mill.enqueue('SELECT 1', {})", note("early"));
    let refused = database.client().query(&unknown, &[]).await.unwrap_err();
    assert!(refused.as_db_error().unwrap().message().contains("unknown option \"note\""));
    database
        .execute(&format!(
            r#"ALTER TYPE mill.task_options ADD ATTRIBUTE note text;
               SELECT mill.enqueue('SELECT 1/0', max_attempts => 1, {});
               SELECT mill.enqueue_many('{{SELECT 1}}', {});
               SELECT mill.set_job('j', '[{{"name": "t", "statement": "SELECT 1", "note": "job"}}]');
               SELECT mill.start_run('{{j}}');
               SELECT mill.add_run_task('added', 'SELECT 1', run_id => 1, {})"#,
            note("one"),
            note("many"),
            note("added"),
        ))
        .await;
    let _worker = Worker::start(&database, &["--poll-interval", "50ms"]);
    let notes = "SELECT string_agg((h.options).note, ' ' ORDER BY (h.options).note)
        FROM mill.history h WHERE h.final";
    eventually("every note is in the history", async || {
        database.value::<Option<String>>(notes).await.as_deref() == Some("added job many one")
    })
    .await;
    let retried = "SELECT mill.retry(task_id) FROM mill.history WHERE (options).note = 'one'";
    assert_eq!(database.value::<String>(retried).await, "retried");
    let again = "SELECT count(*) FROM mill.history WHERE (options).note = 'one'";
    eventually("the retried task keeps its note", async || database.value::<i64>(again).await == 2)
        .await;
    let job = "SELECT mill.job_definition('j')->'tasks'->0->>'note'";
    assert_eq!(database.value::<String>(job).await, "job");
    let tags = format!("SELECT (options).tags FROM mill.visible_tasks WHERE id = {old}");
    assert_eq!(database.value::<Vec<String>>(&tags).await, ["old"]);
}
