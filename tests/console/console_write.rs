//! The API changes what the pages and `pgmill` change, once per idempotency key.

use proxy::{Cut, FaultAction, MessageMatch, Proxy};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::console::{Console, TokenFile, ask, csrf, request};
use crate::harness::http::Answer;
use crate::harness::{Database, eventually};
use crate::runs::run_cli::COMMIT;

fn document(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_enqueued_cancelled_and_retried() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let task = json!({
        "tasks": [{ "statement": "SELECT $1::date", "params": ["2026-12-01"], "name": "load", "key": "k" }],
        "queue": "etl", "priority": "high", "due_at": "2999-01-01T00:00:00Z", "max_attempts": 7,
        "retry_interval_seconds": 1.5, "timeout_seconds": 60, "isolation": "serializable",
        "tags": ["nightly"], "metadata": { "team": "dwh" },
    });
    let first = document(&console.post_json("/api/v1/tasks", &task, &[]).await);
    let id = first["tasks"][0]["id"].as_i64().unwrap();
    assert_eq!(first, json!({ "tasks": [{ "id": id, "created": true }] }));
    let again = document(&console.post_json("/api/v1/tasks", &task, &[]).await);
    assert_eq!(again, json!({ "tasks": [{ "id": id, "created": false }] }));
    let stored: Value = database
        .value(
            "SELECT to_jsonb(t) - '{id,enqueued_at,limits}'::text[] FROM mill.visible_tasks t
             WHERE t.retry_interval = '1.5 seconds' AND t.timeout = '1 minute'",
        )
        .await;
    for (key, value) in [
        ("queue", json!("etl")),
        ("priority", json!("high")),
        ("state", json!("scheduled")),
        ("max_attempts", json!(7)),
        ("params", json!(["2026-12-01"])),
        ("name", json!("load")),
    ] {
        assert_eq!(stored[key], value, "{key}");
    }
    assert_eq!(stored["options"]["isolation"], "serializable");
    assert_eq!(stored["options"]["tags"], json!(["nightly"]));

    let path = format!("/api/v1/tasks/{id}");
    let cancelled = console.post_json(&format!("{path}/cancel"), &json!({}), &[]).await;
    assert_eq!(document(&cancelled), json!({ "result": "cancelled" }));
    let retried = console.post_json(&format!("{path}/retry"), &json!({}), &[]).await;
    assert_eq!(document(&retried), json!({ "result": "retried" }));
    let several = json!({ "tasks": [{ "statement": "SELECT 1" }, { "statement": "SELECT 2" }] });
    let several = document(&console.post_json("/api/v1/tasks", &several, &[]).await);
    assert_eq!(several["tasks"].as_array().unwrap().len(), 2);
    let audited: i64 = database
        .value("SELECT count(*) FROM mill.audit WHERE actor = 'console' AND action IN ('cancel', 'retry')")
        .await;
    assert_eq!(audited, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_schedules_jobs_queues_and_workers_are_operated() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    database
        .execute(
            r#"SELECT mill.set_job('nightly', '[{"name": "a", "statement": "SELECT 1", "params": [{"$param": "day"}]}]');
               SELECT mill.set_job('asks', '[{"name": "a", "statement": "SELECT 1", "approval": true},
                   {"name": "b", "statement": "SELECT 1", "approval": true}]');
               SELECT mill.set_schedule('hourly', 'every(1h)', 'SELECT 1')"#,
        )
        .await;
    let start = json!({ "jobs": ["asks"], "run_timeout_seconds": 60 });
    let asking = document(&console.post_json("/api/v1/runs", &start, &[]).await)["run"].clone();
    let start = json!({ "jobs": ["nightly"], "params": { "day": "2026-12-01" } });
    let run = document(&console.post_json("/api/v1/runs", &start, &[]).await)["run"].clone();
    for (path, body, result) in [
        (format!("runs/{run}/cancel"), json!({ "kill": true }), json!({ "result": "cancelling" })),
        (
            "schedules/enable".into(),
            json!({ "name": "hourly", "enabled": false }),
            json!({ "result": "disabled" }),
        ),
        (
            "jobs/enable".into(),
            json!({ "name": "nightly", "enabled": false }),
            json!({ "result": "disabled" }),
        ),
        (
            "jobs/enable".into(),
            json!({ "name": "nightly", "enabled": true }),
            json!({ "result": "enabled" }),
        ),
        (
            "queues/pause".into(),
            json!({ "queue": "default", "paused": true }),
            json!({ "result": "paused" }),
        ),
        (format!("runs/{asking}/approve"), json!({ "task": "a" }), json!({ "result": "approved" })),
        (
            format!("runs/{asking}/reject"),
            json!({ "task": "b", "reason": "no" }),
            json!({ "result": "rejected" }),
        ),
    ] {
        let answer = console.post_json(&format!("/api/v1/{path}"), &body, &[]).await;
        assert_eq!(document(&answer), result, "{path}");
    }
    let now = json!({ "name": "hourly", "force": true });
    let answer = console.post_json("/api/v1/schedules/run", &now, &[]).await;
    assert!(document(&answer)["run"].as_i64().is_some_and(|id| Some(id) != run.as_i64()));
    database.execute(&format!("DO $$ BEGIN PERFORM mill.advance_run({run}); END $$")).await;
    let answer = console.post_json(&format!("/api/v1/runs/{run}/rerun"), &json!({}), &[]).await;
    assert_eq!(document(&answer), json!({ "tasks": ["a"] }));
    for (path, body) in [
        ("tasks/999/cancel", json!({})),
        ("runs/999/cancel", json!({})),
        ("runs/999/rerun", json!({})),
        ("runs/999/approve", json!({ "task": "a" })),
        ("runs/999/reject", json!({ "task": "a" })),
        ("schedules/run", json!({ "name": "none" })),
        ("jobs/enable", json!({ "name": "none", "enabled": true })),
        ("queues/pause", json!({ "queue": "none", "paused": true })),
        ("workers/00000000-0000-0000-0000-000000000001/drain", json!({ "draining": true })),
    ] {
        let answer = console.post_json(&format!("/api/v1/{path}"), &body, &[]).await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_has_one_effect() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let task = json!({ "tasks": [{ "statement": "SELECT 1" }] });
    let key = [("Idempotency-Key", "order-7")];
    // The same request several times at once: one of them enqueues, the others wait for it.
    let mut requests = JoinSet::new();
    for _ in 0..8 {
        let (address, task) = (console.address.clone(), task.to_string());
        requests.spawn(async move {
            let headers =
                [("Host", address.as_str()), ("Content-Type", "application/json"), key[0]];
            ask(&address, &request("POST", "/api/v1/tasks", &headers, &task)).await
        });
    }
    let mut answers = Vec::new();
    while let Some(answer) = requests.join_next().await {
        answers.push(document(&answer.unwrap()));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 1);
    // The answer remains after the task has ended.
    database.execute("SELECT mill.cancel(id) FROM mill.tasks").await;
    assert_eq!(document(&console.post_json("/api/v1/tasks", &task, &key).await), answers[0]);

    let other = json!({ "tasks": [{ "statement": "SELECT 2" }] });
    let refused = console.post_json("/api/v1/tasks", &other, &key).await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(refused.body.contains("belongs to another request"), "{}", refused.body);
    // A request that failed has left no key.
    let fails = json!({ "tasks": [{ "statement": "" }] });
    let second = [("Idempotency-Key", "order-8")];
    assert_eq!(console.post_json("/api/v1/tasks", &fails, &second).await.status, 422);
    document(&console.post_json("/api/v1/tasks", &other, &second).await);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 1);

    database
        .execute("UPDATE mill.idempotency_keys SET created_at = created_at - interval '25 hours' WHERE key = 'order-7'")
        .await;
    assert_eq!(database.value::<i32>("SELECT mill.prune_idempotency_keys()").await, 1);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.idempotency_keys").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_without_a_name_have_idempotency_keys_of_their_own() {
    let database = Database::new().await;
    let tokens = ["first-token-without-a-name", "second-token-without-a-name"];
    let file = TokenFile::new(&tokens.join("\n"));
    let console = Console::start(&database, &["--token-file", file.path()]).await;
    let task = json!({ "tasks": [{ "statement": "SELECT 1" }] });
    let mut answers = Vec::new();
    for token in [tokens[0], tokens[1], tokens[0]] {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str()), ("Idempotency-Key", "order-7")];
        answers.push(document(&console.post_json("/api/v1/tasks", &task, &headers).await));
    }
    assert_ne!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    let shown = "SELECT count(*) FROM mill.idempotency_keys WHERE caller LIKE '%without%'";
    assert_eq!(database.value::<i64>(shown).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_and_other_sites_change_nothing() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let task = json!({ "tasks": [{ "statement": "SELECT 1" }] });
    for (body, status, message) in [
        (json!({}), 400, "missing field `tasks`"),
        (json!({ "tasks": [] }), 400, "tasks must be one task"),
        (
            json!({ "tasks": [{ "statement": "SELECT 1" }], "queu": "x" }),
            400,
            "unknown field `queu`",
        ),
        (
            json!({ "tasks": [{ "statement": "SELECT 1" }], "timeout_seconds": -1 }),
            400,
            "timeout_seconds",
        ),
        (json!({ "tasks": [{ "statement": " " }] }), 422, "the statement is empty"),
        (json!({ "tasks": [{ "statement": "SELECT '\u{0}'" }] }), 422, "0x00"),
        (
            json!({ "tasks": [{ "statement": "SELECT 1", "key": "k" }, { "statement": "SELECT 1" }] }),
            400,
            "without a key",
        ),
    ] {
        let answer = console.post_json("/api/v1/tasks", &body, &[]).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
        assert!(answer.body.contains(message), "{body}: {}", answer.body);
    }
    for (headers, status) in [
        (&[("Origin", "http://evil.example")][..], 403),
        (&[("Sec-Fetch-Site", "cross-site")], 403),
        (&[("Idempotency-Key", "")], 400),
        (&[("Idempotency-Key", "a"), ("Idempotency-Key", "b")], 400),
    ] {
        let answer = console.post_json("/api/v1/tasks", &task, headers).await;
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.body);
    }
    // A form of another site can send these content types.
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let own = [("Host", console.address.as_str()), ("Content-Type", kind)];
        let answer = console.request("POST", "/api/v1/tasks", &own, &task.to_string()).await;
        assert_eq!(answer.status, 415, "{kind:?}: {}", answer.body);
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 0);
    let read_only = Console::start(&database, &["--read-only"]).await;
    assert_eq!(read_only.post_json("/api/v1/tasks", &task, &[]).await.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_task_is_changed_and_null_removes_an_option() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    database.execute("SELECT mill.set_group('g')").await;
    let options = ", timeout => '1 minute', group_name => 'g', params => '[1]'";
    let id = database.enqueue("SELECT $1", options).await;
    let path = format!("/api/v1/tasks/{id}/set");
    let change = json!({
        "priority": "high", "queue": "etl", "due_at": "2999-01-01T00:00:00Z", "params": [2], "max_attempts": 9,
        "timeout_seconds": null, "group": null,
    });
    let key = [("Idempotency-Key", "change-1")];
    let answer = document(&console.post_json(&path, &change, &key).await);
    assert_eq!(answer, json!({ "result": "updated" }));
    let stored =
        "SELECT concat_ws(' ', priority, queue, state, params, max_attempts, timeout, group_name)
        FROM mill.visible_tasks";
    assert_eq!(database.value::<String>(stored).await, "high etl scheduled [2] 9");
    let same = document(&console.post_json(&path, &json!({ "priority": "high" }), &[]).await);
    assert_eq!(same, json!({ "result": "unchanged" }));
    let again = document(&console.post_json(&path, &change, &key).await);
    assert_eq!(again, json!({ "result": "updated" }), "the first answer");
    let now = document(&console.post_json(&path, &json!({ "due_at": null }), &[]).await);
    assert_eq!(now, json!({ "result": "updated" }));
    assert_eq!(database.value::<String>("SELECT state::text FROM mill.tasks").await, "pending");
    for (path, body, status) in [
        (path.as_str(), json!({}), 400),
        (path.as_str(), json!({ "timeout_seconds": -1 }), 400),
        (path.as_str(), json!({ "statement": "SELECT 2" }), 400),
        (path.as_str(), json!({ "group": "none" }), 422),
        ("/api/v1/tasks/999/set", json!({ "priority": "low" }), 404),
    ] {
        let answer = console.post_json(path, &body, &[]).await;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
    }
    database.execute(&format!("SELECT mill.cancel({id})")).await;
    let finished = document(&console.post_json(&path, &json!({ "priority": "low" }), &[]).await);
    assert_eq!(finished, json!({ "result": "finished" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_purged_in_parts_and_a_repeated_request_purges_no_later_task() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    database
        .execute(
            "SELECT mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[10200]), queue => 'old');
             SELECT mill.enqueue('SELECT 1', queue => 'other')",
        )
        .await;
    let purge = json!({ "queue": "old" });
    let (first, second) = ([("Idempotency-Key", "p-1")], [("Idempotency-Key", "p-2")]);
    let path = "/api/v1/queues/purge";
    let answer = document(&console.post_json(path, &purge, &first).await);
    assert_eq!(answer, json!({ "cancelled": 10000, "more": true }));
    let answer = document(&console.post_json(path, &purge, &second).await);
    assert_eq!(answer, json!({ "cancelled": 200, "more": false }));
    database.execute("SELECT mill.enqueue('SELECT 1', queue => 'old')").await;
    let repeated = document(&console.post_json(path, &purge, &first).await);
    assert_eq!(repeated, json!({ "cancelled": 10000, "more": true }));
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 2);
    let none = console.post_json(path, &json!({ "queue": "none" }), &[]).await;
    assert_eq!(none.status, 404, "{}", none.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_is_started_once_and_changed() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    database
        .execute("SELECT mill.set_schedule('nightly', 'daily(03:15)', 'SELECT 1'); SELECT mill.set_schedule('manual', 'manual', 'SELECT 1')")
        .await;
    let path = "/api/v1/schedules/backfill";
    let body = json!({ "name": "nightly", "from": "2026-01-01T00:00:00Z", "to": "2026-01-11T00:00:00Z", "max_running": 2 });
    let key = [("Idempotency-Key", "b-1")];
    let created = document(&console.post_json(path, &body, &key).await);
    let id = created["id"].as_i64().unwrap();
    assert_eq!(created, json!({ "id": id, "instants": 10, "skipped": 0 }));
    assert_eq!(document(&console.post_json(path, &body, &key).await), created);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.backfills").await, 1);
    let change = format!("/api/v1/backfills/{id}/change");
    for (action, result) in [("pause", "paused"), ("resume", "resumed"), ("cancel", "cancelled")] {
        let answer = console.post_json(&change, &json!({ "action": action }), &[]).await;
        assert_eq!(document(&answer), json!({ "result": result }));
    }
    let period = |name: &str, from: &str, to: &str| json!({ "name": name, "from": from, "to": to });
    for (path, body, status) in [
        (path, period("none", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"), 404),
        (path, period("manual", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"), 422),
        (path, period("nightly", "2026-01-01T00:00:00Z", "2999-01-02T00:00:00Z"), 422),
        (path, period("nightly", "2026-01-01T04:00:00Z", "2026-01-01T05:00:00Z"), 400),
        ("/api/v1/backfills/999/change", json!({ "action": "pause" }), 404),
        (&change, json!({ "action": "pause" }), 422),
        (&change, json!({ "action": "remove" }), 400),
    ] {
        let answer = console.post_json(path, &body, &[]).await;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.backfills").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_are_listed_created_changed_and_removed() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let (path, remove) = ("/api/v1/subscriptions", "/api/v1/subscriptions/remove");
    let options = json!({ "events": ["task_failed"], "channel": "failures", "queue": "etl" });
    let body = json!({ "name": "ops", "options": options });
    let set = async |body: &Value| document(&console.post_json(path, body, &[]).await);
    assert_eq!(set(&body).await, json!({ "result": "changed" }));
    assert_eq!(set(&body).await, json!({ "result": "unchanged" }));
    let body = json!({ "name": "ops", "options": { "queue": null } });
    assert_eq!(set(&body).await, json!({ "result": "changed" }));
    let listed = document(&console.get(path).await);
    let it = &listed["subscriptions"][0];
    assert_eq!(
        (&it["name"], &it["queue"], &it["kind"]),
        (&json!("ops"), &Value::Null, &json!("channel"))
    );
    for (path, body, status) in [
        (path, json!({ "name": "x", "options": { "events": ["task_failed"] } }), 422),
        (path, json!({ "name": "x", "options": { "events": ["nothing"], "channel": "c" } }), 422),
        (path, json!({ "name": "x", "options": { "event": ["task_failed"] } }), 422),
        (path, json!({ "name": "x" }), 400),
        (remove, json!({ "name": "x" }), 404),
    ] {
        let answer = console.post_json(path, &body, &[]).await;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
    }
    let removed = document(&console.post_json(remove, &json!({ "name": "ops" }), &[]).await);
    assert_eq!(removed, json!({ "result": "removed" }));
    assert_eq!(document(&console.get(path).await), json!({ "subscriptions": [] }));
}

/// Programs and people repeat a request that was answered with 503.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_reported_as_such() {
    let database = Database::new().await;
    let proxy = Proxy::start(&database.url()).await.unwrap();
    let console = Console::start_at(&database, &proxy.url(&database.url()), &[]).await;
    let task = json!({ "tasks": [{ "statement": "SELECT 1" }] });
    let audit =
        "look whether the change was made before you try again; the audit shows the last actions";
    let repeat = "repeat the request with the same Idempotency-Key";
    for (key, hint) in [(&[][..], audit), (&[("Idempotency-Key", "k")], repeat)] {
        proxy.arm(MessageMatch::Text(COMMIT.to_owned()), FaultAction::Cut(Cut::After));
        let answer = console.post_json("/api/v1/tasks", &task, key).await;
        assert!(proxy.disarm(), "{answer:?}");
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((answer.status, &body["hint"]), (500, &json!(hint)), "{body}");
        let error = body["error"].as_str().unwrap();
        assert!(error.contains("it is not known whether the change was made"), "{error}");
    }
    let again = console.post_json("/api/v1/tasks", &task, &[("Idempotency-Key", "k")]).await;
    let enqueued = "SELECT count(*) FROM mill.tasks";
    assert_eq!((again.status, database.value::<i64>(enqueued).await), (200, 2));

    let page = console.get("/priorities").await.body;
    let form = format!("csrf={}", csrf(&page));
    proxy.arm(MessageMatch::Text(COMMIT.to_owned()), FaultAction::Cut(Cut::After));
    let answer = console.post_with("/tasks/1/cancel", &form, &[]).await;
    assert!(proxy.disarm() && answer.status == 500 && answer.body.contains(audit), "{answer:?}");
    let cancelled = "SELECT count(*) = 1 FROM mill.tasks";
    eventually("the task is cancelled", async || database.value::<bool>(cancelled).await).await;
}
