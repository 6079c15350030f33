//! The web console: every screen with any content of the database, and the permissions for actions.

use serde_json::Value;

use crate::harness::console::Console;
use crate::harness::http::Answer;
use crate::harness::login::Login;
use crate::harness::{Database, Worker, eventually};

/// Every screen of the navigation.
pub(crate) const SCREENS: [&str; 15] = [
    "/",
    "/tasks",
    "/runs",
    "/schedules",
    "/jobs",
    "/lineage",
    "/failures",
    "/workers",
    "/queues",
    "/limits",
    "/priorities",
    "/groups",
    "/subscriptions",
    "/audit",
    "/database",
];

const HOSTILE: &str = "<script>alert(1)</script>\"'&";

/// Creates tasks in every state, and ended tasks, with names that are special in HTML.
async fn seed(database: &Database) -> (i64, i64) {
    let named = ", name => '<script>alert(1)</script>\"''&'";
    let failing = "DO $$ BEGIN RAISE NOTICE '<script>n'; RAISE 'no <script>x'
        USING DETAIL = '<script>d', HINT = '<script>h'; END $$";
    let worker = Worker::start(database, &["--readers", "2", "--poll-interval", "50ms"]);
    let failed = database.enqueue(failing, &format!("{named}, max_attempts => 1")).await;
    let wrong =
        database.enqueue("SELECT 1,\n '<script>' FROM nowhere", ", max_attempts => 1").await;
    database.enqueue("SELECT '<script>' AS \"<script>c\"", "").await;
    database.until_empty().await;
    drop(worker);
    database
        .execute(
            r#"SELECT mill.set_group('<script>g', '<script>d', max_running => 2);
             SELECT mill.set_max_running('queue', 'limited', 0);
             SELECT mill.enqueue('SELECT 1', name => '<script>', queue => 'etl', group_name => '<script>g');
             SELECT mill.enqueue('SELECT 1', queue => 'limited');
             SELECT mill.set_subscription('<script>s', '{"events": ["task_failed"], "destination": "ops", "tag": "<script>t"}');
             SELECT mill.notify('task_failed', '{"task": "<script>", "task_id": 1, "tags": ["<script>t"]}');
             SELECT mill.enqueue('SELECT 1', queue => 'etl', due_at => now() + interval '1 day')"#,
        )
        .await;
    (failed, wrong)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_screen_responds_and_no_text_becomes_markup() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    for path in SCREENS {
        let answer = console.get(path).await;
        assert_eq!(answer.status, 200, "{path} of an empty fleet: {}", answer.body);
    }
    let (failed, wrong) = seed(&database).await;
    eventually("the console has read the last hour", async || {
        console.get("/failures").await.body.contains("42P01")
    })
    .await;
    let more = [
        format!("/tasks/{failed}"),
        format!("/tasks/{wrong}"),
        "/tasks?q=state:finished".to_owned(),
        "/tasks?q=state:failed+since:1h".to_owned(),
        "/tasks?q=%3Cscript%3E:x".to_owned(),
        "/tasks/bulk?q=state:failed".to_owned(),
        "/failures?queue=%3Cscript%3E".to_owned(),
    ];
    for path in SCREENS.iter().map(ToString::to_string).chain(more) {
        let answer = console.get(&path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let scripts = answer.body.matches("<script").count();
        assert_eq!(scripts, answer.body.matches("<script src=\"/static/").count(), "{path}");
        assert!(!answer.body.contains(" style="), "{path} has an inline style");
    }
    let shown = console.get(&format!("/tasks/{failed}")).await.body;
    let escaped = HOSTILE.replace('&', "&#38;").replace('<', "&#60;").replace('>', "&#62;");
    let escaped = escaped.replace('"', "&#34;").replace('\'', "&#39;");
    for text in [escaped.as_str(), "P0001", "no &#60;script&#62;x", "NOTICE: &#60;script&#62;n"] {
        assert!(shown.contains(text), "{text} in {shown}");
    }
    let caret = console.get(&format!("/tasks/{wrong}")).await.body;
    assert!(caret.contains("LINE 2:  &#39;&#60;script&#62;&#39; FROM nowhere"), "{caret}");
    assert!(caret.contains("<mark class=\"\">nowhere</mark>"), "{caret}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_object_is_reported_on_a_page() {
    let database = Database::new().await;
    let console = Console::start(&database, &["--base-path", "/x"]).await;
    for path in ["/x/tasks/1", "/x/tasks/none", "/x/nothing", "/x/tasks/99999999999999999999"] {
        let answer = console.get(path).await;
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.contains("href=\"/x/tasks\">Tasks</a>"), "{path}: {}", answer.body);
    }
    assert_eq!(console.get("/x/").await.status, 200);
    assert_eq!(console.get("/x/api/v1/tasks/1").await.status, 404);
    assert_eq!(console.get("/x/tasks?after=nowhere").await.status, 400);
    let wrong = console.get("/x/tasks?q=que:etl").await;
    assert!(wrong.body.contains("unknown key que:") && wrong.body.contains("did you mean queue:?"));
    assert!(console.get("/").await.headers.contains("location: /x/"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_pages_and_filters() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    database.enqueue_many(120, "SELECT 1").await;
    database.execute("SELECT mill.enqueue('SELECT 2', name => 'odd one', queue => 'etl')").await;
    let (mut after, mut seen) = (String::new(), Vec::new());
    loop {
        let page = console.get(&format!("/api/v1/tasks?after={after}")).await;
        let page: Value = serde_json::from_str(&page.body).unwrap();
        seen.extend(page["tasks"].as_array().unwrap().iter().map(|it| it["id"].as_i64().unwrap()));
        let Some(next) = page["next"].as_str() else { break };
        after = next.to_owned();
    }
    let sorted: Vec<i64> = (1..=121).rev().collect();
    assert_eq!(seen, sorted, "each task once, the newest first");
    for filter in ["queue:etl", "odd", "name:odd*", "id:121", "state:pending+queue:etl+since:1h"] {
        let page = console.get(&format!("/api/v1/tasks?q={filter}")).await.body;
        let page: Value = serde_json::from_str(&page).unwrap();
        assert_eq!(page["tasks"].as_array().unwrap().len(), 1, "{filter}");
    }
    database.execute("SELECT mill.cancel(id) FROM mill.tasks").await;
    let (mut after, mut seen) = (String::new(), 0);
    loop {
        let page = console.get(&format!("/api/v1/tasks?q=state:cancelled&after={after}")).await;
        let page: Value = serde_json::from_str(&page.body).unwrap();
        seen += page["tasks"].as_array().unwrap().len();
        let Some(next) = page["next"].as_str() else { break };
        after = next.to_owned();
    }
    assert_eq!(seen, 121, "each ended task once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_action_checks_each_task_again() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    database.enqueue_many(5, "SELECT 1").await;
    let asked = console.get("/tasks/bulk?q=state:pending").await.body;
    assert!(asked.contains("cancel 5 tasks?"), "{asked}");
    assert!(asked.contains("name=\"up_to\" value=\"5\""), "{asked}");
    // Between the display of the form and its submission, one task is cancelled and another task is
    // added.
    database.execute("SELECT mill.cancel(2); SELECT mill.enqueue('SELECT 1')").await;
    let done = console.post("/tasks/bulk", "q=state:pending&up_to=5").await;
    assert!(
        done.body.contains("<th scope=\"row\">cancelled</th><td class=\"n\">4</td>"),
        "{}",
        done.body
    );
    let left: Vec<i64> = database
        .rows("SELECT id FROM mill.tasks", &[])
        .await
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(left, [6]);
    let ticked = console.get("/tasks/bulk?q=state:cancelled&id=1&id=3&what=selected").await.body;
    assert!(ticked.contains("retry 2 tasks?"), "{ticked}");
    let done =
        console.post("/tasks/bulk", "q=state:finished+id:1,3,6&up_to=4000000000000000").await;
    assert!(
        done.body.contains("<th scope=\"row\">retried</th><td class=\"n\">2</td>"),
        "{}",
        done.body
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_selects_several_outcomes() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let mut worker = Worker::start(&database, &["--readers", "2", "--poll-interval", "50ms"]);
    let failed = database.enqueue("SELECT 1 / 0", ", max_attempts => 1").await;
    let sleeps = ", max_attempts => 1, timeout => '50 ms'";
    let timed_out = database.enqueue("SELECT pg_sleep(900)", sleeps).await;
    database.enqueue("SELECT 1", "").await;
    database.until_empty().await;
    assert!(worker.terminate().await.success());
    assert_eq!(database.outcome(timed_out).await, "timed_out");
    let page = console.get("/api/v1/tasks?q=state:failed,timed_out").await.body;
    let page: Value = serde_json::from_str(&page).unwrap();
    let mut ids: Vec<i64> =
        page["tasks"].as_array().unwrap().iter().map(|it| it["id"].as_i64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [failed, timed_out]);
    let shown = console.get("/tasks?q=state:timed_out,failed,lost,unknown+since:1h").await.body;
    assert!(shown.contains("aria-current=\"true\">failed <small>2</small></a>"), "{shown}");
    let asked = console.get("/tasks/bulk?q=state:failed,timed_out").await.body;
    assert!(asked.contains("retry 2 tasks?"), "{asked}");
    let done =
        console.post("/tasks/bulk", "q=state:failed,timed_out&up_to=4000000000000000").await.body;
    let retried = "<th scope=\"row\">retried</th><td class=\"n\">2</td>";
    assert!(done.contains(retried), "{done}");
}

/// Forms that are refused, with the status of the answer.
const REFUSED: [(&str, &str, u16); 16] = [
    ("/groups/g/active-period", "opens=22:00", 400),
    ("/groups/g/active-period", "opens=1&closes=late", 400),
    ("/groups/g/active-period", "opens=22:00&closes=22:00", 422),
    ("/groups/g/active-period", "opens=22:00&closes=23:00&zone=Atlantis", 422),
    ("/groups/nobodys/active-period", "", 422),
    ("/groups/nobodys/remove", "", 404),
    ("/groups/create", "name=g", 400),
    ("/groups/create", "name=", 400),
    ("/groups/create", "name=h&max_running=-1", 422),
    ("/queues/nobodys/pause", "paused=true", 404),
    ("/queues/nobodys/limit", "max_running=3", 404),
    ("/queues/nobodys/shared-commit", "milliseconds=20", 404),
    ("/queues/nobodys/conditions", "max_snapshot_age=900", 404),
    ("/queues/etl/shared-commit", "milliseconds=0", 422),
    ("/queues/etl/shared-commit", "milliseconds=soon", 400),
    ("/queues/etl/conditions", "max_replication_lag=1", 422),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_can_act_and_a_viewer_can_only_read() {
    let database = Database::new().await;
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    let operator = Login::new(&database, "operator", "mill_operator").await;
    database.execute("SELECT mill.set_group('g')").await;
    let id = database.enqueue("SELECT 'SECRET'", ", queue => 'etl'").await;
    let acts = [
        (format!("/tasks/{id}/cancel"), ""),
        (format!("/tasks/{id}/retry"), ""),
        ("/queues/etl/pause".to_owned(), "paused=true"),
        ("/queues/etl/limit".to_owned(), "max_running=3&rate_starts=10&rate_seconds=60"),
        ("/priorities/weights".to_owned(), "low=7"),
        ("/priorities/reserve".to_owned(), "capacity=high"),
        ("/queues/etl/shared-commit".to_owned(), "milliseconds=20"),
        ("/queues/etl/conditions".to_owned(), "max_replication_lag=10&max_snapshot_age=900"),
        ("/groups/g/concurrency".to_owned(), "max_running=2&priority=high&description=it"),
        ("/groups/g/active-period".to_owned(), "opens=22:00&closes=06:00&zone=Europe/Berlin"),
        ("/groups/create".to_owned(), "name=gone"),
        ("/groups/gone/remove".to_owned(), ""),
    ];
    let viewer_console = Console::start_at(&database, &viewer.url(), &[]).await;
    for path in SCREENS {
        let Answer { status, body, .. } = viewer_console.get(path).await;
        assert_eq!(status, 200, "{path} to a viewer: {body}");
        assert!(!body.contains("method=\"post\""), "{path} offers a viewer an action");
    }
    let read_only = Console::start_at(&database, &operator.url(), &["--read-only"]).await;
    let body = read_only.get("/queues").await.body;
    assert!(!body.contains("method=\"post\"") && body.contains("read-only"), "{body}");

    let console = Console::start_at(&database, &operator.url(), &[]).await;
    for (path, form) in &acts {
        let answer = console.post(path, form).await;
        assert_eq!(answer.status, 303, "{path}: {}", answer.body);
    }
    let set = "SELECT (SELECT paused FROM mill.queues WHERE name = 'etl')
        AND (SELECT max_running = 3 AND rate_starts = 10 FROM mill.limits WHERE kind = 'queue')
        AND (SELECT weight = 7 FROM mill.priorities WHERE priority = 'low')
        AND (SELECT reserved_capacity = 'high' FROM mill.settings)
        AND (SELECT shared_commit = '20 ms' FROM mill.queues WHERE name = 'etl')
        AND (SELECT max_running = 2 AND priority = 'high' AND description = 'it' AND zone = 'Europe/Berlin'
            AND opens = '22:00' AND closes = '06:00' FROM mill.groups)";
    assert!(database.value::<bool>(set).await);
    let page = console.get("/queues").await.body;
    assert!(page.contains("<td>max running 3, 10 starts in 1 min 0 s"), "{page}");
    for (path, form, status) in REFUSED {
        assert_eq!(console.post(path, form).await.status, status, "{path} with {form}");
    }
    let created = "SELECT count(*) FROM mill.queues WHERE name = 'nobodys'";
    assert_eq!(database.value::<i64>(created).await, 0);
    assert_eq!(console.post("/groups/nobodys/concurrency", "max_running=2").await.status, 404);
    assert_eq!(console.post("/priorities/weights", "low=-1").await.status, 422);

    // Hidden statements are hidden here too.
    database.execute("UPDATE mill.settings SET hide_statements = true").await;
    for path in ["/tasks".to_owned(), format!("/tasks/{id}"), format!("/api/v1/tasks/{id}")] {
        assert!(!viewer_console.get(&path).await.body.contains("SECRET"), "{path}");
        assert!(console.get(&path).await.body.contains("SECRET"), "{path}");
    }
    drop((viewer_console, read_only, console));
    for login in [viewer, operator] {
        login.gone().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_task_shows_who_blocks_it() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let _worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "50ms"]);
    database.execute("SELECT pg_advisory_lock(1)").await;
    let id = database.enqueue("SELECT pg_advisory_xact_lock(1)", ", name => 'waits'").await;
    database.until_waiting_for_lock(id).await;
    let holder: i32 = database.value("SELECT pg_backend_pid()").await;
    let page = console.get(&format!("/tasks/{id}")).await.body;
    let texts = ["Blocked by", "Lock: advisory", &format!("<td class=\"n\">{holder}</td>")];
    // Cancelling needs a second click, which says what it does.
    let confirmation =
        ["Cancel …", "The running statement is ended.", &format!("Cancel task {id}<")];
    for text in texts.into_iter().chain(confirmation) {
        assert!(page.contains(text), "{text} in {page}");
    }
    let first = console.get("/").await.body;
    assert!(
        first.contains(&format!("task {id} (waits) is blocked by backend {holder}")),
        "{first}"
    );
    assert!(console.get("/workers").await.body.contains(&format!(">{id}</a>")));
    assert_eq!(console.post(&format!("/tasks/{id}/cancel"), "").await.status, 303);
    assert_eq!(database.outcome(id).await, "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_tests_and_disables_a_subscription() {
    let database = Database::new().await;
    database
        .execute(
            r#"SELECT mill.set_subscription('s', '{"events": ["task_failed"], "channel": "c"}');
            SELECT mill.notify('task_failed', '{"task": "load", "task_id": 7}');
            UPDATE mill.notifications SET dead_at = now(), last_error = 'no answer'"#,
        )
        .await;
    let console = Console::start(&database, &[]).await;
    let page = console.get("/subscriptions").await.body;
    assert!(page.contains("no answer") && page.contains("/tasks/7\">load</a>"), "{page}");
    for (path, form, status) in [
        ("/subscriptions/s/retry", "", 303),
        ("/subscriptions/s/test", "", 303),
        ("/subscriptions/s/enable", "enabled=false", 303),
        ("/subscriptions/s/test", "", 422),
        ("/subscriptions/nobodys/enable", "enabled=true", 404),
        ("/subscriptions/nobodys/test", "", 404),
        ("/subscriptions/nobodys/retry", "", 404),
    ] {
        let answer = console.post(path, form).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
    }
    let state = "SELECT NOT enabled AND pending = 2 AND dead = 0 FROM mill.subscription_status";
    assert!(database.value::<bool>(state).await);
}
