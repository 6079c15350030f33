//! Tasks that are added to a run: their options, and a restart of the run of the task that added them.

use serde_json::json;

use crate::harness::{Database, Worker};
use crate::runs::run::{FLAGS, assert_in_order, end, job, start, states};

const SPLIT: &str = "SELECT mill.add_run_task('part', 'SELECT mill.add_run_task(''piece'', ''SELECT 1'', before => ''{sum}'')',
    before => '{sum}')";

#[tokio::test]
async fn a_task_that_runs_again_adds_its_tasks_again() {
    let database = Database::new().await;
    let tasks = json!([
        {"name": "split", "statement": SPLIT},
        {"name": "other", "statement": "SELECT 1"},
        {"name": "sum", "statement": "SELECT 1", "after": ["split", "other"]},
    ]);
    job(&database, "j", tasks).await;
    let _worker = Worker::start_as_superuser(&database, "the task adds a task to its run", &FLAGS);
    let run = start(&database, "j").await;
    let all = "other succeeded, part succeeded, piece succeeded, split succeeded, sum succeeded";
    let count = "SELECT concat_ws(' ', tasks, succeeded, open) FROM mill.runs";
    assert_eq!(end(&database, run).await, "succeeded");
    for (call, attempts) in [
        (format!("mill.rerun_run({run})"), 10),
        // The task "piece", which "part" has added, goes with it.
        (format!("mill.rerun_run({run}, '{{part}}')"), 13),
        (format!("mill.rerun_run({run}, '{{split}}')"), 17),
        (format!("mill.rerun_run({run}, '{{split,part,sum}}', false)"), 21),
        (format!("mill.rerun_run({run}, '{{sum}}')"), 22),
    ] {
        database.execute(&format!("SELECT {call}")).await;
        assert_eq!(end(&database, run).await, "succeeded", "{call}");
        assert_eq!(states(&database, run).await, all, "{call}");
        assert_eq!(database.value::<String>(count).await, "5 5 0", "{call}");
        let history = "SELECT count(*) FROM mill.attempts";
        assert_eq!(database.value::<i64>(history).await, attempts, "{call}");
    }
    assert_in_order(&database).await;
}

#[tokio::test]
async fn a_restart_is_refused_while_an_added_task_has_not_ended() {
    let database = Database::new().await;
    let tasks = json!([{"name": "split", "statement": "SELECT 1"}, {"name": "last", "statement": "SELECT 1"}]);
    job(&database, "j", tasks).await;
    let run = start(&database, "j").await;
    let add = "BEGIN; SELECT set_config('mill.task_id', id::text, true) FROM mill.tasks WHERE name = 'split';
        SELECT mill.add_run_task('part', 'SELECT 1'); COMMIT";
    database.run_as_worker("name = 'split'").await;
    database.execute(add).await;
    let succeed =
        "SELECT mill.complete(ARRAY[id], ARRAY[token]::uuid[], pg_current_xact_id(), NULL, ARRAY[0]::bigint[], ARRAY[NULL]::jsonb[]) FROM mill.tasks
        WHERE name = 'split'";
    database.execute(succeed).await;
    database.execute(&format!("SELECT mill.advance_run({run})")).await;
    let rerun = format!("SELECT mill.rerun_run({run}, '{{split}}')");
    let error = database.client().batch_execute(&rerun).await.unwrap_err();
    let message = error.as_db_error().unwrap().message();
    assert_eq!(message, format!("task \"part\" of run {run} has not ended"));
}

#[tokio::test]
async fn an_added_task_has_its_named_options() {
    let database = Database::new().await;
    job(&database, "j", json!([{"name": "a", "statement": "SELECT 1"}])).await;
    let run = start(&database, "j").await;
    database
        .execute(&format!(
            "SELECT mill.set_group('g');
             SELECT mill.add_run_task('added', 'SELECT 1', queue => 'q', priority => 'high',
                 group_name => 'g', concurrency_key => 'k', max_attempts => 5, retry_interval => '7 s',
                 backoff => 'fixed', jitter => false, timeout => '1 min', mode => 'autocommit',
                 ignore_failure => true, run_id => {run}, options => '{{\"tags\": [\"etl\"]}}')"
        ))
        .await;
    let stored =
        "SELECT jsonb_build_array(queue, priority, group_name, concurrency_key, ignore_failure,
        jsonb_strip_nulls(to_jsonb(options))) FROM mill.run_tasks WHERE name = 'added'";
    assert_eq!(
        database.value::<serde_json::Value>(stored).await,
        json!(["q", "high", "g", "k", true, {
            "max_attempts": 5, "retry_interval": "00:00:07", "backoff": "fixed", "jitter": false,
            "timeout": "00:01:00", "mode": "autocommit", "tags": ["etl"],
        }])
    );
}
