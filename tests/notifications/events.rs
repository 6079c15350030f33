//! Every event becomes a notification of the subscriptions that match it, in the transaction that
//! causes the event.

use serde_json::{Value, json};

use crate::harness::{Database, Worker, eventually};
use crate::runs::run::{FLAGS, end, job, start};
use crate::schedules::schedule_cli::output_of;

/// Creates a subscription, whose messages go to a channel.
pub(crate) async fn subscribe(database: &Database, name: &str, options: Value) {
    let mut options = options;
    if ["destination", "statement"].iter().all(|key| options[*key].is_null()) {
        options["channel"] = "events".into();
    }
    database.rows("SELECT mill.set_subscription($1, $2)", &[&name, &options]).await;
}

/// Returns the documents of a subscription, oldest first.
pub(crate) async fn documents(database: &Database, name: &str) -> Vec<Value> {
    let sql = "SELECT document FROM mill.visible_notifications WHERE subscription = $1 ORDER BY id";
    database.rows(sql, &[&name]).await.iter().map(|row| row.get(0)).collect()
}

/// Waits until a subscription has this many notifications, and returns the documents.
async fn until_notified(database: &Database, name: &str, count: usize) -> Vec<Value> {
    eventually(&format!("{count} notifications of {name}"), async || {
        documents(database, name).await.len() >= count
    })
    .await;
    documents(database, name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_attempts_and_tasks_are_reported_without_statements() {
    let database = Database::new().await;
    subscribe(&database, "attempts", json!({"events": ["attempt_failed"]})).await;
    subscribe(&database, "tasks", json!({"events": ["task_failed"]})).await;
    subscribe(&database, "both", json!({"events": ["attempt_failed", "task_failed"]})).await;
    subscribe(&database, "other", json!({"events": ["task_failed"], "queue": "other"})).await;
    subscribe(&database, "tag", json!({"events": ["task_failed"], "tag": "etl"})).await;
    let _worker = Worker::start(&database, &FLAGS);
    let options =
        ", name => 'load', max_attempts => 2, retry_interval => '0', params => '[\"p4rameter\"]',
        options => '{\"tags\": [\"etl\"]}'";
    let id = database.enqueue("SELECT $1::text, 1/(random() * 0)::integer", options).await;
    assert_eq!(database.outcome(id).await, "failed");
    database.outcome(database.enqueue("SELECT 1", "").await).await;
    let events = async |name: &str| -> Vec<String> {
        let all = documents(&database, name).await;
        all.iter()
            .map(|it| format!("{} {}", it["event"].as_str().unwrap(), it["attempt"]))
            .collect()
    };
    assert_eq!(events("attempts").await, ["attempt_failed 1", "attempt_failed 2"]);
    assert_eq!(events("tasks").await, ["task_failed 2"]);
    assert_eq!(events("both").await, ["attempt_failed 1", "task_failed 2"]);
    assert_eq!(events("other").await, [""; 0]);
    assert_eq!(events("tag").await, ["task_failed 2"]);
    let document = &documents(&database, "tasks").await[0];
    assert_eq!(document["task_id"], json!(id));
    assert_eq!(document["task"], "load");
    assert_eq!((&document["outcome"], &document["sqlstate"]), (&json!("failed"), &json!("22012")));
    assert_eq!(document["message"], "division by zero");
    let text = document.to_string();
    assert!(!text.contains("SELECT") && !text.contains("p4rameter"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_reported_with_their_counts_and_first_errors() {
    let database = Database::new().await;
    let events = json!(["run_failed", "run_succeeded", "run_recovered"]);
    subscribe(&database, "runs", json!({"events": events})).await;
    subscribe(&database, "of_other", json!({"events": events, "job": "other"})).await;
    // Names of jobs are case-insensitive.
    subscribe(&database, "of_job", json!({"events": events, "job": "NIGHTLY"})).await;
    let _worker = Worker::start(&database, &FLAGS);
    database.execute("CREATE TABLE wrong (n integer)").await;
    let tasks = json!([
        {"name": "good", "statement": "SELECT 1"},
        {"name": "bad", "statement": "SELECT 1/(SELECT count(*) = 0 FROM wrong)::integer", "max_attempts": 1},
        {"name": "after", "statement": "SELECT 1", "after": ["bad"]},
    ]);
    job(&database, "nightly", tasks).await;
    assert_eq!(end(&database, start(&database, "nightly").await).await, "succeeded");
    database.execute("INSERT INTO wrong VALUES (1)").await;
    let failed = start(&database, "nightly").await;
    assert_eq!(end(&database, failed).await, "failed");
    database.execute("DELETE FROM wrong").await;
    database.execute(&format!("SELECT mill.restart_run({failed})")).await;
    assert_eq!(end(&database, failed).await, "succeeded");
    assert_eq!(end(&database, start(&database, "nightly").await).await, "succeeded");
    let found = documents(&database, "runs").await;
    let events: Vec<&str> = found.iter().map(|it| it["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["run_succeeded", "run_failed", "run_recovered", "run_succeeded"]);
    let resolved: Vec<bool> = found.iter().map(|it| it["resolved"] == true).collect();
    assert_eq!(resolved, [false, false, true, false]);
    let failure = &found[1];
    let counts = ["tasks", "succeeded", "failed", "not_completed"].map(|key| failure[key].as_i64());
    assert_eq!(counts, [Some(3), Some(1), Some(1), Some(1)]);
    assert_eq!(failure["jobs"], json!(["nightly"]));
    let error = json!([{"task": "bad", "outcome": "failed", "message": "division by zero"}]);
    assert_eq!(failure["errors"], error);
    assert_eq!(documents(&database, "of_other").await, [Value::Null; 0]);
    assert_eq!(documents(&database, "of_job").await.len(), 4);
    let listed = output_of(&database, &["run", "list", "--job", "NIGHTLY"]).await;
    assert_eq!(listed.matches("nightly").count(), 3, "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_run_is_reported_once() {
    let database = Database::new().await;
    subscribe(&database, "late", json!({"events": ["late"], "job": "slow"})).await;
    let tasks = r#"[{"name": "a", "statement": "SELECT 1", "queue": "none"}]"#;
    database
        .execute(&format!(
            "SELECT mill.set_job('slow', '{tasks}', options => '{{\"deadline\": \"1 hour\"}}'); \
             SELECT mill.set_job('other', '{tasks}', options => '{{\"deadline\": \"1 hour\"}}'); \
             SELECT mill.start_run(ARRAY['slow']), mill.start_run(ARRAY['other']); \
             UPDATE mill.runs SET late_at = now() - interval '1 second'"
        ))
        .await;
    for _ in 0..2 {
        database.execute("SELECT mill.mark_late_runs()").await;
    }
    // The end of a run marks it as well.
    database.execute("SELECT mill.cancel_run(id) FROM mill.runs").await;
    assert_eq!(
        database.value::<i64>("SELECT count(*) FROM mill.runs WHERE state = 'cancelled'").await,
        2
    );
    let reported = documents(&database, "late").await;
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!(reported[0]["event"], "late");
    assert_eq!(reported[0]["jobs"], json!(["slow"]));
    assert_eq!(reported[0]["open"], json!(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn missed_fires_and_lost_workers_are_reported() {
    let database = Database::new().await;
    let missed = json!({"events": ["schedule_missed"], "schedule": "hourly"});
    subscribe(&database, "missed", missed).await;
    subscribe(&database, "lost", json!({"events": ["worker_lost"]})).await;
    database
        .execute("SELECT mill.set_schedule('hourly', 'every(1 hour)', 'SELECT 1', max_lateness => '1 minute')")
        .await;
    let mut first = Worker::start(&database, &FLAGS);
    eventually("the schedule has a next fire", async || {
        database
            .value("SELECT next_fire_at IS NOT NULL FROM mill.schedules WHERE name = 'hourly'")
            .await
    })
    .await;
    first.kill();
    // The fire was due two hours ago, and the fires since then are missed.
    database
        .execute(
            "UPDATE mill.schedules SET next_fire_at = next_fire_at - interval '3 hours',
                next_tick_at = now() - interval '2 hours'",
        )
        .await;
    let _second = Worker::start(&database, &FLAGS);
    let document = &until_notified(&database, "missed", 1).await[0];
    assert_eq!(document["schedule"], "hourly");
    assert!(document["count"].as_i64() >= Some(1), "{document}");
    let lost = &until_notified(&database, "lost", 1).await[0];
    assert!(lost["pid"].is_i64() && lost["host"].is_string(), "{lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_reported_once_when_it_begins_and_once_when_it_ends() {
    let database = Database::new().await;
    database.execute("SELECT mill.pause('etl'), mill.pause('old')").await;
    let backlog = json!({"events": ["queue_backlog"], "min_pending": 3, "min_age": "1 hour"});
    subscribe(&database, "backlog", backlog).await;
    let _worker = Worker::start(&database, &FLAGS);
    for _ in 0..3 {
        database.enqueue("SELECT 1", ", queue => 'etl'").await;
    }
    let due = ", queue => 'old', due_at => now() - interval '2 hours'";
    database.enqueue("SELECT 1", due).await;
    let check_again = "UPDATE mill.subscription_state SET backlog_checked_at = NULL";
    for _ in 0..2 {
        database.execute(check_again).await;
        until_notified(&database, "backlog", 2).await;
        let checked =
            "SELECT bool_and(backlog_checked_at IS NOT NULL) FROM mill.subscription_state";
        eventually("the backlogs are checked", async || database.value(checked).await).await;
    }
    database.execute("SELECT mill.resume('etl')").await;
    eventually("the queue is empty", async || {
        database.value::<i64>("SELECT count(*) FROM mill.tasks WHERE queue = 'etl'").await == 0
    })
    .await;
    database.execute(check_again).await;
    let found = until_notified(&database, "backlog", 3).await;
    let mut reported: Vec<String> =
        found.iter().map(|it| format!("{} {}", it["queue"], it["resolved"])).collect();
    reported[..2].sort();
    assert_eq!(reported, ["\"etl\" false", "\"old\" false", "\"etl\" true"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_does_not_look_at_subscriptions_and_a_failure_survives_a_broken_outbox() {
    let database = Database::new().await;
    subscribe(&database, "tasks", json!({"events": ["task_failed"]})).await;
    let _worker = Worker::start(&database, &FLAGS);
    // The outbox refuses every row.
    database
        .execute("ALTER TABLE mill.notifications ADD CONSTRAINT none CHECK (document = '{}')")
        .await;
    let id = database.enqueue("SELECT 1/0", ", max_attempts => 1").await;
    assert_eq!(database.outcome(id).await, "failed");
    // A success does not wait for the lock.
    let locked = database.connect().await;
    locked
        .batch_execute(
            "BEGIN; LOCK mill.subscriptions, mill.notifications IN ACCESS EXCLUSIVE MODE",
        )
        .await
        .unwrap();
    let id = database.enqueue("SELECT 1", "").await;
    database.execute("NOTIFY mill, 'work'").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    locked.batch_execute("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn messages_are_hidden_while_statements_are_hidden() {
    let database = Database::new().await;
    subscribe(&database, "tasks", json!({"events": ["task_failed"]})).await;
    let notify =
        "SELECT mill.notify('task_failed', '{\"task_id\": 1}', '{\"message\": \"Key (id)=(5)\"}')";
    database.execute(notify).await;
    assert_eq!(documents(&database, "tasks").await[0]["message"], "Key (id)=(5)");
    database.execute("UPDATE mill.settings SET hide_statements = true").await;
    database.execute(notify).await;
    let sql = "SELECT document FROM mill.notifications ORDER BY id DESC LIMIT 1";
    let document: Value = database.value(sql).await;
    assert!(document["message"].is_null() && document["task_id"] == 1, "{document}");
}

#[tokio::test]
async fn settings_that_contradict_each_other_are_refused_with_a_hint() {
    let database = Database::new().await;
    for (options, message) in [
        (json!({"channel": "x"}), "has no events"),
        (json!({"events": ["task_failed"]}), "has 0 receivers"),
        (json!({"events": ["task_failed"], "channel": "x", "destination": "y"}), "has 2 receivers"),
        (json!({"events": ["task_failed"], "channel": "mill"}), "channel of the workers"),
        (
            json!({"events": ["run_failed"], "channel": "x", "queue": "q"}),
            "run_failed has no queue",
        ),
        (json!({"events": ["queue_backlog"], "channel": "x"}), "thresholds"),
        (json!({"events": ["test"], "channel": "x"}), "not an event"),
        (json!({"events": ["task_failed"], "channel": "x", "run_as": "etl"}), "of a statement"),
        (json!({"events": ["task_failed"], "channel": "x", "que": "q"}), "unknown option"),
    ] {
        let error = database
            .client()
            .query("SELECT mill.set_subscription('s', $1)", &[&options])
            .await
            .unwrap_err();
        let error = error.as_db_error().unwrap();
        assert!(error.message().contains(message), "{options}: {error:?}");
        assert_eq!(error.code().code(), "22023", "{options}");
    }
}
