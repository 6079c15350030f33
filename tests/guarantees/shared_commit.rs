//! Short tasks may share a transaction, and nevertheless remain separate: each of them fails alone,
//! is cancelled alone, has its own history, and leaves no state to the next task.

use crate::harness::{Database, Worker, amount, until_shared};

/// Inserts a row with the id of the task and of its transaction.
const MARK: &str = "INSERT INTO effect
    SELECT current_setting('mill.task_id')::bigint, pg_current_xact_id()::text::bigint RETURNING task";

/// Creates a database whose default queue shares commits for up to `budget`, and a table of
/// effects.
async fn database(budget: &str) -> Database {
    let database = Database::new().await;
    database
        .execute(&format!(
            "CREATE TABLE effect (task bigint NOT NULL, xact bigint NOT NULL);
             SELECT mill.set_shared_commit('default', '{budget}')"
        ))
        .await;
    database
}

/// Enqueues all statements in one transaction and returns the task ids.
async fn enqueue(database: &Database, statements: &[String], options: &str) -> Vec<i64> {
    let sql = format!(
        "SELECT mill.enqueue(statement{options})
         FROM unnest($1::text[]) WITH ORDINALITY AS t (statement, n) ORDER BY n"
    );
    database.rows(&sql, &[&statements]).await.iter().map(|row| row.get(0)).collect()
}

async fn transactions(database: &Database) -> i64 {
    database.value("SELECT count(DISTINCT xact) FROM effect").await
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_transaction_have_each_its_own_rows_notices_and_effect() {
    until_shared(run_tasks_with_rows_notices_and_effect).await;
}

/// Returns whether the tasks shared transactions.
async fn run_tasks_with_rows_notices_and_effect() -> bool {
    const TASKS: usize = 400;
    let database = database("100ms").await;
    database
        .execute(
            "CREATE FUNCTION mark() RETURNS TABLE (task text, name text) LANGUAGE plpgsql AS $$
             BEGIN
                 INSERT INTO effect
                     SELECT current_setting('mill.task_id')::bigint, pg_current_xact_id()::text::bigint;
                 RAISE NOTICE 'task %', current_setting('mill.task_id');
                 RETURN QUERY SELECT current_setting('mill.task_id'), current_setting('mill.name')
                     FROM generate_series(1, 2);
             END $$",
        )
        .await;
    // A trailing comment ends the statement, and does not affect the next one.
    let statements = vec!["SELECT * FROM mark() -- and no more".to_owned(); TASKS];
    let ids = enqueue(&database, &statements, ", name => 'marks'").await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    database.until_empty().await;
    let odd: i64 = database
        .value(
            "SELECT count(*) FROM mill.attempts a WHERE NOT (outcome = 'succeeded' AND final AND rows = 2
             AND result->'rows'->1 = jsonb_build_array(task_id::text, 'marks')
             AND jsonb_array_length(result->'rows') = 2 AND jsonb_array_length(notices) = 1
             AND notices->0->>'message' = 'task ' || task_id AND started_at <= finished_at)",
        )
        .await;
    assert_eq!(odd, 0);
    let counts =
        "SELECT count(*), count(DISTINCT task), (SELECT count(*) FROM mill.attempts) FROM effect";
    let row = &database.rows(counts, &[]).await[0];
    let expected = i64::try_from(ids.len()).unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), (expected, expected, expected));
    transactions(&database).await < expected / 4
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_fails_in_a_shared_transaction_fails_alone() {
    until_shared(run_tasks_of_which_some_fail).await;
}

/// Returns whether the tasks shared transactions.
async fn run_tasks_of_which_some_fail() -> bool {
    // Each kind of bad task occurs in the short form, too.
    let tasks = amount(280, 600);
    let database = database("100ms").await;
    database
        .execute(
            "CREATE TABLE parent (id int PRIMARY KEY);
             CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
    let bad = [
        ("SELECT 1 / 0".to_owned(), "22012"),
        (format!("{MARK}; SELECT 1 / 0"), "22012"),
        ("SELECT FROM".to_owned(), "42601"),
        ("SELECT 'open".to_owned(), "42601"),
        (format!("{MARK}; INSERT INTO child VALUES (1)"), "23503"),
        ("COMMIT".to_owned(), "0A000"),
        (format!("{MARK}; COPY effect FROM STDIN"), "0A000"),
    ];
    let statements: Vec<String> = (0..tasks)
        .map(|n| if n % 40 == 39 { bad[n / 40 % bad.len()].0.clone() } else { MARK.to_owned() })
        .collect();
    let ids = enqueue(&database, &statements, ", max_attempts => 1").await;
    let _worker = Worker::start(&database, &["--readers", "2"]);
    database.until_empty().await;
    let sql = "SELECT (SELECT string_agg(a.outcome || ' ' || coalesce(a.sqlstate, ''), ',')
                   FROM mill.attempts a WHERE a.task_id = t.id),
                   (SELECT count(*) FROM effect e WHERE e.task = t.id)
               FROM unnest($1::bigint[]) WITH ORDINALITY AS t (id, n) ORDER BY t.n";
    let rows = database.rows(sql, &[&ids]).await;
    assert_eq!(rows.len(), tasks);
    for (n, row) in rows.iter().enumerate() {
        let (ended, effects): (String, i64) = (row.get(0), row.get(1));
        if n % 40 == 39 {
            let (statement, sqlstate) = &bad[n / 40 % bad.len()];
            assert_eq!((ended, effects), (format!("failed {sqlstate}"), 0), "{statement}");
        } else {
            assert_eq!((ended.as_str(), effects), ("succeeded ", 1), "task {n}");
        }
    }
    transactions(&database).await < i64::try_from(tasks).unwrap() * 3 / 4
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_task_in_a_shared_transaction_is_run_again_alone_and_can_be_cancelled() {
    const SLEEPS: &str = "SELECT pg_sleep(600)";
    let database = database("10ms").await;
    let mut statements = vec![MARK.to_owned(); 300];
    statements[200] = SLEEPS.to_owned();
    statements[210] = format!("{MARK}; SELECT pg_sleep(0.3)");
    let ids = enqueue(&database, &statements, ", max_attempts => 1").await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let sleeps = ids[200];
    // All tasks have ended except the sleeping task and the tasks behind it, which wait for the
    // only reader.
    crate::harness::eventually("the task sleeps alone", async || {
        let sql = "SELECT FROM mill.running WHERE wait_event = 'PgSleep' AND id = $1
                   AND (SELECT count(*) FROM mill.tasks WHERE state = 'running') = 1";
        !database.rows(sql, &[&sleeps]).await.is_empty()
    })
    .await;
    database.rows("SELECT mill.cancel($1)", &[&sleeps]).await;
    assert_eq!(database.outcome(sleeps).await, "cancelled");
    database.until_empty().await;
    let row = &database.rows("SELECT count(*), count(DISTINCT task) FROM effect", &[]).await[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (299, 299));
    let attempts =
        "SELECT count(*) FILTER (WHERE outcome = 'succeeded'), count(*) FROM mill.attempts";
    let row = &database.rows(attempts, &[]).await[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (299, 300));
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_must_not_share_a_transaction_run_alone() {
    until_shared(run_tasks_of_which_some_must_not_share).await;
}

/// Returns whether the other tasks shared transactions.
async fn run_tasks_of_which_some_must_not_share() -> bool {
    let database = database("100ms").await;
    // The timeout is not longer than the time limit of a shared commit, which is ten time budgets. On
    // a busy machine, an attempt can exceed it.
    let short = ", timeout => '1s', max_attempts => 100, retry_interval => '0'";
    let serializable = r#", options => '{"isolation": "serializable"}'"#;
    let options = [short, ", external => true", ", params => '[]'", serializable];
    let mut alone = Vec::new();
    for options in options {
        alone.extend(enqueue(&database, &vec![MARK.to_owned(); 20], options).await);
    }
    let mentions = format!("SET CONSTRAINTS ALL IMMEDIATE; {MARK}");
    alone.extend(enqueue(&database, &vec![mentions; 20], "").await);
    let many = enqueue(&database, &vec![MARK.to_owned(); 200], "").await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    database.until_empty().await;
    let sql = "SELECT count(*), count(DISTINCT xact) FROM effect WHERE task = ANY ($1)";
    let row = &database.rows(sql, &[&alone]).await[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (100, 100));
    let row = &database.rows(sql, &[&many]).await[0];
    assert_eq!(row.get::<_, i64>(0), 200);
    row.get::<_, i64>(1) < 200
}

/// A chain is allowed: each of its tasks has a COMMIT of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_trigger_runs_with_the_settings_of_its_task() {
    let database = database("100ms").await;
    database
        .execute(
            "CREATE TABLE deferred (task bigint, seen text, zone text);
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 INSERT INTO deferred
                     VALUES (NEW.task, current_setting('mill.task_id', true), current_setting('TimeZone'));
                 RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER see AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION see()",
        )
        .await;
    let statements = vec![format!("SET LOCAL TimeZone = 'Asia/Tokyo'; {MARK}"); 100];
    enqueue(&database, &statements, "").await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    database.until_empty().await;
    let own = "SELECT count(*) FROM deferred WHERE seen = task::text AND zone = 'Asia/Tokyo'";
    assert_eq!((transactions(&database).await, database.value::<i64>(own).await), (100, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_setting_of_a_task_applies_to_the_commit_that_it_shares() {
    until_shared(run_tasks_that_give_up_durability).await;
}

/// Returns whether the tasks shared transactions.
async fn run_tasks_that_give_up_durability() -> bool {
    let database = database("100ms").await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    database.run("SELECT 1", "").await;
    // The session is open, and has found no deferred trigger, so its tasks still share transactions.
    database
        .execute(
            "CREATE TABLE commits (xact bigint, setting text);
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 INSERT INTO commits VALUES (NEW.xact, current_setting('synchronous_commit'));
                 RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER see AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION see()",
        )
        .await;
    enqueue(&database, &vec![format!("{MARK}; SET synchronous_commit = off"); 400], "").await;
    database.until_empty().await;
    // A task that runs alone gives up only its own durability.
    let shared = "SELECT string_agg(DISTINCT setting, ' ') FROM commits
        WHERE xact IN (SELECT e.xact FROM effect e GROUP BY e.xact HAVING count(*) > 1)";
    let settings: Option<String> = database.value(shared).await;
    assert!(settings.as_deref().is_none_or(|settings| settings == "on"), "{settings:?}");
    settings.is_some()
}
