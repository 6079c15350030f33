//! The progress of a running task is visible while it runs: from its own notices, and from the
//! server's progress views.

use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker, eventually};
use crate::project::docs::blocks;
use crate::project::tidy::root;

/// Reports progress, waits for a lock, and reports more after it.
const REPORTS_PROGRESS: &str = "DO $$ BEGIN
    FOR n IN 1..15 LOOP RAISE NOTICE 'file %', n; END LOOP;
    RAISE NOTICE 'progress: %% loading', 10;
    RAISE NOTICE 'progress: 40.5%% loading';
    PERFORM pg_advisory_xact_lock(1);
    RAISE NOTICE 'progress: at the end';
END $$";

#[tokio::test(flavor = "multi_thread")]
async fn progress_of_a_task_is_visible_while_it_runs() {
    let database = Database::new().await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let mut worker = Worker::start(&database, &["--readers", "3"]);
    let fragment = REPORTS_PROGRESS.replace("%% loading', 10", "10%% loading'");
    let id = database.enqueue(&fragment, ", name => 'load'").await;
    let silent = database.enqueue("SELECT pg_advisory_xact_lock(1)", "").await;
    let row = format!(
        "SELECT coalesce((SELECT concat_ws(' | ', progress, percent, reported_at > started_at, notices->0->>'message',
            notices->-1->>'message', jsonb_array_length(notices)) FROM mill.running WHERE id = {id}), '')"
    );
    eventually("progress is recorded", async || {
        database.value::<String>(&row).await == "loading | 40.5 | t | file 6 | file 15 | 10"
    })
    .await;
    // Tasks without progress reports write no rows.
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.progress").await, 1);
    let shown = Program::pgmill(&database, &["task", "show", &id.to_string()]).succeeds().await;
    assert!(shown.contains("progress: 40 % loading\nNOTICE: file 6\n"), "{shown}");

    // Hidden statements are hidden here too.
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    database.execute("UPDATE mill.settings SET hide_statements = true").await;
    let hidden =
        "SELECT count(*) FROM mill.running WHERE num_nonnulls(progress, percent, notices) > 0";
    let seen = viewer.connect().await.query_one(hidden, &[]).await.unwrap();
    assert_eq!(seen.get::<_, i64>(0), 0);
    assert_eq!(database.value::<i64>(hidden).await, 1);

    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    assert_eq!(database.outcome(silent).await, "succeeded");
    let left = "SELECT count(*) FROM mill.progress";
    eventually("its row is gone", async || database.value::<i64>(left).await == 0).await;
    // History contains all notices except the progress messages. Of these only the last is kept.
    let kept = database.record(id).await.notices;
    let kept: Vec<&str> =
        kept.as_array().unwrap().iter().map(|it| it["message"].as_str().unwrap()).collect();
    assert_eq!((kept.len(), kept[14], kept[15]), (16, "file 15", "progress: at the end"));
    assert!(worker.terminate().await.success());
    viewer.drop().await;
}

/// Each line of the example in docs/tasks.md reports what its comment states.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_example_reports_a_percentage() {
    let database = Database::new().await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let _worker = Worker::start(&database, &["--readers", "2"]);
    let page = root().join("docs/tasks.md");
    let example = blocks(&page, "sql").into_iter().find(|block| block.contains("'progress:"));
    let mut shown = Vec::new();
    for line in example.unwrap().lines() {
        let (statement, comment) = line.split_once("--").unwrap();
        let task = format!(
            "DO $$ DECLARE percent integer := 40; n integer := 3; files integer := 7;
             BEGIN {statement} PERFORM pg_advisory_xact_lock_shared(1); END $$"
        );
        let id = database.enqueue(&task, "").await;
        let row = format!(
            "SELECT coalesce((SELECT 'progress: ' || concat(percent || ' % ', progress)
                FROM mill.running WHERE id = {id} AND reported_at IS NOT NULL), '')"
        );
        let mut reported = String::new();
        eventually("progress is recorded", async || {
            reported = database.value(&row).await;
            !reported.is_empty()
        })
        .await;
        assert_eq!(reported, comment.trim());
        shown.push(reported);
    }
    assert_eq!(shown, ["progress: 40 % loading", "progress: 3 of 7 files"]);
    database.execute("SELECT pg_advisory_unlock(1)").await;
    database.until_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_of_an_earlier_attempt_is_not_shown() {
    let database = Database::new().await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let mut worker = Worker::start(&database, &["--readers", "1"]);
    let fragment = "DO $$ BEGIN
        IF current_setting('mill.attempt') = '1' THEN RAISE NOTICE 'progress: 70%%'; END IF;
        PERFORM pg_advisory_xact_lock(1);
    END $$";
    let id = database.enqueue(fragment, "").await;
    let percent = format!("SELECT percent FROM mill.running WHERE id = {id}");
    eventually("progress is recorded", async || {
        database.rows(&percent, &[]).await.first().and_then(|row| row.get(0)) == Some(70.0)
    })
    .await;
    worker.kill();
    let _other = Worker::start(&database, &["--readers", "1"]);
    let second = format!("SELECT count(*) FROM mill.running WHERE id = {id} AND attempt = 2");
    eventually("the second attempt runs", async || database.value::<i64>(&second).await == 1).await;
    // The row of the first attempt still exists, but is not the progress of the second attempt.
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.progress").await, 1);
    assert_eq!(database.value::<Option<f64>>(&percent).await, None);
    database.execute("SELECT mill.prune()").await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.progress").await, 1);
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(id).await, "succeeded");
    database.execute("SELECT mill.prune()").await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.progress").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_of_a_command_comes_from_the_server() {
    let database = Database::new().await;
    // The creation of the index calls `held` for each row, and waits for the lock at row 90,000 of
    // 100,000.
    database
        .execute(
            "CREATE TABLE big AS SELECT n FROM generate_series(1, 100000) AS n;
             CREATE FUNCTION held(n integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
                 IF n = 90000 THEN PERFORM pg_advisory_lock(1); END IF; RETURN n; END $$;
             SELECT pg_advisory_lock(1)",
        )
        .await;
    let _worker = Worker::start_as_superuser(
        &database,
        "the task changes a table that it does not own",
        &["--readers", "1"],
    );
    let id = database.enqueue("CREATE INDEX held_by_us ON big (held(n))", "").await;
    // From now on the progress does not change. Before, the view can read it earlier than the wait.
    database.until_waiting_for_lock(id).await;
    let progress = format!("SELECT progress FROM mill.running WHERE id = {id}");
    let last: String = database.value(&progress).await;
    assert!(last.starts_with("create index: building index: scanning table "), "{last}");
    assert!(last.ends_with(" %"), "{last}");
    let percent: f64 = database.value("SELECT percent FROM mill.running").await;
    assert!((80.0..=95.0).contains(&percent), "{percent}: {last}");
    let shown = Program::pgmill(&database, &["task", "show", &id.to_string()]).succeeds().await;
    assert!(shown.contains(&format!("\nprogress: {last}\n")), "{shown}");
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(id).await, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_session_is_shown_with_its_statement() {
    let database = Database::new().await;
    let report = database.connect().await;
    let holds = "SET application_name = 'the report'; BEGIN; SELECT pg_advisory_xact_lock(1)";
    report.batch_execute(holds).await.unwrap();
    let _worker = Worker::start(&database, &["--readers", "2"]);
    let first = "SELECT pg_advisory_xact_lock(2), pg_advisory_xact_lock(1)";
    let first = database.enqueue(first, ", name => 'first'").await;
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    eventually("the first task waits", async || database.value::<i64>(held).await == 1).await;
    let second = database.enqueue("SELECT pg_advisory_xact_lock(2)", "").await;
    eventually("both tasks wait", async || database.value::<i64>(held).await == 2).await;
    let blockers =
        "SELECT string_agg(concat_ws(' ', b->>'task_id', b->>'name', b->>'application', b->>'state',
            b->>'transaction_started_at' IS NOT NULL), ', ' ORDER BY r.id)
        FROM mill.running r, jsonb_array_elements(r.blockers) AS b";
    let reported: String = database.value(blockers).await;
    let expected = format!("the report idle in transaction t, {first} first pgmill reader ");
    assert!(reported.starts_with(&expected), "{reported}");
    for (id, fragment) in
        [(first, "the report, user "), (second, &*format!("task {first} (first)"))]
    {
        let shown = Program::pgmill(&database, &["task", "show", &id.to_string()]).succeeds().await;
        let line = shown.lines().find(|line| line.starts_with("blocked by backend ")).unwrap();
        assert!(line.contains(fragment), "{shown}");
    }
    let why: String = database.value(&format!("SELECT mill.why({second})")).await;
    assert!(why.contains(&format!(" (task {first})")), "{why}");
    report.batch_execute("COMMIT").await.unwrap();
    assert_eq!(database.outcome(second).await, "succeeded");
}
