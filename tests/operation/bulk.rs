//! Actions on many tasks: `pgmill task cancel`, `pgmill task retry` and `pgmill task set`.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio_postgres::error::SqlState;

use crate::harness::terminal::Terminal;
use crate::harness::{Database, Program, Worker, claim_as_worker};
use crate::runs::run::{FLAGS, end, job, start};

/// Runs `pgmill task … --json` and returns the exit code and the document.
async fn act(database: &Database, arguments: &[&str]) -> (i32, Value) {
    let arguments = [&["task"], arguments, &["--json"]].concat();
    let (code, stdout, stderr) = Program::pgmill(database, &arguments).run().await;
    (code, serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_has_the_results_of_the_act_and_changes_nothing() {
    let database = Database::new().await;
    let tasks = json!([{"name": "check payments", "statement": "SELECT 1 / 0", "max_attempts": 1}]);
    job(&database, "daily", tasks).await;
    let mut worker = Worker::start(&database, &FLAGS);
    let run = start(&database, "daily").await;
    assert_eq!(end(&database, run).await, "failed");
    let of_run: i64 = database.value("SELECT task_id FROM mill.attempts").await;
    let mut ids = vec![of_run];
    // The second task with the key can be submitted when the first one has ended. Of the two, only
    // one can be retried.
    for key in ["", ", key => 'k'", ", key => 'k'"] {
        let id = database.enqueue("SELECT 1 / 0", &format!(", max_attempts => 1{key}")).await;
        assert_eq!(database.outcome(id).await, "failed");
        ids.push(id);
    }
    assert!(worker.terminate().await.success());
    ids.push(database.enqueue("SELECT 1", ", due_at => now() + interval '1 day'").await);
    ids.push(999_999);
    let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();

    for (verb, results) in [
        ("retry", ["retried", "retried", "retried", "refused", "brought_forward", "not_found"]),
        ("cancel", ["cancelled", "cancelled", "cancelled", "finished", "cancelled", "not_found"]),
    ] {
        let live = "SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY id), '[]') FROM mill.tasks t";
        let before: Value = database.value(live).await;
        let arguments = [&[verb], &ids[..]].concat();
        let (code, mut dry) = act(&database, &[&arguments[..], &["--dry-run"]].concat()).await;
        assert_eq!(database.value::<Value>(live).await, before, "{verb}");
        let (code_of_act, done) = act(&database, &arguments).await;
        let found = done["tasks"].as_array().unwrap().iter().map(|task| &task["result"]);
        assert!(found.eq(results.iter()), "{verb}: {done}");
        dry["dry_run"] = json!(false);
        assert_eq!((code, dry), (code_of_act, done), "{verb}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_action_reports_what_it_has_done() {
    let database = Database::new().await;
    database.enqueue_many(1200, "SELECT 1").await;
    // The second chunk of 500 tasks waits for this lock.
    let mut session = database.connect().await;
    let lock = session.transaction().await.unwrap();
    lock.execute("SELECT FROM mill.tasks WHERE id = 600 FOR UPDATE", &[]).await.unwrap();
    let cancel = ["task", "cancel", "--queue", "default", "--yes"];
    let mut terminal = Terminal::start(Program::pgmill(&database, &cancel).into_command());
    terminal.until_shown("500/1200 tasks").await;
    kill_process(Pid::from_raw(terminal.pid().cast_signed()).unwrap(), Signal::INT).unwrap();
    terminal.until_shown("interrupted, finishing").await;
    lock.rollback().await.unwrap();
    assert_eq!(terminal.ended().await.code(), Some(130));
    let text = terminal.text();
    assert!(text.contains("1000 tasks: 1000 cancelled\ninterrupted: the other tasks"), "{text}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 200);
}

/// Returns the live tasks without what a retry sets anew.
async fn live_tasks(database: &Database) -> Value {
    database
        .value("SELECT jsonb_agg(to_jsonb(t) - ARRAY['due_at'] ORDER BY id) FROM mill.tasks t")
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_are_cancelled_and_retried_as_single_ones_are() {
    let database = Database::new().await;
    database.enqueue_many(120, "SELECT 1").await;
    database
        .execute(
            r#"SELECT mill.enqueue('SELECT 2', '[7]', name => 'a "name"', queue => 'other', key => 'k',
                   concurrency_key => 'c', retry_interval => '3 seconds',
                   options => '{"tags": ["etl"], "metadata": {"owner": "bi"}}');
               SELECT mill.enqueue('SELECT 3', max_attempts => 7, timeout => '1 minute',
                   options => '{"tags": ["etl"]}')"#,
        )
        .await;
    let enqueued = live_tasks(&database).await;

    let (code, cancelled) = act(&database, &["cancel", "--name", "*", "--yes"]).await;
    let (code_of_unnamed, rest) = act(&database, &["cancel", "--queue", "default", "--yes"]).await;
    assert_eq!((code, code_of_unnamed), (0, 0));
    assert_eq!(
        (&cancelled["counts"], &rest["counts"]),
        (&json!({"cancelled": 1}), &json!({"cancelled": 121}),)
    );
    let outcomes: Value = database
        .value(
            "SELECT jsonb_agg(DISTINCT jsonb_build_array(outcome, final, message, started_at))
             FROM mill.attempts",
        )
        .await;
    let message = "cancelled by mill_test_operator before it was claimed";
    assert_eq!(outcomes, json!([["cancelled", true, message, null]]));

    let (code, retried) = act(&database, &["retry", "--outcome", "cancelled", "--yes"]).await;
    assert_eq!((code, &retried["counts"]), (0, &json!({"retried": 122})));
    // A subtransaction for each statement, not for each task.
    let subtransactions: i64 =
        database.value("SELECT count(DISTINCT xmin::text) FROM mill.audit").await;
    assert!(subtransactions < 10, "{subtransactions} subtransactions");
    assert_eq!(live_tasks(&database).await, enqueued);
    let audited: Value = database
        .value(
            "SELECT jsonb_agg(jsonb_build_array(action, n) ORDER BY action) FROM (
                 SELECT action, count(DISTINCT subject) AS n FROM mill.audit GROUP BY action) AS a",
        )
        .await;
    assert_eq!(audited, json!([["cancel", 122], ["retry", 122]]));
}

/// Returns SQL that claims the task as a worker does, and ends its attempt.
fn run_and(id: i64, end: &str) -> String {
    let claim = claim_as_worker(&format!("id = {id}"));
    format!(
        "SELECT mill.grant_waiting_permits(); {claim}; SELECT {end} FROM mill.tasks WHERE id = {id}"
    )
}

/// Ends a running task.
const FAIL: &str = "mill.fail(id, token, 'failed', 'final', '0', '{}')";
const TIME_OUT: &str = "mill.fail(id, token, 'timed_out', 'final', '0', '{}')";
const SUCCEED: &str = "mill.complete(ARRAY[id], ARRAY[token]::uuid[], pg_current_xact_id(), NULL, ARRAY[1]::bigint[], ARRAY[NULL]::jsonb[])";

/// Enqueues tasks with these options, in which `#` stands for the number of the task. Each of them fails.
async fn failed_tasks(database: &Database, count: usize, options: &str) -> Vec<i64> {
    let mut ids = Vec::new();
    for n in 0..count {
        let id = database.enqueue("SELECT 1", &options.replace('#', &n.to_string())).await;
        database.execute(&run_and(id, FAIL)).await;
        ids.push(id);
    }
    ids
}

/// Returns the results of a call, as [`Database::rows_after`] does.
async fn results_after(
    database: &Database,
    locks: &str,
    call: &str,
    meanwhile: &str,
) -> Vec<String> {
    let rows = database.rows_after(locks, call, meanwhile).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

const RETRIES: &str = "SELECT string_agg(subject, ',' ORDER BY id) FROM mill.audit
    WHERE action = 'retry' AND detail->>'result' = 'retried'";

#[tokio::test]
async fn a_task_that_another_retry_has_run_meanwhile_does_not_run_again_as_failed() {
    for options in ["", ", key => 'k'", ", concurrency_key => 'c'"] {
        for (call, result, live) in [
            ("SELECT result FROM mill.retry_many('{1}', 'failed')", "changed", json!([])),
            // Whoever retries a task that has succeeded wants it to run again, after its last attempt.
            ("SELECT result FROM mill.retry_many('{1}')", "retried", json!([2])),
            ("SELECT mill.retry(1)", "retried", json!([2])),
        ] {
            let database = Database::new().await;
            assert_eq!(failed_tasks(&database, 1, options).await, [1]);
            let again = format!("SELECT mill.retry(1); {}", run_and(1, SUCCEED));
            let results = results_after(&database, &again, call, "").await;
            assert_eq!(results, [result], "{call}{options}");
            let found: Value =
                database.value("SELECT coalesce(jsonb_agg(attempt), '[]') FROM mill.tasks").await;
            assert_eq!(found, live, "{call}{options}");
            let left = "SELECT (SELECT count(*) FROM mill.dedup_keys WHERE task_id NOT IN (SELECT id FROM mill.tasks))
                + (SELECT count(*) FROM mill.permits)";
            assert_eq!(database.value::<i64>(left).await, 0, "{call}{options}");
            let retries = if result == "retried" { "task 1,task 1" } else { "task 1" };
            assert_eq!(database.value::<String>(RETRIES).await, retries, "{call}{options}");
        }
    }
}

#[tokio::test]
async fn a_retry_with_an_outcome_checks_each_task_when_its_turn_comes() {
    for options in ["", ", key => 'k#'", ", concurrency_key => 'c#'"] {
        let database = Database::new().await;
        assert_eq!(failed_tasks(&database, 3, options).await, [1, 2, 3]);
        let call = "SELECT result FROM mill.retry_many('{1,2,3}', 'failed')";
        let third = format!("SELECT mill.retry(3); {}", run_and(3, SUCCEED));
        let results = results_after(&database, "SELECT mill.retry(1)", call, &third).await;
        assert_eq!(results, ["changed", "retried", "changed"], "{options}");
        let live = "SELECT array_agg(id ORDER BY id) FROM mill.tasks";
        assert_eq!(database.value::<Vec<i64>>(live).await, [1, 2], "{options}");
        let mut retries: Vec<String> =
            database.value::<String>(RETRIES).await.split(',').map(str::to_owned).collect();
        retries.sort();
        assert_eq!(retries, ["task 1", "task 2", "task 3"], "{options}");
    }
    let database = Database::new().await;
    let sql = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT mill.retry_many('{1}', 'failed')";
    let error = database.connect().await.batch_execute(sql).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::ACTIVE_SQL_TRANSACTION), "{error:?}");
}

#[tokio::test]
async fn a_task_of_a_run_that_has_ended_otherwise_meanwhile_does_not_run_again() {
    let database = Database::new().await;
    job(&database, "j", json!([{"name": "t", "statement": "SELECT 1"}])).await;
    let run = start(&database, "j").await;
    let id: i64 = database.value("SELECT id FROM mill.tasks").await;
    let ended = |end| format!("{}; SELECT mill.advance_run({run})", run_and(id, end));
    database.execute(&ended(FAIL)).await;
    let again = format!("SELECT mill.retry({id}); {}", ended(TIME_OUT));
    let call = format!("SELECT result FROM mill.retry_many('{{{id}}}', 'failed')");
    assert_eq!(results_after(&database, &again, &call, "").await, ["changed"]);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 0);
    let state = "SELECT state::text FROM mill.runs";
    assert_eq!(database.value::<String>(state).await, "failed");
}

#[tokio::test]
async fn a_cancel_of_pending_tasks_leaves_those_alone_that_have_started_meanwhile() {
    for options in ["", ", key => 'k#'", ", concurrency_key => 'c#'"] {
        let database = Database::new().await;
        for n in ["1", "2"] {
            database.enqueue("SELECT 1", &options.replace('#', n)).await;
        }
        database.execute("SELECT mill.grant_waiting_permits()").await;
        let call = "SELECT result FROM mill.cancel_many('{1,2}', 'pending')";
        let (first, second) = (claim_as_worker("id = 1"), claim_as_worker("id = 2"));
        // The cancel of tasks without a limit or key takes all its locks at once.
        let (locks, meanwhile) = match options {
            "" => (format!("{first}; {second}"), String::new()),
            _ => (first, second),
        };
        let results = results_after(&database, &locks, call, &meanwhile).await;
        assert_eq!(results, ["changed", "changed"], "{options}");
        let cancelled = "SELECT count(*) FROM mill.cancel_requests";
        assert_eq!(database.value::<i64>(cancelled).await, 0, "{options}");
    }
}

#[tokio::test]
async fn a_change_of_pending_tasks_leaves_those_alone_that_are_in_another_state_meanwhile() {
    let database = Database::new().await;
    database.enqueue_many(2, "SELECT 1").await;
    let locks = format!(
        "SELECT mill.change_task(1, '{{\"due_at\": \"2999-01-01\"}}'); {}",
        claim_as_worker("id = 2")
    );
    let call =
        "SELECT result FROM mill.change_tasks('{1,2}', '{\"priority\": \"high\"}', 'pending')";
    assert_eq!(results_after(&database, &locks, call, "").await, ["changed", "changed"]);
    let changed = "SELECT count(*) FROM mill.tasks WHERE priority = 'high'";
    assert_eq!(database.value::<i64>(changed).await, 0);
}

#[tokio::test]
async fn actions_on_many_tasks_see_other_changes_whatever_the_default_isolation_level_is() {
    let database = Database::new().await;
    assert_eq!(failed_tasks(&database, 1, "").await, [1]);
    database
        .execute(
            "DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L',
                 current_database(), 'repeatable read'); END$$",
        )
        .await;
    for mode in ["--dry-run", "--yes"] {
        let (code, done) = act(&database, &["retry", "--outcome", "failed", mode]).await;
        assert_eq!((code, &done["counts"]), (0, &json!({"retried": 1})), "{mode}");
    }
    for (arguments, result) in [
        (&["set", "--state", "pending", "--priority", "low"][..], "updated"),
        (&["cancel", "--state", "pending"], "cancelled"),
    ] {
        let holder = database.connect().await;
        let hold = "BEGIN; UPDATE mill.tasks SET attempt = attempt + 1";
        holder.batch_execute(hold).await.unwrap();
        let released = async {
            database.until_a_session_waits_or("false").await;
            holder.batch_execute("COMMIT").await.unwrap();
        };
        let arguments = [arguments, &["--yes"]].concat();
        let ((code, done), ()) = tokio::join!(act(&database, &arguments), released);
        assert_eq!((code, &done["tasks"][0]["result"]), (0, &json!(result)), "{done}");
    }
}
