//! An enqueue belongs to the caller's transaction, a key has one live task, and due tasks run.

pub(crate) mod wake_ups;

use std::collections::HashSet;

use futures_util::future::join_all;
use queue::enqueue::{NewTask, TaskOptions, enqueue, enqueue_many};
use queue::promote::promote;
use queue::{TaskId, task_defaults};
use serde_json::{Map, Value};
use terminal::span;

use crate::harness::{Database, Program, Worker};
use crate::project::tidy::root;

const TASKS: &str = "SELECT count(*) FROM mill.tasks";

fn task() -> NewTask {
    NewTask { statement: "SELECT 1".to_owned(), ..NewTask::default() }
}

#[tokio::test]
async fn an_enqueue_that_is_rolled_back_leaves_nothing() {
    let database = Database::new().await;
    let mut client = database.connect().await;
    let transaction = client.transaction().await.unwrap();
    let options = TaskOptions::default();
    enqueue(&transaction, &task(), &options, Some("k")).await.unwrap();
    enqueue_many(&transaction, &[task(), task()], &options).await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(database.value::<i64>(TASKS).await, 0);
    // The key is free again.
    assert!(enqueue(database.client(), &task(), &options, Some("k")).await.unwrap().created);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_enqueue_with_a_live_key_gets_the_first_task_until_that_one_ends() {
    let database = Database::new().await;
    let (client, options) = (database.client(), TaskOptions::default());
    let submit = async || enqueue(client, &task(), &options, Some("k")).await.unwrap();
    let first = submit().await;
    assert!(first.created);
    let second = submit().await;
    assert_eq!((second.id, second.created), (first.id, false));
    let same = database.enqueue("SELECT 'other'", ", key => 'k'").await;
    assert_eq!(TaskId(same), first.id);
    assert_eq!(database.value::<i64>(TASKS).await, 1);

    database.execute(&format!("SELECT mill.cancel({})", first.id)).await;
    let third = submit().await;
    assert!(third.created && third.id != first.id);
    let _worker = Worker::start_as_superuser(&database, "the task enqueues", &["--readers", "1"]);
    assert_eq!(database.outcome(third.id.0).await, "succeeded");
    let fourth = submit().await;
    assert!(fourth.created);
    assert_eq!(database.outcome(fourth.id.0).await, "succeeded");
    let failing = NewTask { statement: "SELECT 1 / 0".to_owned(), ..NewTask::default() };
    let once = TaskOptions { max_attempts: Some(1), ..TaskOptions::default() };
    let fifth = enqueue(client, &failing, &once, Some("k")).await.unwrap();
    assert_eq!(database.outcome(fifth.id.0).await, "failed");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.dedup_keys").await, 0);

    // A caller in SQL gets a notice that the task exists already.
    let live =
        database.enqueue("SELECT 1", ", key => 'k', due_at => now() + interval '1 day'").await;
    let ran = database.run("SELECT mill.enqueue('SELECT 2', key => 'k')", "").await;
    assert_eq!(ran.row(0), [live.to_string()]);
    let notice = format!("no task was submitted: task {live} with key \"k\" is live");
    assert_eq!(ran.notices[0]["message"], notice);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_enqueues_with_one_key_make_one_task() {
    let database = Database::new().await;
    let clients = join_all((0..16).map(|_| database.connect())).await;
    let options = TaskOptions::default();
    for round in 0..10 {
        let key = format!("k{round}");
        let submits = clients
            .iter()
            .map(async |client| enqueue(client, &task(), &options, Some(&key)).await.unwrap());
        let answers = join_all(submits).await;
        let ids: HashSet<TaskId> = answers.iter().map(|answer| answer.id).collect();
        assert_eq!((ids.len(), answers.iter().filter(|answer| answer.created).count()), (1, 1));
    }
    assert_eq!(database.value::<i64>(TASKS).await, 10);
}

#[tokio::test]
async fn a_key_of_a_rolled_back_enqueue_goes_to_the_waiting_one() {
    let database = Database::new().await;
    let (mut first, second) = (database.connect().await, database.connect().await);
    let options = TaskOptions::default();
    let transaction = first.transaction().await.unwrap();
    let gone = enqueue(&transaction, &task(), &options, Some("k")).await.unwrap();
    let (waited, ()) =
        futures_util::future::join(enqueue(&second, &task(), &options, Some("k")), async {
            database.until_a_session_waits_or("false").await;
            transaction.rollback().await.unwrap();
        })
        .await;
    let waited = waited.unwrap();
    assert!(waited.created && waited.id != gone.id);
}

#[tokio::test]
async fn due_tasks_are_promoted_and_others_are_not() {
    let database = Database::new().await;
    let at = async |due: &str| database.enqueue("SELECT 1", &format!(", due_at => {due}")).await;
    let past = at("now() - interval '1 hour'").await;
    let soon = at("now() + interval '1 hour'").await;
    let later = at("now() + interval '2 hours'").await;
    let state = async |id: i64| -> String {
        database.value(&format!("SELECT state::text FROM mill.tasks WHERE id = {id}")).await
    };
    assert_eq!(state(past).await, "pending", "a task that is already due does not wait");
    let promoted = promote(database.client()).await.unwrap();
    let wait = promoted.next_due_in.unwrap().as_secs();
    assert!(promoted.tasks == 0 && (3000..=3600).contains(&wait), "{promoted:?}");
    // The test moves the row in time, not the clock.
    database
        .execute(&format!(
            "UPDATE mill.tasks SET due_at = now() - interval '1 s' WHERE id = {soon}"
        ))
        .await;
    let promoted = promote(database.client()).await.unwrap();
    assert!(promoted.tasks == 1 && promoted.next_due_in.unwrap().as_secs() > 6000, "{promoted:?}");
    assert_eq!((state(soon).await, state(later).await), ("pending".into(), "scheduled".into()));
    // A task that is due at the end of the calendar does not delay other tasks.
    at("'9999-12-30'").await;
    promote(database.client()).await.unwrap();
}

#[tokio::test]
async fn a_worker_starts_a_due_task_and_leaves_one_alone_that_is_not_due() {
    let database = Database::new().await;
    let later = database.enqueue("SELECT 1", ", due_at => now() + interval '1 hour'").await;
    let soon = database.enqueue("SELECT 1", ", due_at => now() + interval '200 ms'").await;
    let _worker = Worker::start(&database, &["--poll-interval", "50ms"]);
    assert_eq!(database.outcome(soon).await, "succeeded");
    let left = "SELECT array_agg(id || ' ' || state) FROM mill.tasks";
    assert_eq!(database.value::<Vec<String>>(left).await, [format!("{later} scheduled")]);
}

#[tokio::test]
async fn many_tasks_keep_their_order_and_lists_of_different_length_are_refused() {
    let database = Database::new().await;
    let tasks: Vec<NewTask> = (0..500)
        .map(|n| NewTask {
            statement: format!("SELECT {n}"),
            params: (n % 2 == 0).then(|| vec![n.into()]),
            name: (n % 3 == 0).then(|| format!("name {n}")),
        })
        .collect();
    let ids = enqueue_many(database.client(), &tasks, &TaskOptions::default()).await.unwrap();
    assert!(ids.is_sorted() && ids.len() == tasks.len());
    let rows =
        database.rows("SELECT id, statement, params, name FROM mill.tasks ORDER BY id", &[]).await;
    for ((row, id), task) in rows.iter().zip(&ids).zip(&tasks) {
        let params: Option<Value> = row.get(2);
        assert_eq!((row.get::<_, i64>(0), row.get::<_, String>(1)), (id.0, task.statement.clone()));
        assert_eq!(params, task.params.clone().map(Value::Array));
        assert_eq!(row.get::<_, Option<String>>(3), task.name);
    }
    for lists in ["params => ARRAY['[]'::jsonb]", "names => ARRAY['a', 'b', 'c']"] {
        let sql = format!("SELECT mill.enqueue_many(ARRAY['SELECT 1', 'SELECT 2'], {lists})");
        let error = database.client().batch_execute(&sql).await.expect_err(&sql);
        assert_eq!(error.code().map(tokio_postgres::error::SqlState::code), Some("22023"), "{sql}");
    }
    // One invalid task refuses the whole call.
    let sql = "SELECT mill.enqueue_many(ARRAY['SELECT 1', ' ', 'SELECT 2'])";
    assert!(database.client().batch_execute(sql).await.is_err());
    assert_eq!(database.value::<i64>(TASKS).await, 500);
}

/// Named arguments of `mill.enqueue` and `mill.enqueue_many`, and the columns and options that only a task with them has.
const NAMED: [(&str, &str); 5] = [
    ("queue => 'q', priority => 'high'", r#"{"queue": "q", "priority": "high"}"#),
    (
        "group_name => 'g', run_id => 7, concurrency_key => 'k', concurrency => 2",
        // The limits do not exist yet: that of the key, with its maximum, and that of the group.
        r#"{"group_name": "g", "run_id": 7, "concurrency_key": "k", "state": "blocked", "limits": [-2, 0],
            "blocking_limit_id": -2}"#,
    ),
    (
        "max_attempts => 5, retry_interval => '7 s', backoff => 'fixed', jitter => false, timeout => '1 min'",
        r#"{"options": {"max_attempts": 5, "retry_interval": "00:00:07", "backoff": "fixed", "jitter": false,
            "timeout": "00:01:00"}}"#,
    ),
    (
        "mode => 'autocommit', at_most_once => true, external => true",
        r#"{"options": {"mode": "autocommit", "at_most_once": true, "external": true}}"#,
    ),
    (
        r#"explain => true, options => '{"tags": ["etl"], "isolation": "serializable"}'"#,
        r#"{"options": {"explain": true, "tags": ["etl"], "isolation": "serializable"}}"#,
    ),
];

#[tokio::test]
async fn one_and_many_tasks_have_the_same_named_options() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_group('g', max_running => 1)").await;
    let row = async |call: &str| -> Map<String, Value> {
        let id: i64 = database.value(call).await;
        let row = format!(
            "SELECT jsonb_strip_nulls(to_jsonb(t) - '{{id,enqueued_at}}'::text[])
             FROM mill.tasks t WHERE t.id = {id}"
        );
        serde_json::from_value(database.value(&row).await).unwrap()
    };
    // Otherwise, the tasks would be due at the times of the calls.
    let due = "due_at => '2026-01-01'";
    let plain = row(&format!("SELECT mill.enqueue('SELECT 1', {due})")).await;
    for (arguments, stored) in NAMED {
        let one = row(&format!("SELECT mill.enqueue('SELECT 1', {due}, {arguments})")).await;
        let many = format!("SELECT mill.enqueue_many(ARRAY['SELECT 1'], {due}, {arguments})");
        assert_eq!(one, row(&many).await, "{arguments}");
        let mut expected = plain.clone();
        expected.extend(serde_json::from_str::<Map<String, Value>>(stored).unwrap());
        assert_eq!(one, expected, "{arguments}");
    }
}

#[tokio::test]
async fn a_statement_that_is_longer_than_a_json_string_can_be_is_retried() {
    let database = Database::new().await;
    database.execute("UPDATE mill.settings SET statement_limit_bytes = 536870912").await;
    database
        .execute("SELECT mill.cancel(mill.enqueue('SELECT 1 --' || repeat('x', 270000000)))")
        .await;
    database.execute("SELECT mill.retry(task_id) FROM mill.attempts").await;
    let bytes = "SELECT octet_length(statement) FROM mill.tasks";
    assert_eq!(database.value::<i32>(bytes).await, 270_000_011);
}

/// The schema applies the defaults that the help and docs/enqueue.md state, with and without a client.
#[tokio::test]
async fn defaults_in_help_and_docs_are_those_of_the_schema() {
    let database = Database::new().await;
    let by_sql = database.enqueue("SELECT 1", ", concurrency_key => 'sql'").await;
    let options =
        TaskOptions { concurrency_key: Some("client".to_owned()), ..TaskOptions::default() };
    let by_client = enqueue(database.client(), &task(), &options, None).await.unwrap().id;
    let interval = span(task_defaults::RETRY_INTERVAL.as_secs_f64());
    let expected = [
        ("queue", task_defaults::QUEUE.to_owned()),
        ("priority", task_defaults::PRIORITY.to_string()),
        ("max-attempts", task_defaults::MAX_ATTEMPTS.to_string()),
        ("retry-interval", interval),
        ("backoff", task_defaults::BACKOFF.to_string()),
        ("jitter", task_defaults::JITTER.to_string()),
        ("mode", task_defaults::MODE.to_string()),
        ("concurrency", task_defaults::CONCURRENCY.to_string()),
    ];
    database.execute("SELECT mill.grant_waiting_permits()").await;
    for (id, key) in [(TaskId(by_sql), "sql"), (by_client, "client")] {
        let sql = "SELECT t.queue::text, t.priority::text, t.max_attempts::text,
                extract(epoch FROM t.retry_interval)::float8, t.backoff::text, t.jitter::text,
                t.mode::text, (SELECT l.max_running::text FROM mill.limits l WHERE l.name = $2)
            FROM mill.visible_tasks t WHERE t.id = $1";
        let row = &database.rows(sql, &[&id.0, &key]).await[0];
        for (index, (option, default)) in expected.iter().enumerate() {
            let found = match *option {
                "retry-interval" => span(row.get(index)),
                _ => row.get(index),
            };
            assert_eq!(&found, default, "{option} of the task by {key}");
        }
    }
    let without = "SELECT bool_and(options IS NOT DISTINCT FROM NULL) FROM mill.tasks";
    assert!(database.value::<bool>(without).await, "defaults are not stored");
    let page = std::fs::read_to_string(root().join("docs/enqueue.md")).unwrap();
    let help = Program::enqueue(&database, &["--help"]).succeeds().await;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for (option, default) in expected {
        let line = page.lines().find(|line| line.starts_with(&format!("| `--{option}`")));
        let cell = line.unwrap().trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
        let cell = cell.replace(['`', ' '], "");
        let cell = if cell == "on" || cell.ends_with("elseon") { "true".to_owned() } else { cell };
        assert!(cell.ends_with(&default), "{option}: {cell} in docs/enqueue.md, {default}");
        let flag = [" <", "[="].map(|value| help.split_once(&format!("--{option}{value}")));
        let (_, description) = flag.into_iter().flatten().next().unwrap();
        let shown = description.split_once("[default: ").unwrap().1.split(']').next().unwrap();
        assert!(shown.ends_with(&default), "{option}: {shown} in the help, {default}");
    }
}

#[tokio::test]
async fn a_task_that_waits_for_its_retry_keeps_its_key() {
    let database = Database::new().await;
    let fail = async |verdict: &str| {
        database.run_as_worker("true").await;
        let sql = format!(
            "SELECT mill.fail(id, token, 'failed', '{verdict}', '0', '{{}}') FROM mill.tasks WHERE state = 'running'"
        );
        database.execute(&sql).await;
    };
    let first = database.enqueue("SELECT 1", ", key => 'k'").await;
    fail("failure").await;
    assert_eq!(database.enqueue("SELECT 1", ", key => 'k'").await, first);
    fail("final").await;
    let second = database.enqueue("SELECT 1", ", key => 'k'").await;
    assert_ne!(second, first);
    // Two live tasks would have the key.
    let retried = database.client().batch_execute(&format!("SELECT mill.retry({first})")).await;
    let refused = retried.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "23505");
    assert_eq!(database.value::<i64>(TASKS).await, 1);
}

#[tokio::test]
async fn a_caller_without_standard_conforming_strings_gets_the_same_answers() {
    let database = Database::new().await;
    database.execute("SELECT mill.set_profile('etl', allowed => ARRAY[current_user])").await;
    let client = database.connect().await;
    // Functions are parsed in each session anew, with its settings.
    client.batch_execute("SET standard_conforming_strings = off").await.unwrap();
    let accepted = [
        "SELECT mill.enqueue('S')",
        "SELECT mill.enqueue('select 1')",
        "SELECT mill.enqueue_many(ARRAY['select 1', 'select 2'])",
        "SELECT mill.enqueue('(/* a */ select 1)', explain => true)",
        "SELECT mill.why(1)",
    ];
    for sql in accepted {
        client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    let refused = client.batch_execute("SELECT mill.enqueue(E' \\n\\t')").await.unwrap_err();
    assert_eq!(refused.as_db_error().unwrap().message(), "the statement is empty");
    let same = "SELECT mill.message_pattern($$key 'a' of 5f0c1f4e-0b6c-4d5e-9d0e-000000000001 is 7$$)
            = $$key '…' of # is #$$
        AND mill.called_routine('CALL app.load(1)') = 'app.load'
        AND mill.called_routine('CALL appxload(1)') IS NULL AND mill.called_routine('CALL app.load') IS NULL
        AND mill.called_routine($$SELECT app.load($1::int[])$$) = 'app.load'";
    assert!(client.query_one(same, &[]).await.unwrap().get::<_, bool>(0));
}

/// The server or a proxy may send such an error in place of the answer, after the commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_submission_during_which_the_session_was_terminated_is_in_doubt() {
    let database = Database::new().await;
    let holder = database.connect().await;
    holder.batch_execute("BEGIN; LOCK TABLE mill.tasks").await.unwrap();
    let terminated = async {
        database.until_a_session_waits_or("false").await;
        let pid: i32 = database
            .value(
                "SELECT pid FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'",
            )
            .await;
        database.execute(&format!("SELECT pg_terminate_backend({pid})")).await;
    };
    let submitted = Program::enqueue(&database, &["SELECT 1"]).run();
    let ((code, _, reported), ()) = tokio::join!(submitted, terminated);
    assert!(reported.contains("(57P01)"), "{reported}");
    assert!(code == 1 && reported.contains("not known whether the task was"), "{code} {reported}");
}
