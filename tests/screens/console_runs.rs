//! The console's pages of runs, jobs and lineage: they escape every name, limit how much they show, and
//! offer the actions on runs.

use serde_json::{Value, json};

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker, eventually};
use crate::runs::run::{FLAGS, end, job, start};

/// Name of a task, a job and a parameter. It must neither become markup nor end an address.
const HOSTILE: &str = "<script>x</script>\"'&/../%2F?";

async fn json_at(console: &Console, path: &str) -> Value {
    let answer = console.get(path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn assert_tame(path: &str, body: &str) {
    let scripts = body.matches("<script").count();
    assert_eq!(scripts, body.matches("<script src=\"/static/").count(), "{path}: {body}");
    assert!(!body.contains(" style="), "{path} has an inline style");
}

/// Creates a diamond: `a` may fail, `b` and `c` depend on `a`, and a task with a hostile name
/// depends on `b` and `c`.
async fn diamond(database: &Database) {
    let tasks = json!([
        {"name": "a", "statement": "SELECT count(*) FROM mended", "max_attempts": 1, "params": []},
        {"name": "b", "statement": "SELECT 1", "after": ["a"]},
        {"name": "c", "statement": "SELECT 1", "after": [{"task": "a", "expected": "failed"}]},
        {"name": HOSTILE, "statement": "SELECT '<script>'", "after": ["b", "c"], "join": "any"},
        {"name": "z", "statement": "SELECT 1", "after": [{"task": "c", "expected": "failed"}]},
    ]);
    job(database, HOSTILE.replace('/', "").as_str(), tasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_read_with_its_graph_its_times_and_earlier_runs() {
    let database = Database::new().await;
    diamond(&database).await;
    let name = HOSTILE.replace('/', "");
    let _worker = Worker::start(&database, &FLAGS);
    for run in 1..=2 {
        let sql = "SELECT run_id FROM mill.start_run(ARRAY[$1::text])";
        let started: i64 = database.rows(sql, &[&name]).await[0].get(0);
        assert_eq!((started, end(&database, run).await.as_str()), (run, "failed"));
    }
    let console = Console::start(&database, &[]).await;
    let task = encoded(HOSTILE);
    for path in [
        "/runs".to_owned(),
        format!("/runs?state=failed&job={}", encoded(&name)),
        format!("/runs?job={task}&schedule={task}&state=running"),
        "/runs/2".to_owned(),
        "/jobs".to_owned(),
        format!("/jobs/detail?name={}", encoded(&name)),
        "/lineage".to_owned(),
        format!("/lineage?name={task}"),
    ] {
        let answer = console.get(&path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert_tame(&path, &answer.body);
    }
    let page = console.get("/runs/2").await.body;
    for text in [
        "relation &#34;mended&#34; does not exist",
        "a (failed)",
        "any of b, c",
        "Timeline",
        "<rect class=\"failed\"",
        "Critical path",
        "Compared with earlier runs",
        "a in run 1: failed",
        "<span class=\"cell upstream_failed\"",
        "<span class=\"cell skipped\"",
        "z in run 1: skipped",
        "data-graph=\"/api/v1/runs/2/graph\"",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
    let known = json_at(&console, "/api/v1/runs/2").await;
    assert_eq!(known["run"]["count"]["failed"], 1);
    assert_eq!(known["critical_path"]["tasks"], json!(["a", "c", HOSTILE]));
    let drawn = json_at(&console, "/api/v1/runs/2/graph").await;
    let edges = drawn["edges"].as_array().unwrap();
    assert_eq!((drawn["nodes"].as_array().unwrap().len(), edges.len()), (5, 5));
    assert!(edges.iter().any(|it| it["label"] == "failed" && it["critical"] == true), "{drawn}");
    let around = json_at(&console, &format!("/api/v1/lineage?name={task}")).await;
    assert_eq!(around["tasks"].as_array().unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_critical_path_and_the_timeline_count_waits_and_retries() {
    let database = Database::new().await;
    database.create_days_before().await;
    let fails_once = "DO $$ BEGIN
        IF current_setting('mill.attempt') = '1' THEN RAISE 'not yet'; END IF;
    END $$";
    let tasks = json!([
        {"name": "a", "statement": fails_once, "max_attempts": 2, "retry_interval": "0"},
        {"name": "b", "statement": "SELECT 1", "after": ["a"]},
        {"name": "c", "statement": "SELECT 1"},
    ]);
    job(&database, "it", tasks).await;
    let mut worker = Worker::start(&database, &FLAGS);
    start(&database, "it").await;
    assert_eq!(end(&database, 1).await, "succeeded");
    assert!(worker.terminate().await.success());
    // The first attempt of a failed after 60 s, the second one was due 30 s later and claimed 10 s
    // after that; b waited for 5 s and ran for 2 s.
    database
        .execute(
            "UPDATE mill.runs SET started_at = now() - interval '10 minutes', finished_at = now() - interval '8 minutes';
             UPDATE mill.attempts h SET due_at = t.due, started_at = t.started, finished_at = t.finished
             FROM (SELECT v.name, v.attempt, now() - interval '10 minutes' + make_interval(secs => v.due) AS due,
                     now() - interval '10 minutes' + make_interval(secs => v.started) AS started,
                     now() - interval '10 minutes' + make_interval(secs => v.finished) AS finished
                 FROM (VALUES ('a', 1, 0, 0, 60), ('a', 2, 90, 100, 101), ('b', 1, 101, 106, 108), ('c', 1, 0, 0, 9))
                     AS v (name, attempt, due, started, finished)) AS t
             WHERE h.name = t.name AND h.attempt = t.attempt;
             UPDATE mill.run_tasks r SET started_at = h.started_at, finished_at = h.finished_at
             FROM mill.attempts h WHERE h.task_id = r.task_id AND h.final",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    let path = json_at(&console, "/api/v1/runs/1").await["critical_path"].take();
    assert_eq!(path["tasks"], json!(["a", "b"]));
    let seconds = |name: &str| path[name].as_f64().unwrap().round();
    let parts = ["waiting_seconds", "retrying_seconds", "running_seconds", "duration_seconds"];
    assert_eq!(parts.map(seconds), [15.0, 90.0, 3.0, 108.0], "{path}");
    let page = console.get("/runs/1").await.body;
    for text in [
        "Critical path, 1 min 48 s: a (waited 10 s, 1 min 30 s until its last attempt, ran 1.0 s) → b (waited",
        "15 s waiting in the queue, 1 min 30 s in failed attempts and until their retries, 3.0 s running",
        "<text x=\"27.78%\" y=\"11\">30 s</text>",
        "succeeded; due after 0 ms; failed, ran 1 min 0 s; waited 10 s; succeeded, ran 1.0 s",
        "<rect class=\"failed\" x=\"0.0\" y=\"2\" width=\"555.6\"",
        "<rect class=\"wait\" x=\"833.3\" y=\"6\" width=\"92.6\"",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_paginated_and_an_unknown_run_is_reported() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    job(&database, "it", json!([{"name": "t", "statement": "SELECT 1"}])).await;
    job(&database, "other", json!([{"name": "u", "statement": "SELECT 1"}])).await;
    for n in 0..120 {
        start(&database, if n % 2 == 0 { "it" } else { "other" }).await;
    }
    let pages = async |filter: &str| {
        let (mut after, mut seen) = (String::new(), Vec::new());
        loop {
            let path = format!("/api/v1/runs?{filter}&after={after}");
            let page = json_at(&console, &path).await;
            let runs = page["runs"].as_array().unwrap();
            seen.extend(runs.iter().map(|it| it["id"].as_i64().unwrap()));
            let Some(next) = page["next"].as_i64() else { break seen };
            after = next.to_string();
        }
    };
    assert_eq!(pages("").await, (1..=120).rev().collect::<Vec<_>>(), "each run once");
    assert_eq!(pages("job=it").await.len(), 60);
    assert_eq!(pages("job=it&state=running").await.len(), 60);
    assert_eq!(pages("state=failed").await.len(), 0);
    for path in [
        "/runs/121",
        "/runs/none",
        "/runs/99999999999999999999",
        "/jobs/detail?name=nobody",
        "/jobs/detail",
        "/lineage?name=nobody",
        "/api/v1/runs/121",
        "/api/v1/runs/121/graph",
        "/api/v1/jobs/graph?name=nobody",
        "/api/v1/lineage/graph?name=nobody",
    ] {
        assert_eq!(console.get(path).await.status, 404, "{path}");
    }
    for path in ["/runs?state=sleepy", "/runs?after=nowhere"] {
        assert_eq!(console.get(path).await.status, 400, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_run_is_shown_up_to_a_readable_size() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    database
        .execute(
            "SELECT mill.set_job('wide', (SELECT jsonb_agg(jsonb_build_object('name', 'n' || n, 'statement', 'SELECT 1',
                 'after', CASE WHEN n > 200 THEN (SELECT jsonb_agg('n' || p) FROM generate_series(1, 20) p) ELSE '[]' END))
             FROM generate_series(1, 600) n)); SELECT mill.start_run(ARRAY['wide']);
             UPDATE mill.run_tasks SET state = 'failed', task_id = NULL WHERE name = 'n599'",
        )
        .await;
    let known = json_at(&console, "/api/v1/runs/1").await;
    assert_eq!(known["tasks"].as_array().unwrap().len(), 500);
    assert_eq!((&known["left_out"], &known["critical_path"]), (&json!(100), &Value::Null));
    assert_eq!((&known["too_many_edges"], &known["edges"]), (&json!(true), &json!([])));
    assert!(known.to_string().contains("\"n599\""), "the failed tasks are shown");
    let page = console.get("/runs/1").await.body;
    assert!(page.contains("500 of 600 tasks"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permitted_user_cancels_and_restarts_a_run_and_retries_its_task() {
    let database = Database::new().await;
    let viewer = Login::new(&database, "runs_viewer", "mill_viewer").await;
    let tasks = json!([
        {"name": "a", "statement": "SELECT pg_advisory_xact_lock(1)"},
        {"name": "b", "statement": "SELECT count(*) FROM mended", "max_attempts": 1, "params": []},
        {"name": "c", "statement": "SELECT $1::int", "after": ["b"], "params": [{"$param": "n"}]},
    ]);
    job(&database, "it", tasks).await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let _worker = Worker::start(&database, &FLAGS);
    let console = Console::start(&database, &[]).await;
    let viewer_console = Console::start_at(&database, &viewer.url(), &[]).await;
    let page = console.get("/jobs/detail?name=IT").await.body;
    assert_eq!(page.matches("name=\"param:n\"").count(), 1, "{page}");
    let answer = console.post("/jobs/run", "name=it&param%3An=7").await;
    assert!(answer.headers.contains("location: /runs/1"), "{} {}", answer.headers, answer.body);
    let state = async |name: &str| -> String {
        let sql =
            format!("SELECT state FROM mill.run_task_status WHERE run_id = 1 AND name = '{name}'");
        database.value(&sql).await
    };
    eventually("c cannot run", async || state("c").await == "upstream_failed").await;
    for path in ["/runs", "/runs/1", "/jobs", "/jobs/detail?name=it", "/lineage?name=a"] {
        let body = viewer_console.get(path).await.body;
        assert!(!body.contains("method=\"post\""), "{path} offers a viewer an action");
    }
    let page = console.get("/runs/1").await.body;
    assert!(page.contains("/runs/1/retry") && page.contains("also stop running tasks"), "{page}");
    assert_eq!(console.post("/runs/1/retry", "task=nobody").await.status, 404);
    assert_eq!(console.post("/runs/7/cancel", "").await.status, 404);
    assert_eq!(console.post("/runs/1/restart", "").await.status, 422, "the run is in progress");
    database.execute("CREATE TABLE mended ()").await;
    assert_eq!(console.post("/runs/1/retry", "task=b").await.status, 303);
    eventually("c has run", async || state("c").await == "succeeded").await;
    assert_eq!(console.post("/runs/1/cancel", "kill=true").await.status, 303);
    assert_eq!(end(&database, 1).await, "cancelled");
    assert_eq!(console.post("/runs/1/restart", "").await.status, 422, "the run has not failed");
    assert_eq!(console.post("/runs/1/restart", "which=some&force=true").await.status, 400);
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(console.post("/runs/1/restart", "which=failed&force=true").await.status, 303);
    assert_eq!(end(&database, 1).await, "succeeded");
    assert_eq!(console.post("/jobs/run", "name=it").await.status, 422, "n has no value");
    assert_eq!(console.post("/jobs/enable", "name=it&enabled=false").await.status, 303);
    assert_eq!(console.post("/jobs/run", "name=it").await.status, 422);
    assert_eq!(console.post("/jobs/enable", "name=nobody&enabled=true").await.status, 404);
    let acts: i64 = database.value("SELECT count(*) FROM mill.audit WHERE actor = 'console'").await;
    assert!(acts >= 4, "{acts} acts in the name of the console");
    drop((console, viewer_console));
    viewer.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_is_listed_first_until_a_later_one_succeeds() {
    let database = Database::new().await;
    let tasks = json!([
        {"name": "a", "statement": "SELECT count(*) FROM mended", "max_attempts": 1},
        {"name": "b", "statement": "SELECT 1"},
        {"name": "ignored", "statement": "SELECT 1/0", "max_attempts": 1, "ignore_failure": true},
    ]);
    job(&database, "it & so on", tasks).await;
    let held = json!([
        {"name": "c", "statement": "SELECT 1/0", "max_attempts": 1},
        {"name": "d", "statement": "SELECT pg_advisory_xact_lock(1)"},
        {"name": "ignored too", "statement": "SELECT 1/0", "max_attempts": 1, "ignore_failure": true},
    ]);
    job(&database, "held", held).await;
    let _worker = Worker::start(&database, &FLAGS);
    let console = Console::start(&database, &[]).await;
    let problem = async |part: &str| -> Option<(String, String)> {
        let all = json_at(&console, "/api/v1/overview").await;
        let all = all["problems"].as_array().unwrap().clone();
        let text = |it: &Value, key: &str| it[key].as_str().unwrap().to_owned();
        let found = all.iter().find(|it| text(it, "message").contains(part))?;
        Some((text(found, "message"), text(found, "path")))
    };
    let reported = |message: &str, path: &str| Some((message.to_owned(), path.to_owned()));
    start(&database, "it & so on").await;
    assert_eq!(end(&database, 1).await, "failed");
    let one = "run 1 of it & so on has failed, with 1 failed task of 3";
    assert_eq!(problem("it & so on").await, reported(one, "/runs/1"));
    let status = Program::pgmill(&database, &["status"]).succeeds().await;
    assert!(status.contains(one) && status.contains("pgmill run show 1"), "{status}");

    start(&database, "it & so on").await;
    assert_eq!(end(&database, 2).await, "failed");
    assert_eq!(
        problem("it & so on").await,
        reported(
            "2 runs of it & so on have failed within a day, the latest is run 2",
            "/runs?state=failed&job=it%20%26%20so%20on"
        )
    );
    database.execute("CREATE TABLE mended ()").await;
    start(&database, "it & so on").await;
    assert_eq!(end(&database, 3).await, "succeeded");
    assert_eq!(problem("it & so on").await, None);

    database.execute("SELECT pg_advisory_lock(1)").await;
    start(&database, "held").await;
    eventually("the failing task has failed", async || {
        let failed = "SELECT count(*) FROM mill.run_tasks WHERE run_id = 4 AND state = 'failed'";
        database.value::<i64>(failed).await == 2
    })
    .await;
    let in_progress = "run 4 of held is in progress, with 1 failed task of 3";
    assert_eq!(problem("of held").await, reported(in_progress, "/runs/4"));
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(end(&database, 4).await, "failed");

    // A success with other parameters does not resolve a failure.
    let divides = json!([{
        "name": "q", "statement": "SELECT 1 / $1::int", "params": [{"$param": "n"}], "max_attempts": 1,
    }]);
    job(&database, "divides", divides).await;
    for (n, state) in [(0, "failed"), (1, "succeeded")] {
        let params = json!({ "n": n });
        let sql = "SELECT run_id FROM mill.start_run(ARRAY['divides'], $1)";
        let run = database.rows(sql, &[&params]).await[0].get(0);
        assert_eq!(end(&database, run).await, state);
    }
    let failed = "run 5 of divides has failed, with 1 failed task of 1";
    assert_eq!(problem("of divides").await, reported(failed, "/runs/5"));
}
