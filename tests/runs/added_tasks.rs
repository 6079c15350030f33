//! Tasks that tasks of a run have added, when the run is restarted.

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
