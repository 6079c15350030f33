//! Operator actions on a run, and tasks that a run's own tasks add.

use queue::prune;
use serde_json::json;

use crate::harness::{Database, Program, Worker, eventually};
use crate::runs::run::{FLAGS, assert_in_order, end, job, start, states, why};

/// Declares a job: `a` fails, `b` depends on `a`, and `c` on `b`. `d` succeeds, and `e` depends on
/// `d`. `f` runs only if `a` fails.
async fn broken(database: &Database) {
    database.execute("CREATE TABLE mended (); CREATE TABLE ran (task text NOT NULL)").await;
    let mark = |name: &str| format!("INSERT INTO ran VALUES ('{name}')");
    job(
        database,
        "broken",
        json!([
            {"name": "a", "max_attempts": 1,
             "statement": format!("{}; SELECT 1 / (SELECT count(*) FROM pg_attribute
                 WHERE attrelid = 'mended'::regclass AND attnum > 0)", mark("a"))},
            {"name": "b", "statement": mark("b"), "after": ["a"]},
            {"name": "c", "statement": mark("c"), "after": ["b"]},
            {"name": "d", "statement": mark("d")},
            {"name": "e", "statement": mark("e"), "after": ["d"]},
            {"name": "f", "statement": mark("f"), "after": [{"task": "a", "expected": "failed"}]},
        ]),
    )
    .await;
}

const MEND: &str = "ALTER TABLE mended ADD COLUMN x integer; TRUNCATE ran";
const RAN: &str = "SELECT coalesce(string_agg(task, ' ' ORDER BY task), '') FROM ran";

#[tokio::test]
async fn a_restart_runs_exactly_the_reported_tasks() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    for (how, restarted, ran, states_after, ends) in [
        (
            "",
            "a b c",
            "a b c",
            "a succeeded, b succeeded, c succeeded, d succeeded, e succeeded, f succeeded",
            "succeeded",
        ),
        (
            "never_run => false",
            "a b c",
            "a b c",
            "a succeeded, b succeeded, c succeeded, d succeeded, e succeeded, f succeeded",
            "succeeded",
        ),
        (
            "downstream => true, never_run => false",
            "a b c f",
            "a b c",
            "a succeeded, b succeeded, c succeeded, d succeeded, e succeeded, f skipped",
            "succeeded",
        ),
    ] {
        database.execute("DROP TABLE IF EXISTS mended, ran").await;
        broken(&database).await;
        let run = start(&database, "broken").await;
        assert_eq!(end(&database, run).await, "failed");
        assert_eq!(
            states(&database, run).await,
            "a failed, b upstream_failed, c upstream_failed, d succeeded, e succeeded, f succeeded"
        );
        database.execute(MEND).await;
        let sql = format!(
            "SELECT string_agg(r, ' ' ORDER BY r) FROM mill.restart_run({run}{}{how}) AS r",
            if how.is_empty() { "" } else { ", " }
        );
        assert_eq!(database.value::<String>(&sql).await, restarted, "{how}");
        assert_eq!(end(&database, run).await, ends, "{how}");
        assert_eq!(states(&database, run).await, states_after, "{how}");
        assert_eq!(database.value::<String>(RAN).await, ran, "{how}");
        let attempts = format!(
            "SELECT string_agg(attempt || ' ' || outcome, ', ' ORDER BY attempt)
             FROM mill.attempts WHERE run_id = {run} AND name = 'a'"
        );
        assert_eq!(database.value::<String>(&attempts).await, "1 failed, 2 succeeded", "{how}");
    }
}

#[tokio::test]
async fn an_invalid_restart_is_refused() {
    let database = Database::new().await;
    broken(&database).await;
    let refused = async |sql: &str, fragment: &str| {
        let error = database.client().batch_execute(sql).await.unwrap_err();
        let message = error.as_db_error().unwrap().message().to_owned();
        assert!(message.contains(fragment), "{sql}: {message}");
    };
    let run = start(&database, "broken").await;
    refused("SELECT mill.restart_run(99)", "there is no run 99").await;
    refused(&format!("SELECT mill.restart_run({run})"), "is still running").await;
    let worker = Worker::start(&database, &FLAGS);
    assert_eq!(end(&database, run).await, "failed");
    let before: String = database.value("SELECT r::text FROM mill.runs r").await;
    refused(
        &format!("SELECT mill.restart_run({run}, failed => false)"),
        "their parents have not ended as required",
    )
    .await;
    assert_eq!(database.value::<String>("SELECT r::text FROM mill.runs r").await, before);
    database.execute(MEND).await;
    database.execute(&format!("SELECT mill.restart_run({run})")).await;
    assert_eq!(end(&database, run).await, "succeeded");
    let id: i64 = database.value("SELECT max(task_id) FROM mill.attempts WHERE name = 'a'").await;
    refused(&format!("SELECT mill.retry({id})"), "has succeeded in run").await;
    for force in ["", ", force => true"] {
        refused(&format!("SELECT mill.restart_run({run}{force})"), "has no such task").await;
    }
    refused(&format!("SELECT mill.rerun_run({run}, '{{a,z}}')"), "has no task \"z\"").await;
    database.execute("SELECT mill.pause('default')").await;
    database.execute(&format!("SELECT mill.rerun_run({run}, '{{d}}')")).await;
    refused(&format!("SELECT mill.rerun_run({run}, '{{d}}')"), "has not ended").await;
    drop(worker);
}

/// From the page of a task, an operator knows only its id.
#[tokio::test]
async fn a_failed_task_of_an_ended_run_is_retried_by_its_id_and_the_run_goes_on() {
    let database = Database::new().await;
    broken(&database).await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = start(&database, "broken").await;
    assert_eq!(end(&database, run).await, "failed");
    let first = "SELECT started_at::text || finished_at FROM mill.runs";
    let times: String = database.value(first).await;
    database.execute(MEND).await;
    let id: i64 = database.value("SELECT task_id FROM mill.attempts WHERE name = 'a'").await;
    assert_eq!(database.value::<String>(&format!("SELECT mill.retry({id})")).await, "retried");
    assert_eq!(end(&database, run).await, "succeeded");
    assert_eq!(database.value::<String>(RAN).await, "a b c");
    let kept =
        "SELECT (detail->>'started_at')::timestamptz::text || (detail->>'finished_at')::timestamptz
        FROM mill.audit WHERE action = 'retry_run_task' AND detail->>'state' = 'failed'";
    assert_eq!(database.value::<String>(kept).await, times, "the audit keeps the first times");
    let duration = "SELECT duration = finished_at - restarted_at AND restarted_at > started_at
        FROM mill.run_status";
    assert!(database.value::<bool>(duration).await, "the duration counts from the restart");
}

#[tokio::test]
async fn all_tasks_or_one_task_and_those_after_it_run_again_whatever_their_outcome() {
    let database = Database::new().await;
    broken(&database).await;
    database.execute(MEND).await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = start(&database, "broken").await;
    assert_eq!(end(&database, run).await, "succeeded");
    for (arguments, expected) in [("", "a b c d e f"), (", '{d}'", "d e"), (", '{a}', false", "a")]
    {
        database.execute("TRUNCATE ran").await;
        let sql = format!(
            "SELECT string_agg(r, ' ' ORDER BY r) FROM mill.rerun_run({run}{arguments}) AS r"
        );
        assert_eq!(database.value::<String>(&sql).await, expected);
        assert_eq!(end(&database, run).await, "succeeded");
        let ran = expected.replace(" f", "");
        assert_eq!(database.value::<String>(RAN).await, ran, "f runs only if a fails");
    }
    let recorded = "SELECT string_agg(detail->>'names', ' ' ORDER BY id) FROM mill.audit
        WHERE action = 'rerun_run' AND (detail->>'tasks')::integer > 0";
    assert_eq!(database.value::<String>(recorded).await, "[\"d\"] [\"a\"]");
}

#[tokio::test]
async fn a_cancel_ends_a_run_without_a_worker_and_keeps_the_failure_of_a_running_task() {
    let database = Database::new().await;
    broken(&database).await;
    let run = start(&database, "broken").await;
    database.execute(&format!("SELECT mill.cancel_run({run})")).await;
    assert_eq!(end(&database, run).await, "cancelled");
    let fails = json!([{"name": "fails", "max_attempts": 5,
        "statement": "SELECT pg_advisory_xact_lock_shared(5); SELECT 1/0"}]);
    job(&database, "fails", fails).await;
    database.execute("SELECT pg_advisory_lock(5)").await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = start(&database, "fails").await;
    let id: i64 =
        database.value(&format!("SELECT task_id FROM mill.run_tasks WHERE run_id = {run}")).await;
    database.until_waiting_for_lock(id).await;
    database.execute(&format!("SELECT mill.cancel_run({run})")).await;
    let listed = Program::pgmill(&database, &["run", "list"]).succeeds().await;
    assert!(listed.contains("cancelling"), "{listed}");
    let again = Program::pgmill(&database, &["run", "cancel", "--all"]).succeeds().await;
    assert_eq!(again, "no run is in progress\n");
    database.execute("SELECT pg_advisory_unlock(5)").await;
    assert_eq!(end(&database, run).await, "cancelled");
    assert_eq!(database.outcome(id).await, "failed");
    let failures = Program::pgmill(&database, &["failures"]).succeeds().await;
    assert!(failures.contains("division by zero"), "{failures}");
}

#[tokio::test]
async fn a_failed_task_of_a_live_run_can_be_retried_and_the_run_takes_it_up() {
    let database = Database::new().await;
    broken(&database).await;
    // Keeps the run open.
    database.execute("SELECT mill.pause('later')").await;
    database
        .execute(
            r#"SELECT mill.set_job('held', '[{"name": "held", "statement": "SELECT 1", "queue": "later"}]')"#,
        )
        .await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = start(&database, "broken,held").await;
    eventually("the other tasks have ended", async || {
        let open = format!(
            "SELECT count(*) FROM mill.run_tasks WHERE run_id = {run} AND finished_at IS NULL"
        );
        database.value::<i64>(&open).await == 1
    })
    .await;
    assert_eq!(
        database.value::<String>(&format!("SELECT mill.retry_run_task({run}, 'd')")).await,
        "succeeded"
    );
    assert_eq!(
        database.value::<String>(&format!("SELECT mill.retry_run_task({run}, 'z')")).await,
        "not found"
    );
    database.execute(MEND).await;
    assert_eq!(
        database.value::<String>(&format!("SELECT mill.retry_run_task({run}, 'a')")).await,
        "retried"
    );
    eventually("c has run", async || database.value::<String>(RAN).await == "a b c").await;
    database.execute("SELECT mill.resume('later')").await;
    assert_eq!(end(&database, run).await, "succeeded");
}

#[tokio::test]
async fn a_cancelled_run_leaves_nothing_pending_and_running_tasks_finish_or_are_killed_as_asked() {
    for kill in [false, true] {
        let database = Database::new().await;
        database.execute("SELECT pg_advisory_lock(1); SELECT mill.pause('paused')").await;
        job(
            &database,
            "long",
            json!([
                {"name": "holds", "statement": "SELECT pg_advisory_xact_lock_shared(1)"},
                {"name": "fails", "statement": "SELECT pg_advisory_xact_lock_shared(1); SELECT 1/0"},
                {"name": "pends", "statement": "SELECT 1", "queue": "paused"},
                {"name": "waits", "statement": "SELECT 1", "after": ["holds"]},
                {"name": "waits_more", "statement": "SELECT 1", "after": [{"task": "waits", "expected": "finished"}]},
            ]),
        )
        .await;
        let _worker = Worker::start(&database, &FLAGS);
        let run = start(&database, "long").await;
        eventually("two tasks run", async || {
            database.value::<i64>("SELECT count(*) FROM mill.tasks WHERE state = 'running'").await
                == 2
        })
        .await;
        let cancel = format!("SELECT mill.cancel_run({run}, {kill})");
        assert_eq!(database.value::<String>(&cancel).await, "cancelling");
        assert!(why(&database, run, "waits").await.contains("before it started by"));
        if !kill {
            eventually("no task waits", async || {
                let waits = "SELECT count(*) FROM mill.run_task_status WHERE state <> 'cancelled'";
                database.value::<i64>(waits).await == 2
            })
            .await;
            database.execute("SELECT pg_advisory_unlock(1)").await;
        }
        assert_eq!(end(&database, run).await, "cancelled", "kill: {kill}");
        // A task that fails while its run is cancelled is not retried, and its failure is kept.
        let [expected, failed] =
            if kill { ["cancelled", "cancelled"] } else { ["succeeded", "failed"] };
        assert_eq!(
            states(&database, run).await,
            format!(
                "fails {failed}, holds {expected}, pends cancelled, waits cancelled, waits_more cancelled"
            )
        );
        assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 0);
        assert_eq!(database.value::<String>(&cancel).await, "cancelled");
        assert!(why(&database, run, "waits").await.contains("before it started by"));
        if kill {
            database.execute("SELECT pg_advisory_unlock(1)").await;
        }
        database.execute(&format!("SELECT mill.restart_run({run}, force => true, failed => false); SELECT mill.resume('paused')")).await;
        assert_eq!(end(&database, run).await, failed, "a task that ran is not run again");
        let never_ran =
            "SELECT string_agg(name || ' ' || state, ', ' ORDER BY name) FROM mill.run_task_status
                         WHERE name IN ('pends', 'waits')";
        let waits = if kill { "waits upstream_failed" } else { "waits succeeded" };
        assert_eq!(database.value::<String>(never_ran).await, format!("pends succeeded, {waits}"));
    }
}

#[tokio::test]
async fn a_task_adds_tasks_to_its_run_and_they_exist_if_it_commits() {
    let database = Database::new().await;
    database.execute("CREATE TABLE part (n integer); CREATE TABLE total (n bigint)").await;
    job(
        &database,
        "fan",
        json!([
            {"name": "split", "statement":
                "SELECT mill.add_run_task('part ' || n, 'INSERT INTO part VALUES ($1)', jsonb_build_array(n), before => ARRAY['sum'])
                 FROM generate_series(1, 20) AS n;
                 SELECT mill.add_run_task('last', 'SELECT 1', after => ARRAY['part 20'])"},
            {"name": "sum", "statement": "INSERT INTO total SELECT sum(n) FROM part", "after": ["split"]},
            {"name": "rolled_back", "max_attempts": 1, "ignore_failure": true,
             "statement": "SELECT mill.add_run_task('never', 'SELECT 1'); SELECT 1/0"},
        ]),
    )
    .await;
    let _fleet = [(); 2]
        .map(|()| Worker::start_as_superuser(&database, "the task adds tasks to its run", &FLAGS));
    let run = start(&database, "fan").await;
    assert_eq!(end(&database, run).await, "succeeded");
    assert_eq!(database.value::<Vec<i64>>("SELECT array_agg(n) FROM total").await, [210]);
    let count = "SELECT concat_ws(' ', tasks, succeeded, ignored) FROM mill.runs";
    assert_eq!(database.value::<String>(count).await, "24 23 1");
    assert_in_order(&database).await;
    let refused = async |sql: &str, fragment: &str| {
        let error = database.client().batch_execute(sql).await.unwrap_err();
        let message = error.as_db_error().unwrap().message().to_owned();
        assert!(message.contains(fragment), "{sql}: {message}");
    };
    refused("SELECT mill.add_run_task('x', 'SELECT 1')", "run_id is required").await;
    refused(
        &format!("SELECT mill.add_run_task('x', 'SELECT 1', run_id => {run})"),
        "is not in progress",
    )
    .await;
}

#[tokio::test]
async fn adding_to_an_ended_run_or_closing_a_cycle_is_refused() {
    let database = Database::new().await;
    job(
        &database,
        "line",
        json!([
            {"name": "a", "statement": "SELECT 1"},
            {"name": "b", "statement": "SELECT 1", "after": ["a"]},
            {"name": "c", "statement": "SELECT 1", "after": ["b"]},
        ]),
    )
    .await;
    let run = start(&database, "line").await;
    let refused = async |arguments: &str, fragment: &str| {
        let sql =
            format!("SELECT mill.add_run_task('x', 'SELECT 1', run_id => {run}, {arguments})");
        let error = database.client().batch_execute(&sql).await.unwrap_err();
        let message = error.as_db_error().unwrap().message().to_owned();
        assert!(message.contains(fragment), "{sql}: {message}");
    };
    refused("before => ARRAY['a']", "could start before").await;
    refused("after => ARRAY['c'], before => ARRAY['b']", "would wait for itself").await;
    refused("after => ARRAY['nobody']", "has no task \"nobody\"").await;
    refused("group_name => 'nobody'", "there is no group").await;
    let twice = format!("SELECT mill.add_run_task('a', 'SELECT 1', run_id => {run})");
    let error = database.client().batch_execute(&twice).await.unwrap_err();
    assert_eq!(
        error.as_db_error().unwrap().message(),
        format!("run {run} already has a task \"a\"")
    );
}

#[tokio::test]
async fn runs_are_removed_with_their_days_of_history() {
    let database = Database::new().await;
    job(&database, "old", json!([{"name": "a", "statement": "SELECT 1"}])).await;
    let (old, young) = (start(&database, "old").await, start(&database, "old").await);
    let live = {
        let _worker = Worker::start(&database, &FLAGS);
        assert_eq!(end(&database, old).await, "succeeded");
        assert_eq!(end(&database, young).await, "succeeded");
        start(&database, "old").await
    };
    database
        .execute(&format!(
            "UPDATE mill.runs SET finished_at = finished_at - interval '40 days' WHERE id = {old};
             UPDATE mill.runs SET started_at = started_at - interval '40 days';
             SELECT mill.prune()"
        ))
        .await;
    for table in ["runs", "run_tasks"] {
        let id = if table == "runs" { "id" } else { "run_id" };
        let left = format!("SELECT array_agg(DISTINCT {id} ORDER BY {id}) FROM mill.{table}");
        assert_eq!(database.value::<Vec<i64>>(&left).await, [young, live], "{table}");
    }
}

#[tokio::test]
async fn old_runs_are_deleted_until_none_is_left_while_history_is_read() {
    let database = Database::new().await;
    database
        .execute(
            "INSERT INTO mill.runs (jobs, params, state, finished_at)
             SELECT '{old}', '{}', 'succeeded', now() - interval '40 days' FROM generate_series(1, 2500);
             CREATE TABLE mill.attempts_20200101 PARTITION OF mill.attempts
                 FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00')",
        )
        .await;
    // A reader of history keeps its old day from being dropped, but not the runs from being deleted.
    let reader = database.connect().await;
    reader.batch_execute("BEGIN; SELECT FROM mill.attempts_20200101").await.unwrap();
    assert_eq!(prune::prune_history(database.client()).await.unwrap(), (0, 1));
    assert_eq!(database.value::<i32>("SELECT mill.prune()").await, 0);
    for deleted in [(1000, true), (500, false), (0, false)] {
        assert_eq!(prune::prune(database.client(), &prune::PARTS[0]).await.unwrap(), deleted);
    }
    reader.batch_execute("COMMIT").await.unwrap();
    assert_eq!(prune::prune_history(database.client()).await.unwrap(), (1, 0));
}

#[tokio::test]
async fn a_group_is_limited_within_each_run_of_a_job() {
    let database = Database::new().await;
    database
        .execute("SELECT pg_advisory_lock(1), mill.set_group('two', max_running => 2, priority => 'high')")
        .await;
    let holds = "SELECT pg_advisory_xact_lock_shared(1)";
    let tasks: Vec<_> = (0..5)
        .map(|n| json!({"name": format!("t{n}"), "statement": holds, "group": "two"}))
        .collect();
    job(&database, "grouped", json!(tasks)).await;
    let _worker = Worker::start(&database, &FLAGS);
    let runs = [start(&database, "grouped").await, start(&database, "grouped").await];
    let of_each = "SELECT array_agg(n ORDER BY run_id) FROM (SELECT run_id, count(*) FILTER (WHERE state = 'running') AS n
                   FROM mill.tasks WHERE priority = 'high' GROUP BY run_id) AS each";
    eventually("two of each run", async || database.value::<Vec<i64>>(of_each).await == [2, 2])
        .await;
    let output = why(&database, runs[0], "t4").await;
    assert!(output.contains(&format!("in run {} has 2 of 2 tasks running", runs[0])), "{output}");
    let refused = database.client().batch_execute("SELECT mill.drop_group('two')").await;
    assert!(refused.is_err());
    database.execute("SELECT pg_advisory_unlock(1)").await;
    for run in runs {
        assert_eq!(end(&database, run).await, "succeeded");
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.limits").await, 0);
}

#[tokio::test]
async fn a_task_that_always_runs_does_so_after_an_upstream_failure_and_why_names_its_cause() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    let after = |expected: &str| json!([{"task": "b", "expected": expected}]);
    let tasks = json!([
        {"name": "a", "statement": "SELECT 1/0", "max_attempts": 1},
        {"name": "b", "statement": "SELECT 1", "after": ["a"]},
        {"name": "c", "statement": "SELECT 1", "after": ["b"]},
        {"name": "clean_up", "statement": "SELECT 1", "after": after("always")},
        {"name": "finished", "statement": "SELECT 1", "after": after("finished")},
    ]);
    job(&database, "j", tasks).await;
    let run = start(&database, "j").await;
    assert_eq!(end(&database, run).await, "failed");
    assert_eq!(
        states(&database, run).await,
        "a failed, b upstream_failed, c upstream_failed, clean_up succeeded, finished upstream_failed"
    );
    assert_eq!(
        why(&database, run, "c").await,
        "it cannot run because of its parents: b (upstream_failed, expected succeeded); \
         cause: a (failed: division by zero)"
    );
}

#[tokio::test]
async fn a_dependency_with_which_a_job_could_not_run_is_refused() {
    let database = Database::new().await;
    job(
        &database,
        "j",
        json!([{"name": "p", "statement": "SELECT 1"}, {"name": "c", "statement": "SELECT 1", "after": ["p"]}]),
    )
    .await;
    let cycle = database.client().batch_execute("SELECT mill.set_dependency('p', 'c')").await;
    let cycle = cycle.unwrap_err();
    assert!(cycle.as_db_error().unwrap().message().contains("cycle"), "{cycle:?}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.dependencies").await, 0);
    database.execute("SELECT mill.set_dependency('c', 'elsewhere')").await;
}
