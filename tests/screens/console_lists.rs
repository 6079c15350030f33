//! Lists of the console: searches, order, counts, periods and downloads.

use serde_json::Value;

use crate::harness::Database;
use crate::harness::console::Console;

/// Tasks in every live state, and a finished one whose texts a spreadsheet would evaluate.
const TASKS: &str = r#"
SELECT mill.set_max_running('queue', 'full', 0);
SELECT mill.enqueue('SELECT $1::text', name => 'german', params => '["Köln"]'),
    mill.enqueue('SELECT 1', name => 'blocked', queue => 'full'),
    mill.enqueue('SELECT 1', name => 'tomorrow', due_at => now() + interval '1 day');
UPDATE mill.tasks SET enqueued_at = '2026-03-01 12:00Z' WHERE name = 'tomorrow';
INSERT INTO mill.tasks (queue, priority, state, due_at, name, statement, attempt, token, claimed_by, session_pid,
    session_started_at, claimed_at)
SELECT 'etl', 'normal', 'running', now(), 'running ' || n, 'SELECT 1', 1, gen_random_uuid(), gen_random_uuid(), 1,
    now(),
    now() - n % 2 * interval '1 hour' - n * interval '1 minute' FROM generate_series(1, 3) AS n;
INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, attempt, outcome,
    priority, final, queue, name, sqlstate, message,
    statement)
SELECT now(), nextval('mill.tasks_id_seq'), now(), now(), now(), 1, 'failed', 'normal', true, 'etl', '=cmd|calc',
    '22012', '@SUM(1), "x"', '-- SELECT 1'"#;

/// Returns the content of a streamed response, without the sizes of its chunks.
fn without_chunks(body: &str) -> String {
    let (mut text, mut rest) = (String::new(), body);
    while let Some((size, chunk)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        text.push_str(&chunk[..size]);
        rest = chunk[size..].strip_prefix("\r\n").unwrap();
    }
    text
}

async fn names(console: &Console, query: &str) -> Vec<String> {
    let body = console.get(&format!("/api/v1/tasks?{query}")).await.body;
    let page: Value = serde_json::from_str(&body).unwrap();
    let tasks = page["tasks"].as_array().unwrap_or_else(|| panic!("{query}: {body}"));
    tasks.iter().map(|task| task["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn tasks_are_found_by_parameters_and_period_and_sorted_by_duration() {
    let database = Database::new().await;
    database.execute(TASKS).await;
    let console = Console::start(&database, &[]).await;
    for (query, found) in [
        ("q=params:k%C3%B6ln", &["german"][..]),
        ("q=params:nothing", &[]),
        ("q=from:2026-03-01T12:00+to:2026-03-01T12:00", &["tomorrow"]),
        ("q=to:2026-03-01T14:00%2B03", &[]),
        ("q=state:running&sort=duration", &["running 3", "running 1", "running 2"]),
        ("q=state:running&sort=oldest", &["running 1", "running 2", "running 3"]),
        ("q=state:running", &["running 3", "running 2", "running 1"]),
        ("q=state:finished+to:2026-03-01", &[]),
        ("q=state:finished+from:2026-03-01", &["=cmd|calc"]),
    ] {
        assert_eq!(names(&console, query).await, found, "{query}");
    }
    let live = "hx-trigger=\"tick";
    let searched = console.get("/tasks?q=sql:orders").await.body;
    assert!(!searched.contains(live), "a page does not repeat a search every three seconds");
    let page = console.get("/tasks?q=state:running").await.body;
    assert!(page.contains(live), "{page}");
    for text in [
        "running <small>3</small>",
        "blocked <small>1</small>",
        "failed <small>1</small>",
        "sort=duration",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(!console.get("/tasks").await.body.contains("sort=duration"), "not bounded");
    assert_eq!(console.get("/api/v1/tasks?sort=name").await.status, 400);
}

#[tokio::test]
async fn no_term_of_a_filter_replaces_another_one() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.enqueue('SELECT 1', name => 'nightly load', queue => 'a'),
                 mill.enqueue('SELECT 1', name => 'weekly load', queue => 'b'),
                 mill.enqueue('SELECT 1', name => 'nightly clean', queue => 'a')",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    for (query, found) in [
        ("q=nightly+load", &["nightly load"][..]),
        ("q=load+queue:a", &["nightly load"]),
        ("q=load+name:weekly*", &["weekly load"]),
        ("q=1+2", &["weekly load", "nightly load"]),
    ] {
        assert_eq!(names(&console, query).await, found, "{query}");
    }
    for path in ["/api/v1/tasks?q=queue:a+queue:b", "/tasks/download?q=name:a+name:b&format=csv"] {
        assert_eq!(console.get(path).await.status, 400, "{path}");
    }
    let page = console.get("/tasks?q=queue:a+queue:b").await.body;
    assert!(page.contains("queue: is given twice") && !page.contains("weekly load"), "{page}");
    assert_eq!(console.post("/tasks/bulk", "q=queue:a+queue:b&up_to=9").await.status, 400);
    // Without the bound of the confirmation page, tasks would be changed that nobody has seen.
    for bound in ["", "&up_to=", "&up_to=all"] {
        let form = format!("q=nightly+load{bound}");
        assert_eq!(console.post("/tasks/bulk", &form).await.status, 400, "{form}");
    }
    assert_eq!(console.post("/tasks/bulk", "q=nightly+load&up_to=9").await.status, 200);
    let left = "SELECT string_agg(name, ', ' ORDER BY id) FROM mill.tasks";
    assert_eq!(database.value::<String>(left).await, "weekly load, nightly clean");
}

#[tokio::test]
async fn a_search_that_reaches_its_time_limit_shows_what_it_has_found() {
    let database = Database::new().await;
    database.execute(TASKS).await;
    // To read the message of an older task takes longer than the time limit. Before version 16, the server qualifies the
    // columns of a view of one table.
    database
        .execute(
            "CREATE TABLE mill.attempts_old (LIKE mill.attempts INCLUDING DEFAULTS);
             ALTER TABLE mill.attempts ATTACH PARTITION mill.attempts_old
                 FOR VALUES FROM (now() - interval '3 days') TO (now() - interval '1 day');
             INSERT INTO mill.attempts SELECT (a).* FROM (SELECT jsonb_populate_record(x, jsonb_build_object(
                 'finished_at', now() - interval '2 days', 'task_id', 1000, 'name',
                 'old')) AS a FROM mill.attempts x) s;
             DO $$ BEGIN EXECUTE 'CREATE OR REPLACE VIEW mill.visible_attempts AS ' ||
                 regexp_replace(pg_get_viewdef('mill.visible_attempts'), 'THEN (x[.])?message',
                     $_$THEN CASE \\1name WHEN 'old' THEN pg_sleep(3600)::text ELSE \\1message END$_$); END $$",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    let page = console.get("/tasks?q=state:finished").await.body;
    for text in ["=cmd|calc", "searched back to", "search further", "failed <small>1</small>"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let page = console.get("/tasks/bulk?q=state:finished").await.body;
    assert!(page.contains("=cmd|calc"), "{page}");
}

#[tokio::test]
async fn a_search_continues_until_it_has_searched_every_live_task() {
    let database = Database::new().await;
    database
        .execute(
            "INSERT INTO mill.tasks (queue, priority, state, due_at, name, statement)
             SELECT 'etl', 'normal', 'pending', now(), 'n' || n, 'SELECT ' || n FROM generate_series(1, 70000) AS n",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    for sort in ["", "&sort=oldest"] {
        let mut found = Vec::new();
        let mut after = String::new();
        for page in 0.. {
            assert!(page < 4, "at most one page per window and one more");
            let path = format!("/api/v1/tasks?q=sql:69999&after={after}{sort}");
            let path = if page == 0 { path.replace("&after=", "") } else { path };
            let body: Value = serde_json::from_str(&console.get(&path).await.body).unwrap();
            found.extend(body["tasks"].as_array().unwrap().iter().map(|it| it["name"].clone()));
            let Some(next) = body["next"].as_str() else { break };
            assert!(body["searched_tasks"].as_i64().unwrap() >= 30_000, "{body}");
            after = next.to_owned();
        }
        assert_eq!(found, ["n69999"]);
    }
}

#[tokio::test]
async fn a_list_is_downloaded_and_no_cell_is_a_formula() {
    let database = Database::new().await;
    database.execute(TASKS).await;
    database
        .execute(
            "INSERT INTO mill.tasks (queue, priority, state, due_at, name, statement)
             SELECT 'many', 'normal', 'pending', now(), 'n' || n, 'SELECT 1' FROM generate_series(1, 10100) AS n;
             SELECT mill.set_job('j', '[{\"name\": \"t\", \"statement\": \"SELECT 1\"}]');
             SELECT mill.start_run(ARRAY['j'])",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    let csv = console.get("/tasks/download?q=state:finished").await;
    assert!(csv.headers.contains("attachment; filename=\"tasks.csv\""), "{}", csv.headers);
    for text in ["id,state,outcome", ",'=cmd|calc,", "\"'@SUM(1), \"\"x\"\"\"", ",'-- SELECT 1"] {
        assert!(csv.body.contains(text), "{text}: {}", csv.body);
    }
    let json = console.get("/tasks/download?q=queue:many&format=json").await.body;
    let tasks: Vec<Value> = serde_json::from_str(&without_chunks(&json)).unwrap();
    assert_eq!((tasks.len(), &tasks[9999]["name"]), (10_000, &Value::from("n101")));
    let runs = console.get("/runs/download?format=csv").await.body;
    assert!(runs.contains("1,running,j,"), "{runs}");
    for path in ["/tasks/download?q=state:nonsense", "/runs/download?format=xls"] {
        assert_eq!(console.get(path).await.status, 400, "{path}");
    }
}

#[tokio::test]
async fn runs_are_listed_by_their_start_in_the_zone_of_the_user() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_job('j', '[{\"name\": \"t\", \"statement\": \"SELECT 1\"}]');
             SELECT mill.start_run(ARRAY['j']) FROM generate_series(1, 40);
             UPDATE mill.runs SET started_at = '2026-03-01 00:30Z'::timestamptz + id * interval '1 day'",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    let listed = async |query: &str| -> Vec<i64> {
        let body = console.get(&format!("/api/v1/runs?{query}")).await.body;
        let page: Value = serde_json::from_str(&body).unwrap();
        let runs = page["runs"].as_array().unwrap_or_else(|| panic!("{query}: {body}"));
        runs.iter().map(|it| it["id"].as_i64().unwrap()).collect()
    };
    assert_eq!(listed("from=2026-03-11&to=2026-03-13").await, [11, 10]);
    assert_eq!(listed("from=2026-03-11T00:31&to=2026-03-13T00:30").await, [12, 11]);
    // Half past midnight in UTC is the evening before in New York.
    assert_eq!(listed("from=2026-03-10&to=2026-03-11&zone=America/New_York").await, [10]);
    assert_eq!(listed("to=2026-03-02").await, [0; 0]);
    assert_eq!(listed("from=2026-04-09").await, [40, 39]);
    for path in ["/runs?from=noon", "/runs?from=2026-03-01&zone=Mars/Base"] {
        assert_eq!(console.get(path).await.status, 400, "{path}");
    }
}

#[tokio::test]
async fn the_audit_is_listed_by_period_in_the_zone_of_the_user() {
    let database = Database::new().await;
    database
        .execute(
            "INSERT INTO mill.audit (at, action, subject)
             SELECT '2026-03-01 00:30Z'::timestamptz + n * interval '1 hour', 'pause', 'queue q' || n % 2
             FROM generate_series(0, 239) AS n",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    let listed = async |query: &str| -> Value {
        let body = console.get(&format!("/api/v1/audit?{query}")).await.body;
        serde_json::from_str(&body).unwrap()
    };
    let count = async |query: &str| listed(query).await["acts"].as_array().unwrap().len();
    assert_eq!(count("from=2026-03-02&to=2026-03-03").await, 24);
    assert_eq!(count("from=2026-03-02T00:30&to=2026-03-02T02:30").await, 3);
    assert_eq!(count("from=2026-03-02&to=2026-03-03&subject=queue+q1").await, 12);
    let newest = listed("to=2026-03-02&zone=America/New_York").await;
    assert_eq!(newest["acts"][0]["at"], "2026-03-02T04:30:00Z", "{newest}");
    let page = console.get("/audit?to=2026-03-09&zone=Europe/Berlin&action=pause").await.body;
    assert!(
        page.contains("to=2026-03-09&#38;zone=Europe%2FBerlin&#38;action=pause&#38;before="),
        "{page}"
    );
    assert_eq!(console.get("/api/v1/audit?from=noon").await.status, 400);
    assert!(console.get("/audit?from=noon").await.body.contains("invalid time &#34;noon&#34;"));
}
