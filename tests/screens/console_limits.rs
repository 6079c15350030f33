//! Limits screen: every limit with its use, search, order, pages, downloads, and forms.

use serde_json::Value;

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, Program};

/// A queue with two limits, of whose three tasks one has a permit and two wait; a group in a run and
/// a group that no task uses; two concurrency keys, one with waiting tasks; and a queue without a limit.
const LIMITS: &str = r#"
SELECT mill.set_max_running('queue', 'mail', 1); SELECT mill.set_rate('queue', 'mail', 60, '1 minute');
SELECT mill.set_max_running('queue', 'former', 1); SELECT mill.set_max_running('queue', 'former', NULL);
SELECT mill.set_group('of runs', max_running => 2); SELECT mill.set_group('unused');
SELECT mill.set_active_period('unused', '22:00', '06:00', 'Europe/Berlin');
SELECT mill.set_job('j', '[{"name": "a", "statement": "SELECT 1", "group": "of runs"}]');
SELECT mill.start_run(ARRAY['j']);
SELECT mill.enqueue('SELECT 1', queue => 'mail') FROM generate_series(1, 3);
SELECT mill.enqueue('SELECT 1', concurrency_key => 'a "b" & c') FROM generate_series(1, 2);
SELECT mill.set_max_running('key', 'idle', 4);
SELECT mill.grant_waiting_permits();
UPDATE mill.tasks SET due_at = now() - interval '1 hour' WHERE queue = 'mail'"#;

async fn limits(console: &Console, query: &str) -> Vec<Value> {
    let body = console.get(&format!("/api/v1/limits?{query}")).await.body;
    let page: Value = serde_json::from_str(&body).unwrap();
    page["limits"].as_array().unwrap_or_else(|| panic!("{query}: {body}")).clone()
}

async fn names(console: &Console, query: &str) -> Vec<String> {
    let limits = limits(console, query).await;
    limits.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn every_limit_is_shown_with_its_use_as_the_command_line_has_it() {
    let database = Database::new().await;
    database.execute(LIMITS).await;
    let console = Console::start(&database, &[]).await;
    let all = ["a \"b\" & c", "idle", "of runs", "unused", "mail"];
    assert_eq!(names(&console, "").await, all);
    let printed = Program::pgmill(&database, &["limit", "list", "--json"]).succeeds().await;
    let printed: Value = serde_json::from_str(&printed).unwrap();
    for limit in limits(&console, "").await {
        let same = |it: &&Value| it["kind"] == limit["kind"] && it["name"] == limit["name"];
        let Some(listed) = printed.as_array().unwrap().iter().find(same) else {
            assert_eq!(limit["name"], "unused", "no task uses the group, so no run has the limit");
            continue;
        };
        for key in ["run_id", "max_running", "paused", "rate", "running", "waiting"] {
            assert_eq!(limit[key], listed[key], "{key} of {limit}");
        }
        assert_eq!(limit["waiting_more"], false);
    }
    let mail = &limits(&console, "q=MAIL").await[0];
    assert_eq!((&mail["running"], &mail["waiting"]), (&1.into(), &2.into()), "{mail}");
    let first = "SELECT min(id) FROM mill.tasks WHERE queue = 'mail' AND state = 'blocked'";
    let first: i64 = database.value(first).await;
    assert_eq!(mail["first_waiting_id"], first);

    let page = console.get("/limits").await.body;
    for text in [
        "max running 1 60 starts in 1 min 0 s",
        "<span class=\"tag blocked\">full</span>",
        "/tasks?q=queue%3A%22mail%22%20state%3Arunning\"",
        "/tasks?q=queue%3A%22mail%22%20state%3Ablocked\"",
        &format!("href=\"/tasks/{first}\" aria-label=\"why task {first} waits\">why?"),
        "22:00–06:00 Europe/Berlin",
        "in <a href=\"/runs/1\">run 1</a>",
        "hx-trigger=\"tick from:body\"",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
    // The name of the key has quotes and spaces.
    let mut links = page.split("href=\"").filter_map(|it| it.split('"').next());
    let of_key = |it: &&str| it.contains("q=key%3A%22a%20") && it.contains("blocked");
    let found = console.get(&format!("/api/v1{}", links.find(of_key).unwrap())).await.body;
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["tasks"].as_array().map(Vec::len), Some(1), "{found}");
    let overview = console.get("/").await.body;
    assert!(
        overview.contains("/limits?kind=queue&#38;sort=wait\">queue mail allows"),
        "{overview}"
    );
}

#[tokio::test]
async fn limits_are_searched_sorted_and_downloaded_page_by_page() {
    let database = Database::new().await;
    database.execute(LIMITS).await;
    let console = Console::start(&database, &[]).await;
    for (query, found) in [
        ("kind=group", &["of runs", "unused"][..]),
        ("q=i", &["idle", "mail"]),
        ("q=i&kind=queue", &["mail"]),
        ("sort=wait", &["mail", "a \"b\" & c"]),
        ("sort=wait&kind=key", &["a \"b\" & c"]),
        ("q=%25", &[]),
    ] {
        assert_eq!(names(&console, query).await, found, "{query}");
    }
    for wrong in ["sort=size", "kind=worker", "after=nowhere"] {
        assert_eq!(console.get(&format!("/api/v1/limits?{wrong}")).await.status, 400, "{wrong}");
        assert_eq!(console.get(&format!("/limits?{wrong}")).await.status, 400, "{wrong}");
    }
    database
        .execute(
            "SELECT mill.set_max_running('key', 'k.' || n, n) FROM generate_series(100, 520) AS n",
        )
        .await;
    let (mut after, mut seen) = (String::new(), Vec::new());
    loop {
        let page = console.get(&format!("/api/v1/limits?q=k.&after={after}")).await;
        let page: Value = serde_json::from_str(&page.body).unwrap();
        seen.extend(page["limits"].as_array().unwrap().iter().map(|it| it["max_running"].clone()));
        let Some(next) = page["next"].as_str() else { break };
        after = next.to_owned();
    }
    assert_eq!(seen, (100..=520).map(Value::from).collect::<Vec<_>>(), "each limit once, by name");
    let file = console.get("/limits/download?q=k.&format=csv").await.body;
    assert_eq!(file.matches("key,k.").count(), 421, "{file}");
    let file = console.get("/limits/download?q=mail&format=json").await.body;
    assert!(file.contains("\"waiting\":2"), "{file}");
}

#[tokio::test]
async fn a_search_without_a_match_ends_after_ten_thousand_limits() {
    let database = Database::new().await;
    database
        .execute(
            "INSERT INTO mill.limits (kind, name, max_running)
             SELECT 'key', 'k' || n, 1 FROM generate_series(10001, 25000) AS n;
             SELECT mill.set_max_running('queue', 'k last', 1)",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    let page = console.get("/limits?q=last").await.body;
    assert!(page.contains("No match among the first") && page.contains("search further"), "{page}");
    let page = console.get("/api/v1/limits?q=last").await.body;
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!((&page["limits"], &page["next"]), (&Value::Array(vec![]), &"key.0.k20000".into()));
    assert_eq!(names(&console, "q=last&after=key.0.k20000").await, ["k last"]);
}

#[tokio::test]
async fn a_queue_that_waits_is_found_among_many_concurrency_keys() {
    let database = Database::new().await;
    database
        .execute(
            "INSERT INTO mill.limits (kind, name, max_running) SELECT 'key', 'k' || n, 1 FROM generate_series(1, 1200) AS n;
             SELECT mill.set_max_running('queue', 'mail', 0);
             INSERT INTO mill.tasks (queue, priority, state, due_at, statement, limits, blocking_limit_id)
             SELECT 'mail', 'normal', 'blocked', now() - interval '1 hour' * CASE l.kind WHEN 'queue' THEN 2 ELSE 1 END,
                'SELECT 1', ARRAY[l.id], l.id FROM mill.limits l",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    assert_eq!(names(&console, "sort=wait&kind=queue").await, ["mail"]);
    let all = names(&console, "sort=wait").await;
    assert_eq!((all.len(), all[0].as_str()), (200, "mail"));
}

#[tokio::test]
async fn an_operator_changes_and_removes_limits_of_each_kind() {
    let database = Database::new().await;
    database.execute(LIMITS).await;
    let console = Console::start(&database, &[]).await;
    let value = async |name: &str| {
        let found = limits(&console, "").await;
        found.into_iter().find(|it| it["name"] == name).map(|it| it["max_running"].clone())
    };
    let back = "return_to=/limits%3Fkind%3Dkey";
    for (path, form, name, expected) in [
        ("/limits/set", "key=idle&max_running=9", "idle", Some(9)),
        ("/limits/set", "key=fresh&max_running=2&create=true", "fresh", Some(2)),
        ("/queues/mail/limit", "max_running=7&rate_starts=&rate_seconds=", "mail", Some(7)),
        ("/groups/of%20runs/concurrency", "max_running=3", "of runs", Some(3)),
        ("/limits/remove", "key=idle", "idle", None),
        ("/queues/mail/limit", "", "mail", Some(-1)),
    ] {
        let answer = console.post(path, &format!("{form}&{back}")).await;
        assert_eq!(answer.status, 303, "{path} {form}: {}", answer.body);
        assert!(answer.headers.contains("location: /limits?kind=key"), "{}", answer.headers);
        // The tasks of the queue are still blocked, because no worker grants permits.
        let expected = expected.map(|it| if it < 0 { Value::Null } else { it.into() });
        assert_eq!(value(name).await, expected, "{path} {form}");
    }
    for (path, form, status) in [
        ("/limits/set", "key=mistyped&max_running=1", 404),
        ("/limits/set", "key=empty&create=true", 400),
        ("/limits/set", "key=fresh&rate_starts=1", 400),
        ("/limits/remove", "key=mistyped", 404),
        ("/limits/remove", "key=a+%22b%22+%26+c", 422),
    ] {
        assert_eq!(console.post(path, form).await.status, status, "{path} {form}");
    }
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    let console = Console::start_at(&database, &viewer.url(), &[]).await;
    let page = console.get("/limits").await.body;
    assert!(page.contains("fresh") && !page.contains("<form method=\"post\""), "{page}");
}
