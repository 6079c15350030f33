//! Runs: parents before children, each task once, and outcomes according to the edges.

use serde_json::{Value, json};

use crate::harness::{Database, Fleet, Program, Worker, amount, eventually};

pub(crate) const FLAGS: [&str; 4] = ["--readers", "8", "--poll-interval", "50ms"];

/// Declares a job. `tasks` is the JSON document that `mill.set_job` accepts.
pub(crate) async fn job(database: &Database, name: &str, tasks: Value) {
    database.rows("SELECT mill.set_job($1, $2)", &[&name, &tasks]).await;
}

pub(crate) async fn start(database: &Database, jobs: &str) -> i64 {
    database
        .value(&format!("SELECT run_id FROM mill.start_run(string_to_array('{jobs}', ','))"))
        .await
}

pub(crate) async fn end(database: &Database, run: i64) -> String {
    let mut state = String::new();
    eventually(&format!("run {run} ends"), async || {
        state =
            database.value(&format!("SELECT state::text FROM mill.runs WHERE id = {run}")).await;
        state != "running"
    })
    .await;
    state
}

/// Returns `name state` of every task, by name.
pub(crate) async fn states(database: &Database, run: i64) -> String {
    let sql = format!(
        "SELECT string_agg(name || ' ' || state, ', ' ORDER BY name)
         FROM mill.run_task_status WHERE run_id = {run}"
    );
    database.value(&sql).await
}

pub(crate) async fn why(database: &Database, run: i64, task: &str) -> String {
    database.value(&format!("SELECT mill.why({run}, '{task}')")).await
}

/// A task whose branch was not taken is `skipped`. A task that would have run, had no task before it
/// failed or been cancelled, is `upstream_failed`. The outcome of the run is the same for both.
#[tokio::test]
async fn a_task_is_skipped_if_no_parent_failed_and_otherwise_upstream_failed() {
    let database = Database::new().await;
    let after = |task: &str, expected: &str| json!({"task": task, "expected": expected});
    let then = |name: &str, join: &str, after: Value| json!({"name": name, "statement": "SELECT 1", "join": join, "after": after});
    job(
        &database,
        "branches",
        json!([
            {"name": "load", "statement": "SELECT 1"},
            {"name": "bad", "statement": "SELECT 1/0", "max_attempts": 1, "ignore_failure": true},
            then("alarm", "all", json!([after("load", "failed")])),
            then("alarm_sent", "all", json!(["alarm"])),
            then("both", "all", json!(["load", "bad"])),
            then("clean_up", "all", json!([after("alarm", "always")])),
            then("either", "any", json!(["alarm", "load"])),
            then("not_finished", "all", json!([after("alarm", "finished")])),
            then("none", "any", json!(["alarm", "alarm_sent"])),
            then("none_failed", "any", json!(["alarm", "bad"])),
            then("second", "all", json!(["both"])),
        ]),
    )
    .await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = start(&database, "branches").await;
    assert_eq!(end(&database, run).await, "succeeded");
    assert_eq!(
        states(&database, run).await,
        "alarm skipped, alarm_sent skipped, bad failed, ignored, both upstream_failed, clean_up succeeded, \
         either succeeded, load succeeded, none skipped, none_failed upstream_failed, not_finished skipped, \
         second upstream_failed"
    );
    assert_eq!(
        why(&database, run, "alarm_sent").await,
        "it is skipped because of its parents: alarm (skipped, expected succeeded); cause: load (succeeded)"
    );
    let counts =
        "SELECT concat_ws(' ', tasks, succeeded, ignored, upstream_failed, skipped) FROM mill";
    for relation in ["run_status", "runs"] {
        assert_eq!(
            database.value::<String>(&format!("{counts}.{relation}")).await,
            "11 3 1 3 4",
            "{relation}"
        );
    }
    let shown = Program::pgmill(&database, &["run", "show", "1"]).succeeds().await;
    assert!(shown.contains("3 upstream_failed, 4 skipped") && shown.contains("skipped"), "{shown}");
    let drawn = Program::pgmill(&database, &["run", "graph", "1"]).succeeds().await;
    assert!(drawn.contains("[load succeeded] > failed > [alarm skipped]\n"), "{drawn}");
    let restart = format!("SELECT mill.restart_run({run}, failed => false)");
    let refused = database.client().batch_execute(&restart).await.unwrap_err();
    assert!(
        refused
            .as_db_error()
            .unwrap()
            .message()
            .contains("their parents have not ended as required"),
        "{refused:?}"
    );
}

/// Asserts that parents end before their children start, in every run of the database.
pub(crate) async fn assert_in_order(database: &Database) {
    let early: i64 = database
        .value(
            "SELECT count(*) FROM mill.run_edges e
                 JOIN mill.run_tasks p ON (p.run_id, p.node) = (e.run_id, e.parent)
                 JOIN mill.run_tasks c ON (c.run_id, c.node) = (e.run_id, e.child)
             WHERE c.join_mode = 'all' AND c.started_at < p.finished_at",
        )
        .await;
    assert_eq!(early, 0, "children that started before their parents had ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diamond_whose_parents_end_at_the_same_moment_runs_its_child_once() {
    let batch: i64 = amount(100, 1000);
    let database = Database::new().await;
    database
        .execute(
            "CREATE TABLE effect (run bigint NOT NULL, task text NOT NULL);
             GRANT SELECT (id, run_id, name) ON mill.tasks TO mill_test_tasks",
        )
        .await;
    let mark = "INSERT INTO effect SELECT run_id, name FROM mill.tasks
                WHERE id = current_setting('mill.task_id')::bigint";
    job(
        &database,
        "diamond",
        json!([
            {"name": "a", "statement": mark},
            {"name": "b", "statement": mark, "after": ["a"]},
            {"name": "c", "statement": mark, "after": ["a"]},
            {"name": "d", "statement": mark, "after": ["b", "c"]},
        ]),
    )
    .await;
    let _fleet = Fleet::start(&database, 2, &FLAGS);
    let registered = "SELECT count(*) FROM mill.workers";
    eventually("both work", async || database.value::<i64>(registered).await == 2).await;
    let (mut runs, mut together, mut apart) = (0_i64, 0_i64, 0_i64);
    while runs == 0 || together.min(apart) == 0 && runs < 1000 {
        for _ in 0..batch {
            start(&database, "diamond").await;
        }
        runs += batch;
        let ended = "SELECT count(*) FROM mill.runs WHERE state = 'succeeded'";
        eventually("every run ends", async || database.value::<i64>(ended).await == runs).await;
        together = database
            .value::<i64>(
                "SELECT count(*) FROM mill.run_tasks b JOIN mill.run_tasks c USING (run_id)
                 WHERE b.name = 'b' AND c.name = 'c' AND b.finished_at - c.finished_at BETWEEN '-2 ms' AND '2 ms'",
            )
            .await;
        apart = database
            .value::<i64>(
                "SELECT count(*) FROM mill.attempts b JOIN mill.attempts c USING (run_id)
                 WHERE b.name = 'b' AND c.name = 'c' AND b.worker_id <> c.worker_id",
            )
            .await;
    }
    let once =
        "SELECT count(*) FROM (SELECT FROM effect GROUP BY run, task HAVING count(*) = 1) AS once";
    assert_eq!(database.value::<i64>(once).await, runs * 4);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM effect").await, runs * 4);
    println!("of {runs} pairs of parents {together} ended within 2 ms, {apart} on two workers");
    assert!(together > 0 && apart > 0, "no pair ended together: too few for a meaningful test");
    assert_in_order(&database).await;
}

#[tokio::test]
async fn a_run_continues_past_a_failure_and_names_the_upstream_failed_tasks() {
    let database = Database::new().await;
    job(
        &database,
        "mixed",
        json!([
            {"name": "bad", "statement": "SELECT 1/0", "max_attempts": 1},
            {"name": "good", "statement": "SELECT 1"},
            {"name": "needs_bad", "statement": "SELECT 1", "after": ["bad", "good"]},
            {"name": "after_that", "statement": "SELECT 1", "after": ["needs_bad"]},
            {"name": "cleanup", "statement": "SELECT 1", "after": [{"task": "bad", "expected": "finished"}]},
            {"name": "alarm", "statement": "SELECT 1", "after": [{"task": "bad", "expected": "failed"}]},
            {"name": "either", "statement": "SELECT 1", "join": "any", "after": ["bad", "good"]},
            {"name": "rest", "statement": "SELECT 1", "after": ["good"]},
        ]),
    )
    .await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = start(&database, "MIXED").await;
    assert_eq!(end(&database, run).await, "failed");
    assert_eq!(
        states(&database, run).await,
        "after_that upstream_failed, alarm succeeded, bad failed, cleanup succeeded, either succeeded, \
         good succeeded, needs_bad upstream_failed, rest succeeded"
    );
    assert_eq!(
        why(&database, run, "needs_bad").await,
        "it cannot run because of its parents: bad (failed, expected succeeded)"
    );
    let output = why(&database, run, "bad").await;
    assert!(
        output.starts_with("it is finished: failed") && output.ends_with("division by zero"),
        "{output}"
    );
    let count =
        "SELECT concat_ws(' ', tasks, succeeded, failed, ignored, cancelled, upstream_failed)
                 FROM mill.run_status";
    assert_eq!(database.value::<String>(count).await, "8 5 1 0 0 2");
    assert_in_order(&database).await;
}

#[tokio::test]
async fn an_ignored_failure_does_not_make_the_run_fail() {
    let database = Database::new().await;
    job(
        &database,
        "lenient",
        json!([
            {"name": "a", "statement": "SELECT 1/0", "max_attempts": 1, "ignore_failure": true},
            {"name": "b", "statement": "SELECT 1", "after": [{"task": "a", "expected": "finished"}]},
        ]),
    )
    .await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = start(&database, "lenient").await;
    assert_eq!(end(&database, run).await, "succeeded");
    assert_eq!(states(&database, run).await, "a failed, ignored, b succeeded");
    assert!(why(&database, run, "a").await.contains(", ignored"));
}

#[tokio::test]
async fn two_jobs_are_merged_and_a_task_in_both_is_in_once_with_the_higher_priority() {
    let database = Database::new().await;
    job(
        &database,
        "Daily",
        json!([
            {"name": "raw", "statement": "SELECT 'daily'", "priority": "low"},
            {"name": "vault", "statement": "SELECT 1", "after": ["raw"]},
        ]),
    )
    .await;
    job(
        &database,
        "Sunday",
        json!([
            {"name": "raw", "statement": "SELECT 'sunday'", "priority": "high"},
            {"name": "mart", "statement": "SELECT 1"},
        ]),
    )
    .await;
    // The dependencies apply to every job that has both tasks. No task here is named "stage".
    database
        .execute("SELECT mill.set_dependency('mart', 'vault'), mill.set_dependency('raw', 'stage')")
        .await;
    let rows = database
        .rows(
            "SELECT run_id, dropped FROM mill.start_run(ARRAY[' daily ', 'SUNDAY', 'daily'])",
            &[],
        )
        .await;
    assert_eq!(rows[0].get::<_, Vec<String>>(1), ["stage > raw"]);
    let run: i64 = rows[0].get(0);
    // A run is frozen: this change applies to the next run.
    job(&database, "Daily", json!([{"name": "raw", "statement": "SELECT 'changed'"}])).await;
    let _worker = Worker::start(&database, &FLAGS);
    assert_eq!(end(&database, run).await, "succeeded");
    assert_eq!(states(&database, run).await, "mart succeeded, raw succeeded, vault succeeded");
    let raw = "SELECT statement || ' ' || priority FROM mill.attempts WHERE name = 'raw'";
    assert_eq!(database.value::<String>(raw).await, "SELECT 'sunday' high");
    assert_eq!(
        database
            .value::<Vec<String>>("SELECT array_agg(name ORDER BY started_at) FROM mill.attempts")
            .await,
        ["raw", "vault", "mart"]
    );
    assert_eq!(
        database.value::<Vec<String>>("SELECT jobs FROM mill.runs").await,
        ["Daily", "Sunday"]
    );
}

#[tokio::test]
async fn results_and_parameters_flow_on_and_are_bound() {
    let database = Database::new().await;
    database.execute("CREATE TABLE seen (a integer, b text, c date)").await;
    let evil = "'); DROP TABLE seen; --";
    job(
        &database,
        "flow",
        json!([
            {"name": "first", "statement": "SELECT 42 AS n, $1::text AS t", "params": [{"$param": "what"}]},
            {"name": "empty", "statement": "SELECT 1 AS n WHERE false"},
            {"name": "second", "statement": "INSERT INTO seen VALUES ($1, $2, $3)", "after": ["first"],
             "params": [{"$result": "first", "column": "n"}, {"$result": "first", "column": "t"},
                        {"$param": "day"}]},
            {"name": "third", "statement": "INSERT INTO seen VALUES ($1, 'null', NULL)", "after": ["empty"],
             "params": [{"$result": "empty", "column": "n"}]},
        ]),
    )
    .await;
    let given = json!({"what": evil, "day": "2026-12-24"});
    let run: i64 =
        database.rows("SELECT run_id FROM mill.start_run(ARRAY['flow'], $1)", &[&given]).await[0]
            .get(0);
    let _worker = Worker::start(&database, &FLAGS);
    assert_eq!(end(&database, run).await, "succeeded");
    let seen = "SELECT array_agg(concat_ws('|', a, b, c) ORDER BY b) FROM seen";
    assert_eq!(
        database.value::<Vec<String>>(seen).await,
        [format!("42|{evil}|2026-12-24"), "null".to_owned()]
    );
}

/// Returns the buffers needed to propagate the end of a task, which is one of `size` tasks between
/// a parent and a child.
async fn buffers_of_an_end(database: &Database, size: i32) -> i64 {
    const LAST_MEASURED: i32 = 11;
    database
        .execute(&format!(
            "INSERT INTO mill.jobs (name) VALUES ('wide {size}');
             INSERT INTO mill.job_tasks (job, name, statement)
                 SELECT 'wide {size}', 't' || lpad(n::text, 6, '0'), 'SELECT 1' FROM generate_series(0, {size} + 1) AS n;
             INSERT INTO mill.job_edges (job, parent, child)
                 SELECT 'wide {size}', 't000000', 't' || lpad(n::text, 6, '0') FROM generate_series(1, {size}) AS n
                 UNION ALL SELECT 'wide {size}', 't' || lpad(n::text, 6, '0'), 't' || lpad(({size} + 1)::text, 6, '0')
                 FROM generate_series(1, {size}) AS n"
        ))
        .await;
    let run = start(database, &format!("wide {size}")).await;
    let ends = async |node: i32| {
        let event = format!(
            "WITH gone AS (DELETE FROM mill.tasks WHERE run_id = {run} AND node = {node})
             INSERT INTO mill.run_events (run_id, node, outcome, attempts) VALUES ({run}, {node}, 'succeeded', 1)"
        );
        database.execute(&event).await;
    };
    ends(1).await;
    while database.value::<bool>(&format!("SELECT more FROM mill.advance_run({run})")).await {}
    let mut buffers = i64::MAX;
    for node in 2..=LAST_MEASURED {
        ends(node).await;
        let blocks = database.blocks_of(&format!("SELECT mill.advance_run({run})")).await;
        buffers = buffers.min(blocks);
    }
    let open = format!("SELECT count(*) FROM mill.tasks WHERE run_id = {run}");
    assert_eq!(database.value::<i64>(&open).await, i64::from(size - LAST_MEASURED + 1));
    buffers
}

#[tokio::test]
async fn the_end_of_a_task_costs_the_same_in_a_run_of_any_size() {
    let database = Database::new().await;
    let size = amount(2_000, 20_000);
    let small = buffers_of_an_end(&database, 20).await;
    let large = buffers_of_an_end(&database, size).await;
    println!(
        "the end of a task of a run: {small} buffers in one of 20 tasks, {large} in one of {size}"
    );
    // In a large run, the indexes are deeper. In addition, the first access to a page of a freshly
    // filled table reads the table's free space map.
    assert!(large <= small * 4, "{small} buffers in a small run, {large} in a large one");
}

#[tokio::test]
async fn unfinished_propagation_of_a_run_is_continued_by_any_worker() {
    const CHILDREN: i64 = 5000;
    let database = Database::new().await;
    database
        .execute(&format!(
            "INSERT INTO mill.jobs (name) VALUES ('wide');
             INSERT INTO mill.job_tasks (job, name, statement, options.max_attempts)
                 SELECT 'wide', 't' || n, 'SELECT 1/0', 1 FROM generate_series(0, {CHILDREN}) AS n;
             INSERT INTO mill.job_edges (job, parent, child)
                 SELECT 'wide', 't0', 't' || n FROM generate_series(1, {CHILDREN}) AS n"
        ))
        .await;
    let run = start(&database, "wide").await;
    // The worker that propagated the parent's failure died after one pass.
    database
        .execute(
            "WITH gone AS (DELETE FROM mill.tasks)
             INSERT INTO mill.run_events (run_id, node, outcome, attempts) VALUES (1, 1, 'failed', 1)",
        )
        .await;
    assert!(database.value::<bool>("SELECT more FROM mill.advance_run(1)").await);
    let _worker = Worker::start(&database, &FLAGS);
    assert_eq!(end(&database, run).await, "failed");
    assert_eq!(database.value::<i32>("SELECT upstream_failed FROM mill.runs").await, 5000);
}
