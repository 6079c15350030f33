//! Messages to destinations: at least once, at a limited rate, and independent of other receivers.

use serde_json::{Value, json};

use crate::harness::receiver::TemporaryFile;
use crate::harness::{Database, Program, Receiver, Worker, eventually};
use crate::notifications::events::subscribe;
use crate::runs::run::FLAGS;

/// Starts a worker with this configuration file.
pub(crate) fn worker(database: &Database, config: &TemporaryFile) -> Worker {
    Worker::start(database, &[&FLAGS[..], &["--config", config.path()]].concat())
}

/// Returns a configuration with one webhook per name.
fn webhooks(receivers: &[(&str, &Receiver)]) -> TemporaryFile {
    let table = |(name, receiver): &(&str, &Receiver)| {
        let url = receiver.url("/hook");
        format!(
            "[destinations.{name}]\nkind = \"webhook\"\nurl = \"{url}\"\nallow_private = true\n"
        )
    };
    TemporaryFile::new(&receivers.iter().map(table).collect::<String>())
}

/// Causes `count` events of a kind that every subscription of these tests has.
async fn fail(database: &Database, count: i32) {
    let sql = "SELECT mill.notify('task_failed', jsonb_build_object('task_id', n, 'queue', 'etl'),
        jsonb_build_object('sqlstate', '22012', 'message', 'division by zero'))
        FROM generate_series(1, $1::integer) AS n";
    database.rows(sql, &[&count]).await;
}

async fn count(database: &Database, condition: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM mill.visible_notifications WHERE {condition}");
    database.value(&sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_task_reaches_a_webhook() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let config = webhooks(&[("ops", &receiver)]);
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "ops"})).await;
    let _worker = worker(&database, &config);
    let id = database.enqueue("SELECT 1/0", ", max_attempts => 1, name => 'load'").await;
    let received = receiver.until_received(1).await.remove(0);
    assert_eq!(received.path, "/hook");
    assert_eq!((&received.body["task_id"], &received.body["task"]), (&json!(id), &json!("load")));
    let notification = &received.body["notification_id"];
    let key = format!("idempotency-key: notification-{notification}\r\n");
    assert!(received.headers.contains(&key), "{received:?}");
    assert!(received.headers.contains("content-type: application/json"), "{received:?}");
    eventually("it is marked as sent", async || count(&database, "state = 'sent'").await == 1)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_down_gets_the_messages_when_it_is_up_again() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let config = webhooks(&[("ops", &receiver)]);
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "ops"})).await;
    let _worker = worker(&database, &config);
    receiver.answers("429 Too Many Requests\r\nretry-after: 3600");
    fail(&database, 1).await;
    let waits = "SELECT coalesce(max(retry_at) > now() + interval '50 minutes', false)
        FROM mill.subscription_state";
    eventually("the subscription waits as asked", async || database.value(waits).await).await;
    fail(&database, 2).await;
    let status: Value = serde_json::from_str(
        &Program::pgmill(&database, &["subscription", "show", "s", "--json"]).succeeds().await,
    )
    .unwrap();
    assert_eq!((&status["pending"], &status["failures"]), (&json!(3), &json!(1)), "{status}");
    assert_eq!(status["last_error"], "127.0.0.1 answered 429");
    receiver.answers("204 No Content");
    Program::pgmill(&database, &["notification", "retry"]).succeeds().await;
    eventually("all are sent", async || count(&database, "state = 'sent'").await == 3).await;
    assert_eq!(receiver.received().len(), 4);
    let failures = "SELECT failures FROM mill.subscription_state";
    assert_eq!(database.value::<i32>(failures).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_receiver_refuses_does_not_delay_others_and_ends_as_dead() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let config = webhooks(&[("ops", &receiver)]);
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "ops"})).await;
    receiver.answers("400 Bad Request");
    fail(&database, 1).await;
    database.execute("UPDATE mill.notifications SET attempts = 9").await;
    let _worker = worker(&database, &config);
    eventually("it is dead", async || count(&database, "state = 'dead'").await == 1).await;
    receiver.answers("200 OK");
    fail(&database, 1).await;
    eventually("the next one is sent", async || count(&database, "state = 'sent'").await == 1)
        .await;
    let listed = Program::pgmill(&database, &["notification", "list", "--state", "dead"]);
    let listed = listed.succeeds().await;
    assert!(listed.contains("127.0.0.1 answered 400"), "{listed}");
    Program::pgmill(&database, &["notification", "retry", "--subscription", "s"]).succeeds().await;
    eventually("both are sent", async || count(&database, "state = 'sent'").await == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_again_if_its_worker_dies_before_the_receiver_answers() {
    let database = Database::new().await;
    let (silent, receiver) = (Receiver::start().await, Receiver::start().await);
    silent.answers("");
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "ops"})).await;
    let (to_silent, to_receiver) = (webhooks(&[("ops", &silent)]), webhooks(&[("ops", &receiver)]));
    let mut first = worker(&database, &to_silent);
    fail(&database, 1).await;
    silent.until_received(1).await;
    first.kill();
    let _second = worker(&database, &to_receiver);
    // The claim expires after a minute.
    database.execute("UPDATE mill.notifications SET next_attempt_at = now()").await;
    receiver.until_received(1).await;
    eventually("it is marked as sent", async || count(&database, "state = 'sent'").await == 1)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_receiver_delays_only_its_own_subscription() {
    let database = Database::new().await;
    let (slow, fast) = (Receiver::start().await, Receiver::start().await);
    slow.answers("");
    let config = webhooks(&[("slow", &slow), ("fast", &fast)]);
    let events = json!(["task_failed"]);
    subscribe(&database, "slow", json!({"events": events, "destination": "slow"})).await;
    let _worker = worker(&database, &config);
    fail(&database, 1).await;
    slow.until_received(1).await;
    subscribe(&database, "fast", json!({"events": events, "destination": "fast"})).await;
    fail(&database, 3).await;
    fast.until_received(3).await;
    assert_eq!(slow.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_failures_are_all_counted_in_few_messages() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let config = webhooks(&[("ops", &receiver)]);
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "ops"})).await;
    let _workers = [worker(&database, &config), worker(&database, &config)];
    fail(&database, 1).await;
    receiver.until_received(1).await;
    for _ in 0..10 {
        fail(&database, 1000).await;
    }
    eventually("all are sent", async || {
        // The next period begins.
        database
            .execute("UPDATE mill.subscription_state SET window_started_at = NULL, retry_at = NULL")
            .await;
        count(&database, "state = 'sent'").await == 10_001
    })
    .await;
    let received = receiver.received();
    let of = |it: &Value| it["count"].as_i64().unwrap_or(1);
    assert_eq!(received.iter().map(|it| of(&it.body)).sum::<i64>(), 10_001);
    assert!(received.len() < 100, "{} messages", received.len());
    let digest = received.iter().find(|it| it.body["event"] == "digest").unwrap();
    let group = &digest.body["events"][0];
    assert_eq!((&group["event"], &group["sqlstate"]), (&json!("task_failed"), &json!("22012")));
    assert_eq!(group["count"], digest.body["count"]);
    assert_eq!(digest.body["samples"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn a_receiver_is_tried_again_after_seconds_unless_it_asks_for_more() {
    let database = Database::new().await;
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "ops"})).await;
    for (retry_after, least, most) in
        [("NULL", "2 s", "8 s"), ("'1 hour'", "1 hour", "1 hour"), ("'9 days'", "1 day", "1 day")]
    {
        database
            .execute(&format!(
                "UPDATE mill.subscription_state SET failures = 0;
                 SELECT mill.message_failed(s.id, gen_random_uuid(), '{{}}', 'answered 503', false, {retry_after})
                     FROM mill.subscriptions s"
            ))
            .await;
        let waits = format!(
            "SELECT retry_at - last_error_at BETWEEN interval '{least}' - interval '1 s' AND '{most}'
             FROM mill.subscription_state"
        );
        assert!(database.value::<bool>(&waits).await, "{retry_after}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rate_limits_messages_of_all_workers_together() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let config = webhooks(&[("ops", &receiver)]);
    let options = json!({"events": ["task_failed"], "destination": "ops", "rate_messages": 2,
        "rate_period": "1 hour"});
    subscribe(&database, "s", options).await;
    let _workers = [worker(&database, &config), worker(&database, &config)];
    for n in 1..=2 {
        fail(&database, 1).await;
        receiver.until_received(n).await;
    }
    fail(&database, 5).await;
    let waits = "SELECT coalesce(max(retry_at) > now() + interval '50 minutes', false)
        FROM mill.subscription_state";
    eventually("the subscription waits", async || database.value(waits).await).await;
    assert_eq!(receiver.received().len(), 2);
    database
        .execute("UPDATE mill.subscription_state SET window_started_at = NULL, retry_at = NULL")
        .await;
    let received = receiver.until_received(3).await;
    assert_eq!(received[2].body["count"], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_resolves_its_incident_although_a_digest_replaces_other_messages() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let key = TemporaryFile::new("R0UT1NG\n");
    let config = TemporaryFile::new(&format!(
        "[destinations.ops]\nkind = \"pagerduty\"\nurl = \"{}\"\nrouting_key_file = \"{}\"\n\
         allow_private = true\n",
        receiver.url("/"),
        key.path()
    ));
    let options = json!({"events": ["run_failed", "run_recovered"], "destination": "ops",
        "rate_messages": 3, "rate_period": "1 hour"});
    subscribe(&database, "s", options).await;
    for (event, details) in [("run_failed", "{}"), ("run_recovered", "{\"resolved\": true}")] {
        let sql = format!(
            "SELECT mill.notify('{event}', jsonb_build_object('run_id', n, 'jobs', jsonb_build_array('j' || n)),
                '{details}') FROM generate_series(1, 3) AS n"
        );
        database.execute(&sql).await;
    }
    let _worker = worker(&database, &config);
    receiver.until_received(3).await;
    let waits = "SELECT coalesce(max(retry_at) > now() + interval '50 minutes', false)
        FROM mill.subscription_state";
    eventually("the third recovery waits", async || database.value(waits).await).await;
    assert_eq!(receiver.received().len(), 3);
    database
        .execute("UPDATE mill.subscription_state SET window_started_at = NULL, retry_at = NULL")
        .await;
    let received = receiver.until_received(4).await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let actions: Vec<_> = received
        .iter()
        .map(|it| (text(&it.body["event_action"]), text(&it.body["dedup_key"])))
        .collect();
    let expected = [
        ("trigger", "pgmill s digest"),
        ("resolve", "pgmill s run j1"),
        ("resolve", "pgmill s run j2"),
        ("resolve", "pgmill s run j3"),
    ];
    assert_eq!(actions, expected.map(|(action, key)| (action.to_owned(), key.to_owned())));
    assert_eq!(received[0].body["payload"]["custom_details"]["count"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_no_worker_has_is_a_problem() {
    let database = Database::new().await;
    let receiver = Receiver::start().await;
    let config = webhooks(&[("ops", &receiver)]);
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "pager"})).await;
    let _worker = worker(&database, &config);
    let status = async || Program::pgmill(&database, &["status"]).succeeds().await;
    eventually("the worker is registered", async || {
        database.value::<i64>("SELECT count(*) FROM mill.workers").await == 1
    })
    .await;
    let problem = "no live worker has the destination pager of subscription s";
    assert!(status().await.contains(problem), "{}", status().await);
    let doctor = Program::pgmill(&database, &["doctor"]).run().await.1;
    assert!(doctor.contains("not delivered: s"), "{doctor}");
    subscribe(&database, "s", json!({"destination": "ops"})).await;
    assert!(!status().await.contains("destination"), "{}", status().await);
}

#[tokio::test]
async fn a_sender_whose_claim_has_expired_records_nothing() {
    let database = Database::new().await;
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "ops"})).await;
    fail(&database, 1).await;
    let claim = async || -> Vec<(i64, String, Vec<i64>)> {
        let sql = "SELECT subscription_id, message_id::text, ids FROM mill.claim_messages('{ops}', '{}', 9)";
        let rows = database.rows(sql, &[]).await;
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    };
    let sent = async |(subscription, message, ids): &(i64, String, Vec<i64>)| -> bool {
        let sql = "SELECT mill.message_sent($1, $2::text::uuid, $3)";
        database.rows(sql, &[subscription, message, ids]).await[0].get(0)
    };
    let first = claim().await.remove(0);
    assert!(claim().await.is_empty(), "a message that is being sent is claimed again");
    database.execute("UPDATE mill.notifications SET next_attempt_at = now()").await;
    let second = claim().await.remove(0);
    assert!(!sent(&first).await);
    assert_eq!(count(&database, "state = 'sent'").await, 0);
    assert!(sent(&second).await);
    assert_eq!(count(&database, "state = 'sent'").await, 1);
}
