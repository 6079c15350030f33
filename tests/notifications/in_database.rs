//! Messages to channels and as tasks: exactly once.

use serde_json::{Value, json};

use crate::harness::{Database, Fleet, Worker, eventually};
use crate::notifications::events::{documents, subscribe};
use crate::notifications::listener::Listener;
use crate::runs::run::FLAGS;

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_gets_the_document_and_a_long_one_without_its_texts() {
    let database = Database::new().await;
    let mut payloads = Listener::start(&database, "events").await;
    subscribe(&database, "tasks", json!({"events": ["task_failed"]})).await;
    let _worker = Worker::start(&database, &FLAGS);
    let id = database.enqueue("SELECT 1/0", ", max_attempts => 1").await;
    let payload: Value = serde_json::from_str(&payloads.next().await).unwrap();
    assert_eq!((&payload["event"], &payload["task_id"]), (&json!("task_failed"), &json!(id)));
    assert!(payload["message_id"].is_string());
    let long = "SELECT mill.notify('task_failed', '{\"task_id\": 7}',
        jsonb_build_object('message', repeat('é', 6000)))";
    database.execute(long).await;
    let payload = payloads.next().await;
    assert!(payload.len() < 8000, "{payload}");
    let payload: Value = serde_json::from_str(&payload).unwrap();
    assert_eq!((&payload["task_id"], &payload["truncated"]), (&json!(7), &json!(true)));
    // No key of a document may be so long that its notification keeps the next ones waiting.
    for key in ["note", "reason", "other"] {
        let long = format!(
            "SELECT mill.notify('task_failed', '{{\"task_id\": 8}}',
                jsonb_build_object('{key}', repeat('é', 6000)))"
        );
        database.execute(&long).await;
        let unsent = "SELECT count(*) FROM mill.notifications WHERE sent_at IS NULL";
        eventually(key, async || database.value::<i64>(unsent).await == 0).await;
        let payload = payloads.next().await;
        assert!(payload.len() < 8000, "{payload}");
        let payload: Value = serde_json::from_str(&payload).unwrap();
        assert_eq!((&payload["task_id"], &payload["truncated"]), (&json!(8), &json!(true)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_becomes_exactly_one_task_while_workers_die() {
    let database = Database::new().await;
    database.execute("CREATE TABLE handled (message_id uuid, task_id bigint)").await;
    let statement = "INSERT INTO handled
        SELECT ($1::jsonb->>'message_id')::uuid, ($1::jsonb->>'task_id')::bigint";
    let options =
        json!({"events": ["task_failed"], "statement": statement, "task_queue": "handlers"});
    subscribe(&database, "on_failure", options).await;
    let mut fleet = Fleet::start(&database, 2, &FLAGS);
    let count = 300_i64;
    for n in 0..count {
        database.enqueue("SELECT 1/0", ", max_attempts => 1").await;
        if n % 100 == 50 {
            fleet.replace(usize::try_from(n).unwrap() % fleet.len());
        }
    }
    eventually("every failure is handled", async || {
        database.value::<i64>("SELECT count(DISTINCT task_id) FROM handled").await == count
    })
    .await;
    database.until_empty().await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM handled").await, count);
    let queues = "SELECT count(DISTINCT task_id) FROM mill.attempts WHERE queue = 'handlers'";
    assert_eq!(database.value::<i64>(queues).await, count);
}

/// Otherwise the failure would enqueue the next task, without end.
#[tokio::test(flavor = "multi_thread")]
async fn the_failure_of_a_task_of_a_subscription_starts_no_further_task() {
    let database = Database::new().await;
    let options =
        json!({"events": ["attempt_failed", "task_failed"], "statement": "SELECT $1::jsonb, 1/0"});
    subscribe(&database, "on_failure", options).await;
    subscribe(&database, "others", json!({"events": ["task_failed"]})).await;
    let _worker = Worker::start(&database, &FLAGS);
    database.enqueue("SELECT 1/0", ", max_attempts => 1").await;
    let notified = "SELECT count(*) FROM mill.visible_notifications WHERE subscription = ";
    eventually("both failures are reported to the other subscription", async || {
        // The task of the subscription is retried at once, because the test moves the row in time.
        database.execute("UPDATE mill.tasks SET due_at = now() WHERE state = 'scheduled'").await;
        database.value::<i64>(&format!("{notified} 'others'")).await == 2
    })
    .await;
    assert_eq!(database.value::<i64>(&format!("{notified} 'on_failure'")).await, 1);
}

#[tokio::test]
async fn notifications_are_delivered_after_the_clock_was_set_back() {
    let database = Database::new().await;
    let due = "SELECT mill.notifications_due('{}')";
    let deliver = "SELECT coalesce(sum(messages), 0)::bigint FROM mill.deliver_in_database()";
    subscribe(&database, "s", json!({"events": ["task_failed"]})).await;
    // The test moves the times in the rows instead of the clock, which has the same effect.
    let notified = "SELECT mill.notify('task_failed', '{\"task_id\": 7}', '{}');
        UPDATE mill.notifications SET next_attempt_at = next_attempt_at + interval '5 hours'";
    let retry = "UPDATE mill.notifications SET attempts = 2, sent_at = NULL,
        next_attempt_at = now() + interval '5 hours'";
    let failed = "UPDATE mill.subscription_state SET last_error_at = now() + interval '5 hours',
            retry_at = now() + interval '5 hours', failures = 1;
        UPDATE mill.notifications SET attempts = 0, sent_at = NULL";
    for before in [notified, retry, failed] {
        database.execute(before).await;
        assert!(database.value::<bool>(due).await, "{before}");
        assert_eq!(database.value::<i64>(deliver).await, 1, "{before}");
    }
}

#[tokio::test]
async fn a_rate_of_messages_begins_its_window_again_after_the_clock_was_set_back() {
    let database = Database::new().await;
    let options = json!({"events": ["task_failed"], "rate_messages": 1, "rate_period": "1 hour"});
    subscribe(&database, "s", options).await;
    database
        .execute(
            "SELECT mill.notify('task_failed', '{\"task_id\": 7}', '{}') FROM generate_series(1, 2);
             UPDATE mill.subscription_state SET window_started_at = now() + interval '5 hours',
                 window_messages = 1, retry_at = now() + interval '6 hours';
             SELECT mill.deliver_in_database()",
        )
        .await;
    let waits = "SELECT count(*) FROM mill.subscription_state
        WHERE window_started_at <= now() AND retry_at <= now() + interval '1 hour'";
    assert_eq!(database.value::<i64>(waits).await, 1);
    assert!(!database.value::<bool>("SELECT mill.notifications_due('{}')").await);
}

#[tokio::test]
async fn a_failed_delivery_waits_although_a_window_began_before_the_clock_was_set_back() {
    let database = Database::new().await;
    let options = json!({"events": ["task_failed"], "rate_messages": 1, "rate_period": "1 hour"});
    subscribe(&database, "s", options).await;
    let waits =
        "SELECT NOT mill.notifications_due('{}') AND retry_at > now() FROM mill.subscription_state";
    database
        .execute(
            "SELECT mill.notify('task_failed', '{\"task_id\": 7}', '{}');
             UPDATE mill.subscription_state SET window_started_at = now() + interval '5 hours', failures = 20;
             ALTER FUNCTION mill.deliver RENAME TO delivers;
             SELECT mill.deliver_in_database()",
        )
        .await;
    assert!(database.value::<bool>(waits).await);
    // Without a rate, nothing begins a window again.
    database
        .execute(
            "UPDATE mill.subscriptions SET rate_messages = NULL, rate_period = NULL;
             UPDATE mill.subscription_state SET window_started_at = now() + interval '5 hours'",
        )
        .await;
    assert!(database.value::<bool>(waits).await);
}

#[tokio::test]
async fn backlogs_are_checked_after_the_clock_was_set_back() {
    let database = Database::new().await;
    subscribe(&database, "s", json!({"events": ["queue_backlog"], "min_pending": 1})).await;
    database
        .execute(
            "SELECT mill.enqueue('SELECT 1');
             UPDATE mill.subscription_state SET backlog_checked_at = now() + interval '5 hours'",
        )
        .await;
    assert!(database.value::<bool>("SELECT mill.notifications_due('{}')").await);
    assert_eq!(database.value::<i32>("SELECT mill.check_backlogs()").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steady_flow_of_notifications_does_not_stop_the_check_of_backlogs() {
    let database = Database::new().await;
    subscribe(&database, "flow", json!({"events": ["task_failed"]})).await;
    subscribe(&database, "backlog", json!({"events": ["queue_backlog"], "min_pending": 3})).await;
    // Each delivery causes the next notification.
    database
        .execute(
            "CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO mill.notifications (subscription_id, event, document)
                 VALUES (NEW.subscription_id, NEW.event, NEW.document);
                 RETURN NULL;
             END $$;
             CREATE TRIGGER again AFTER UPDATE ON mill.notifications FOR EACH ROW
                 WHEN (OLD.sent_at IS NULL AND NEW.sent_at IS NOT NULL AND NEW.event = 'task_failed')
                 EXECUTE FUNCTION again();
             SELECT mill.notify('task_failed', '{\"task_id\": 7}')",
        )
        .await;
    let _worker = Worker::start(&database, &FLAGS);
    let sent = "SELECT count(*) FROM mill.notifications WHERE sent_at IS NOT NULL";
    eventually("notifications flow", async || database.value::<i64>(sent).await > 20).await;
    database
        .execute(
            "SELECT mill.pause('etl');
             SELECT mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[3]), queue => 'etl');
             UPDATE mill.subscription_state SET backlog_checked_at = NULL",
        )
        .await;
    eventually("the backlog is reported", async || {
        documents(&database, "backlog").await.len() == 1
    })
    .await;
}

#[tokio::test]
async fn a_task_whose_profile_is_gone_is_not_enqueued_without_it() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_profile('etl', allowed => ARRAY[current_user])").await;
    let options = json!({"events": ["task_failed"], "statement": "SELECT $1", "run_as": "etl"});
    subscribe(&database, "s", options).await;
    // As mill.drop_profile of an older version has left it.
    database
        .execute(
            "DELETE FROM mill.profiles;
             SELECT mill.notify('task_failed', '{\"task_id\": 7}', '{}');
             SELECT mill.deliver_in_database()",
        )
        .await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 0);
    let error = "SELECT last_error FROM mill.subscription_state";
    assert_eq!(
        database.value::<String>(error).await,
        "there is no profile \"etl\" that a role may use"
    );
    database
        .execute(
            "SELECT mill.set_profile('etl', allowed => ARRAY[current_user]);
             UPDATE mill.subscription_state SET retry_at = NULL;
             SELECT mill.deliver_in_database()",
        )
        .await;
    assert_eq!(database.value::<String>("SELECT run_as::text FROM mill.tasks").await, "etl");
}

#[tokio::test]
async fn a_profile_of_a_subscription_or_of_a_run_in_progress_is_not_removed() {
    let database = Database::new().await;
    let refused = async |user: &str| {
        for (sql, cannot) in [
            ("SELECT mill.drop_profile('etl')", ""),
            ("SELECT mill.set_target('etl')", " and cannot become a target"),
        ] {
            let error = database.client().batch_execute(sql).await.unwrap_err();
            let wanted = format!("profile \"etl\" is used by {user}{cannot}");
            assert_eq!(error.as_db_error().unwrap().message(), wanted);
        }
    };
    database.execute("SELECT mill.set_profile('etl', allowed => ARRAY[current_user])").await;
    let options = json!({"events": ["task_failed"], "statement": "SELECT $1", "run_as": "etl"});
    subscribe(&database, "s", options).await;
    refused("subscription \"s\"").await;
    database
        .execute(
            r#"SELECT mill.set_subscription('s', '{"run_as": null}');
               SELECT mill.set_job('j', '[{"name": "a", "statement": "SELECT 1"},
                   {"name": "b", "statement": "SELECT 1", "run_as": "etl", "after": ["a"]}]');
               SELECT mill.start_run('{j}');
               SELECT mill.set_job('j', '[{"name": "a", "statement": "SELECT 1"}]')"#,
        )
        .await;
    refused("task \"b\" of run 1").await;
    database.execute("SELECT mill.cancel_run(1)").await;
    assert!(database.value::<bool>("SELECT mill.drop_profile('etl')").await);
}

/// Returns how many blocks a check of all backlogs reads, as the fewest of 30 calls, each rolled back.
async fn blocks_of_a_check(database: &Database) -> i64 {
    let mut fewest = i64::MAX;
    for _ in 0..30 {
        database.execute("BEGIN").await;
        let blocks = database.blocks_of("SELECT mill.check_backlogs()").await;
        fewest = fewest.min(blocks);
        database.execute("ROLLBACK").await;
    }
    fewest
}

#[tokio::test]
async fn a_check_of_the_backlog_of_one_queue_reads_no_other_queue() {
    let database = Database::new().await;
    database.execute("ALTER TABLE mill.tasks SET (autovacuum_enabled = off)").await;
    let options = json!({"events": ["queue_backlog"], "queue": "z", "min_pending": 100});
    subscribe(&database, "s", options).await;
    let enqueue = |queue| {
        format!(
            "SELECT mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[20000]),
                    queue => '{queue}')"
        )
    };
    database.execute("SELECT mill.enqueue('SELECT 1', queue => 'm')").await;
    let alone = blocks_of_a_check(&database).await;
    for queue in ["a", "zz"] {
        database.execute(&enqueue(queue)).await;
    }
    let among_others = blocks_of_a_check(&database).await;
    println!("blocks of a check: {alone}, and {among_others} with 40,000 tasks of other queues");
    assert!(among_others <= alone + 10, "{among_others} blocks, and {alone} without other tasks");
    let counted = async |queue: &str| {
        let count = format!("SELECT sum(pending)::bigint FROM mill.pending_by_queue({queue}, 500)");
        database.value::<Option<i64>>(&count).await
    };
    let found = [counted("NULL").await, counted("'a'").await, counted("'m'").await];
    assert_eq!(found, [Some(1001), Some(500), Some(1)]);
    assert_eq!([counted("'b'").await, counted("'zzz'").await], [None, None]);
}

#[tokio::test]
async fn subscriptions_with_the_same_filter_share_one_count_and_are_reported_apart() {
    let database = Database::new().await;
    for n in 0..50 {
        let options = json!({"events": ["queue_backlog"], "min_pending": 1 + n % 5});
        subscribe(&database, &format!("s{n}"), options).await;
    }
    database
        .execute(
            "SELECT mill.enqueue('SELECT 1', queue => 'q' || g) FROM generate_series(1, 100) AS g;
             SELECT mill.enqueue('SELECT 1', queue => 'q1') FROM generate_series(1, 2)",
        )
        .await;
    database.execute("BEGIN").await;
    let before = "SELECT pg_stat_get_xact_numscans('mill.tasks_pending'::regclass)";
    let unread: i64 = database.value(before).await;
    // q1 has three tasks, the other 99 queues one.
    let expected = 10 * (100 + 1 + 1);
    assert_eq!(database.value::<i32>("SELECT mill.check_backlogs()").await, expected);
    let scans = database.value::<i64>(before).await - unread;
    database.execute("COMMIT").await;
    println!("scans of an index of 100 lanes for 50 subscriptions: {scans}");
    assert!(scans < 400, "{scans} scans");
    database
        .execute(
            "SELECT mill.cancel(id) FROM mill.tasks WHERE queue = 'q1';
             UPDATE mill.subscription_state SET backlog_checked_at = NULL",
        )
        .await;
    assert_eq!(database.value::<i32>("SELECT mill.check_backlogs()").await, 30);
    let resolved = "SELECT count(*) FROM mill.notifications
        WHERE document->>'queue' = 'q1' AND (document->>'resolved')::boolean";
    assert_eq!(database.value::<i64>(resolved).await, 30);
}
