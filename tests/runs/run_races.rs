//! Races and bounds of the advance of runs that the model of runs has found. Each test also fails if the
//! product has the defect.

use serde_json::{Value, json};
use tokio_postgres::error::SqlState;

use crate::guarantees::checker_mutants::plant;
use crate::harness::{Database, claim_as_worker};
use crate::runs::run::{job, start};

/// A defect, and what fails if the product has it.
struct Defect {
    function: &'static str,
    from: &'static str,
    to: &'static str,
}

async fn run(database: &Database, tasks: Value) -> i64 {
    job(database, "j", tasks).await;
    start(database, "j").await
}

fn task(name: &str, after: &Value) -> Value {
    json!({"name": name, "statement": "SELECT 1", "max_attempts": 1, "after": after})
}

/// Claims a task of the run as a worker does.
async fn claim(database: &Database, name: &str) {
    database.run_as_worker(&format!("name = '{name}'")).await;
}

async fn succeed(database: &Database, name: &str) {
    let sql = format!(
        "SELECT mill.complete(ARRAY[id], ARRAY[token]::uuid[], pg_current_xact_id(), NULL, ARRAY[0]::bigint[], ARRAY[NULL]::jsonb[]) FROM mill.tasks
         WHERE name = '{name}' AND state = 'running'"
    );
    database.execute(&sql).await;
}

async fn fail(database: &Database, name: &str) {
    let sql = format!(
        "SELECT mill.fail(id, token, 'failed', 'final', '0', '{{}}') FROM mill.tasks WHERE name = '{name}'"
    );
    database.execute(&sql).await;
}

/// Adds the task `added` from within the running task `by`.
async fn add(database: &Database, by: &str, edges: &str) {
    let sql = format!(
        "BEGIN; SELECT set_config('mill.task_id', id::text, true) FROM mill.tasks WHERE name = '{by}';
         SELECT mill.add_run_task('added', 'SELECT 1', {edges}); COMMIT"
    );
    database.execute(&sql).await;
}

async fn state(database: &Database, name: &str) -> String {
    let sql = format!("SELECT state::text FROM mill.run_tasks WHERE name = '{name}'");
    database.value(&sql).await
}

/// Runs all tasks that are left. Returns the state of the run.
async fn finish(database: &Database, run: i64) -> String {
    for _ in 0..20 {
        database.execute(&format!("SELECT mill.advance_run({run})")).await;
        let pending = "SELECT coalesce(array_agg(name::text), '{}') FROM mill.tasks";
        for name in database.value::<Vec<String>>(pending).await {
            claim(database, &name).await;
            succeed(database, &name).await;
        }
    }
    database.value(&format!("SELECT state::text FROM mill.runs WHERE id = {run}")).await
}

/// Calls a function that advances the run, and performs `meanwhile` after the function has read the
/// events of the run. Returns the error of the function.
async fn during_advance(
    database: &Database,
    call: &str,
    meanwhile: impl Future<Output = ()>,
) -> Option<String> {
    let (advancer, holder) = (database.connect().await, database.connect().await);
    // The advance waits for this lock after it has taken its snapshot.
    holder
        .batch_execute("BEGIN; SELECT FROM mill.run_events ORDER BY id LIMIT 1 FOR UPDATE")
        .await
        .unwrap();
    let other = async {
        database.until_a_session_waits_or("false").await;
        meanwhile.await;
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let (advanced, ()) = tokio::join!(advancer.batch_execute(call), other);
    advanced.err().map(|error| format!("{error:?}"))
}

/// An operator retries a task after another task has been added, and before a worker has noticed this.
async fn retry_after_add(database: &Database) -> bool {
    let run = run(database, json!([task("a", &json!([])), task("b", &json!([]))])).await;
    claim(database, "a").await;
    fail(database, "a").await;
    database.execute(&format!("SELECT mill.advance_run({run})")).await;
    database
        .execute(&format!("SELECT mill.add_run_task('added', 'SELECT 1', run_id => {run})"))
        .await;
    database.execute(&format!("SELECT mill.retry_run_task({run}, 'a')")).await;
    finish(database, run).await == "succeeded"
}

/// A task adds a task after one that has failed, and before one that needs any of its parents.
async fn add_during_advance(database: &Database) -> bool {
    let mut tasks = ["adds", "fails", "other"].map(|name| task(name, &json!([]))).to_vec();
    tasks.push(json!({"name": "child", "statement": "SELECT 1", "join": "any", "after": ["adds"]}));
    let run = run(database, Value::Array(tasks)).await;
    claim(database, "adds").await;
    claim(database, "fails").await;
    fail(database, "fails").await;
    let adds = add(database, "adds", "after => '{fails}', before => '{child}'");
    let error = during_advance(database, &format!("SELECT mill.advance_run({run})"), adds).await;
    assert_eq!(error, None);
    succeed(database, "adds").await;
    let ended = finish(database, run).await;
    ended == "failed"
        && state(database, "child").await == "succeeded"
        && state(database, "added").await == "upstream_failed"
}

/// A task adds a task while an operator cancels the run.
async fn add_during_cancel(database: &Database) -> bool {
    let run =
        run(database, json!([task("adds", &json!([])), task("child", &json!(["adds"]))])).await;
    claim(database, "adds").await;
    let adds = add(database, "adds", "before => '{child}'");
    let error = during_advance(database, &format!("SELECT mill.cancel_run({run})"), adds).await;
    succeed(database, "adds").await;
    error.is_none()
        && finish(database, run).await == "cancelled"
        && state(database, "added").await == "cancelled"
}

/// More tasks have ended than a pass of the advance searches.
async fn many_ends(database: &Database) -> bool {
    bound_to_two(database).await;
    let of_any = json!({"name": "d", "statement": "SELECT 1", "join": "any", "after": ["b", "c"]});
    let finished = json!([{"task": "a", "expected": "finished"}]);
    let tasks = [task("a", &json!([])), task("b", &json!(["a"])), task("c", &finished), of_any];
    let run = run(database, json!(tasks)).await;
    claim(database, "a").await;
    succeed(database, "a").await;
    database.execute(&format!("SELECT mill.advance_run({run})")).await;
    database.execute(&format!("SELECT mill.rerun_run({run}, '{{a}}', false)")).await;
    for name in ["a", "b", "c"] {
        claim(database, name).await;
    }
    succeed(database, "a").await;
    succeed(database, "c").await;
    fail(database, "b").await;
    finish(database, run).await == "failed"
}

/// Another session adds a parent, while events of the run wait for a later pass.
async fn add_with_backlog(database: &Database) -> bool {
    bound_to_two(database).await;
    let run = run(database, json!([task("a", &json!([])), task("b", &json!(["a"]))])).await;
    claim(database, "a").await;
    succeed(database, "a").await;
    let add = format!(
        "SELECT mill.add_run_task('added', 'SELECT 1', before => '{{b}}', run_id => {run})"
    );
    database.execute(&add).await;
    database.execute(&format!("SELECT mill.advance_run({run})")).await;
    state(database, "b").await == "waiting" && finish(database, run).await == "succeeded"
}

/// Bounds a pass to two events, edges and tasks.
async fn bound_to_two(database: &Database) {
    let bound = "max_count CONSTANT integer := 2";
    plant(database, "mill.advance_run", (&format!("{bound}000;"), &format!("{bound};"))).await;
}

async fn fails_only_with(defect: &Defect, scenario: impl AsyncFn(&Database) -> bool) {
    for planted in [false, true] {
        let database = Database::new().await;
        let Defect { function, from, to } = defect;
        if planted {
            plant(&database, function, (from, to)).await;
        }
        assert_eq!(scenario(&database).await, !planted, "planted: {planted}");
    }
}

#[tokio::test]
async fn a_task_that_is_added_before_a_retry_counts_once() {
    let defect = Defect {
        function: "mill.run_again",
        from: "WHERE t.run_id = r.id AND t.propagated_to >= 0)",
        to: "WHERE t.run_id = r.id)",
    };
    fails_only_with(&defect, retry_after_add).await;
}

#[tokio::test]
async fn a_task_that_is_added_during_an_advance_is_counted_first() {
    let defect = Defect {
        function: "mill.propagate_completion",
        from: "AND c.propagated_to >= 0 LIMIT 1",
        to: "LIMIT 1",
    };
    fails_only_with(&defect, add_during_advance).await;
}

#[tokio::test]
async fn a_task_that_is_added_during_a_cancel_is_cancelled_after_it_is_counted() {
    let defect =
        Defect { function: "mill.cancel_open_tasks", from: "AND t.propagated_to >= 0", to: "" };
    fails_only_with(&defect, add_during_cancel).await;
}

#[tokio::test]
async fn every_completion_is_propagated_if_there_are_more_than_a_pass_searches() {
    let defect = Defect {
        function: "mill.propagate_completion",
        from: "ELSIF searched = max_count THEN",
        to: "ELSIF false THEN",
    };
    fails_only_with(&defect, many_ends).await;
}

#[tokio::test]
async fn a_task_waits_for_a_parent_that_another_session_adds() {
    let defect = Defect {
        function: "mill.add_run_edges",
        from: "SET parents = t.parents + 1",
        to: "SET parents = t.parents",
    };
    fails_only_with(&defect, add_with_backlog).await;
}

#[tokio::test]
async fn an_advance_reports_more_work_if_it_leaves_events() {
    let database = Database::new().await;
    let tasks = ["a", "b", "c"].map(|name| task(name, &json!([])));
    let run = run(&database, json!(tasks)).await;
    bound_to_two(&database).await;
    for name in ["a", "b", "c"] {
        claim(&database, name).await;
        succeed(&database, name).await;
    }
    let advance = format!("SELECT more FROM mill.advance_run({run})");
    let mut passes = 1;
    while database.value::<bool>(&advance).await {
        passes += 1;
        assert!(passes < 10, "the advance does not end");
    }
    let state = format!("SELECT state::text FROM mill.runs WHERE id = {run}");
    assert_eq!(database.value::<String>(&state).await, "succeeded");
}

#[tokio::test]
async fn more_ready_tasks_than_a_pass_releases_are_released_by_the_next_ones() {
    let database = Database::new().await;
    let bound = "release_ready(run_id, NULL, true, 2000) = 2000";
    plant(&database, "mill.create_run", (bound, &bound.replace("2000", "2"))).await;
    bound_to_two(&database).await;
    let tasks = ["a", "b", "c", "d", "e", "f", "g"].map(|name| task(name, &json!([])));
    let run = run(&database, json!(tasks)).await;
    let advance = format!("SELECT more FROM mill.advance_run({run})");
    let mut passes = 1;
    while database.value::<bool>(&advance).await {
        passes += 1;
        assert!(passes < 10, "the advance does not end");
    }
    let released = "SELECT count(*) FROM mill.tasks WHERE state = 'pending'";
    assert_eq!(database.value::<i64>(released).await, 7);
}

#[tokio::test]
async fn a_failure_during_the_cancel_of_its_run_waits_for_the_cancel() {
    let database = Database::new().await;
    let again = json!([{"name": "a", "statement": "SELECT 1", "max_attempts": 3}]);
    let run = run(&database, again).await;
    claim(&database, "a").await;
    let (operator, worker) = (database.connect().await, database.connect().await);
    operator.batch_execute(&format!("BEGIN; SELECT mill.cancel_run({run})")).await.unwrap();
    let fails = async {
        let fail =
            "SELECT mill.fail(id, token, 'failed', 'failure', '1 hour', '{}') FROM mill.tasks";
        loop {
            match worker.batch_execute(fail).await {
                // A worker repeats it, too.
                Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {}
                recorded => return recorded,
            }
        }
    };
    let cancel = async {
        // The failure waits or is recorded.
        let recorded = "EXISTS (SELECT FROM mill.tasks WHERE state = 'scheduled')";
        database.until_a_session_waits_or(recorded).await;
        operator.batch_execute("COMMIT").await.unwrap();
    };
    let (failed, ()) = tokio::join!(fails, cancel);
    failed.unwrap();
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.tasks").await, 0);
    assert_eq!(finish(&database, run).await, "cancelled");
}

#[tokio::test]
async fn a_cancel_of_a_run_stops_its_running_tasks_only_if_asked() {
    let database = Database::new().await;
    let run = run(&database, json!([task("a", &json!([]))])).await;
    claim(&database, "a").await;
    for (kill, requests) in [(false, 0), (true, 1)] {
        database.execute(&format!("SELECT mill.cancel_run({run}, {kill})")).await;
        let requested = "SELECT count(*) FROM mill.cancel_requests";
        assert_eq!(database.value::<i64>(requested).await, requests, "kill: {kill}");
    }
}

#[tokio::test]
async fn a_task_that_is_claimed_while_its_run_is_cancelled_is_stopped_too() {
    for planted in [false, true] {
        let database = Database::new().await;
        if planted {
            let from = "SELECT cancel_open_tasks.run_id WHERE EXISTS";
            let to = "SELECT cancel_open_tasks.run_id WHERE false AND EXISTS";
            plant(&database, "mill.cancel_open_tasks", (from, to)).await;
        }
        let requests = cancel_during_a_claim(&database).await;
        assert_eq!(requests, if planted { 1 } else { 2 });
    }
}

/// Cancels a run with one running task while the other one is claimed. Returns the number of requests
/// to cancel a task.
async fn cancel_during_a_claim(database: &Database) -> i64 {
    let tasks = ["a", "b"].map(|name| task(name, &json!([])));
    let run = run(database, json!(tasks)).await;
    claim(database, "a").await;
    let (claimer, holder) = (database.connect().await, database.connect().await);
    let begin = format!("BEGIN; {}", claim_as_worker("name = 'b'"));
    claimer.batch_execute(&begin).await.unwrap();
    // The function waits for this request while it inserts its own.
    let request = "BEGIN; INSERT INTO mill.cancel_requests (task_id) SELECT id FROM mill.tasks WHERE name = 'a'";
    holder.batch_execute(request).await.unwrap();
    let operator = database.connect().await;
    let cancel = format!("SELECT mill.cancel_run({run}, true)");
    let claimed = async {
        database.until_a_session_waits_or("false").await;
        claimer.batch_execute("COMMIT").await.unwrap();
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let (cancelled, ()) = tokio::join!(operator.batch_execute(&cancel), claimed);
    cancelled.unwrap();
    // As often as polls find an event of the run.
    let events = format!("SELECT count(*) FROM mill.run_events WHERE run_id = {run}");
    for _ in 0..5 {
        if database.value::<i64>(&events).await > 0 {
            database.execute(&format!("SELECT mill.advance_run({run})")).await;
        }
    }
    database.value("SELECT count(*) FROM mill.cancel_requests").await
}

#[tokio::test]
async fn a_locked_task_of_a_cancelled_run_is_left_to_a_later_poll() {
    let database = Database::new().await;
    let run = run(&database, json!([task("a", &json!([]))])).await;
    let holder = database.connect().await;
    let lock = "BEGIN; SELECT FROM mill.tasks WHERE name = 'a' FOR UPDATE";
    holder.batch_execute(lock).await.unwrap();
    database.execute(&format!("SELECT mill.cancel_run({run})")).await;
    let more = format!("SELECT more FROM mill.advance_run({run})");
    assert!(!database.value::<bool>(&more).await, "the advance would be repeated without a pause");
    let events = format!("SELECT count(*) FROM mill.run_events WHERE run_id = {run}");
    assert_eq!(database.value::<i64>(&events).await, 1);
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(finish(&database, run).await, "cancelled");
}

#[tokio::test]
async fn a_reclaim_passes_by_a_task_whose_run_is_locked() {
    for planted in [false, true] {
        let database = Database::new().await;
        if planted {
            plant(&database, "mill.reclaim", ("mill.lock_run(t.run_id)", "true")).await;
        }
        let run = run(&database, json!([task("a", &json!([]))])).await;
        database.enqueue("SELECT 1", ", name => 'other'").await;
        database.run_as_worker("true").await;
        database.execute("UPDATE mill.tasks SET claimed_by = (SELECT min(claimed_by::text) FROM mill.tasks)::uuid").await;
        let holder = database.connect().await;
        holder.batch_execute(&format!("BEGIN; SELECT mill.cancel_run({run})")).await.unwrap();
        let worker = database.connect().await;
        worker.batch_execute("SET lock_timeout = '1ms'").await.unwrap();
        let reclaim =
            "SELECT mill.reclaim(claimed_by) FROM (SELECT DISTINCT claimed_by FROM mill.tasks
            WHERE state = 'running') AS w";
        let reclaimed = worker.batch_execute(reclaim).await;
        assert_eq!(reclaimed.is_err(), planted);
        let running =
            "SELECT string_agg(name, ' ' ORDER BY id) FROM mill.tasks WHERE state = 'running'";
        let expected = if planted { "a other" } else { "a" };
        assert_eq!(database.value::<String>(running).await, expected);
        holder.batch_execute("ROLLBACK").await.unwrap();
        worker.batch_execute(reclaim).await.unwrap();
        let running = "SELECT count(*) FROM mill.tasks WHERE state = 'running'";
        assert_eq!(database.value::<i64>(running).await, 0);
    }
}
