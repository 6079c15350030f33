//! No session state of a task reaches the next task.

use crate::harness::{Database, Worker, amount, until_shared};

/// All state that a session can carry from one task to the next. The first value is the pid of the
/// session.
const STATE: &str = "SELECT pg_backend_pid(), current_user, session_user,
    current_setting('role'), current_setting('statement_timeout'), current_setting('search_path'),
    current_setting('default_transaction_read_only'), current_setting('transaction_read_only'),
    current_setting('transaction_isolation'), current_setting('client_encoding'),
    current_setting('TimeZone'), coalesce(current_setting('own.setting', true), ''),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
    (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_cursors),
    (SELECT count(*) FROM pg_listening_channels()),
    (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()),
    (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock'),
    current_setting('mill.name'), current_setting('mill.queue')";

const LEAVES: &[&str] = &[
    "SET statement_timeout = '61s'",
    "SET search_path = pg_temp",
    "SET client_encoding = 'LATIN1'",
    "SET TimeZone = 'Asia/Tokyo'",
    "SELECT set_config('own.setting', 'left', false)",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SET ROLE pg_monitor",
    "SET SESSION AUTHORIZATION pg_monitor",
    "CREATE TEMP TABLE left_behind (n int)",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_advisory_lock_shared(2)",
    "LISTEN left_behind",
    "PREPARE left_behind AS SELECT 1",
    "DECLARE left_behind CURSOR WITH HOLD FOR SELECT generate_series(1, 1000)",
    "LOCK TABLE own IN ACCESS EXCLUSIVE MODE",
    "SELECT set_config('mill.name', 'left', false), set_config('mill.queue', 'left', false)",
];

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_task_leaves_in_its_session_reaches_the_next_one() {
    let database = Database::new().await;
    database.execute("CREATE TABLE own (n int)").await;
    let _worker =
        Worker::start_as_superuser(&database, "the task sets a role", &["--readers", "1"]);
    let before = database.run(STATE, "").await;
    assert_eq!(before.outcome, "succeeded", "{before:?}");
    for (m, mode) in ["transaction", "autocommit"].into_iter().enumerate() {
        for (n, left) in LEAVES.iter().enumerate() {
            // Outside a transaction block this statement fails.
            if mode == "autocommit" && left.starts_with("LOCK") {
                continue;
            }
            // In the short form, each statement has one ending in one mode, and the other ending in
            // the other mode.
            let (first, step) = amount(((n + m) % 2, 2), (0, 1));
            for ending in ["", "; SELECT 1 / 0"].into_iter().skip(first).step_by(step) {
                let statement = format!("{left}{ending}");
                let options = format!(", max_attempts => 1, mode => '{mode}', name => 'leaves'");
                let ran = database.run(&statement, &options).await;
                let expected = if ending.is_empty() { "succeeded" } else { "failed" };
                assert_eq!(ran.outcome, expected, "{mode}: {statement}: {ran:?}");
                // The state includes the pid, so an equal state means that the session was reset and not
                // replaced.
                let after = database.run(STATE, "").await;
                assert_eq!(after.result, before.result, "after {statement} in mode {mode}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_can_read_its_id_and_attempt() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let who = "SELECT current_setting('mill.task_id'), current_setting('mill.attempt'),
        current_setting('mill.queue'), current_setting('mill.name')";
    for mode in ["transaction", "autocommit"] {
        let options = format!(", mode => '{mode}', queue => 'a', name => 'it''s \"me\"; ü'");
        let id = database.enqueue(who, &options).await;
        let expected = [id.to_string(), "1".into(), "a".into(), "it's \"me\"; ü".into()];
        assert_eq!(database.record(id).await.row(0), expected);
        // In both modes, the next task finds no state of the previous task.
        for next in ["transaction", "autocommit"] {
            let id = database.enqueue(who, &format!(", mode => '{next}'")).await;
            let expected = [id.to_string(), "1".into(), "default".into(), String::new()];
            assert_eq!(database.record(id).await.row(0), expected);
        }
    }
    // The second attempt reads its own number.
    let second = "DO $$ BEGIN IF current_setting('mill.attempt') = '1' THEN
        RAISE EXCEPTION 'again'; END IF; END $$";
    let ran = database.run(second, ", retry_interval => '0'").await;
    assert_eq!((ran.outcome.as_str(), ran.attempts), ("succeeded", 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_session_state_crosses_a_task_boundary_within_a_shared_transaction() {
    until_shared(run_all_leaves_in_shared_transactions).await;
}

/// Runs each statement of [`LEAVES`] as a task, and after it a task that reads the state of the
/// session. Returns whether tasks shared transactions.
async fn run_all_leaves_in_shared_transactions() -> bool {
    let database = Database::new().await;
    database.execute("SELECT mill.set_shared_commit('default', '100ms')").await;
    let mut statements = vec!["SELECT 1".to_owned(); 200];
    // Ignore table locks, which last as long as the shared transaction.
    let state = STATE.replace("mode = 'AccessExclusiveLock'", "false");
    for left in LEAVES.iter().filter(|left| !left.starts_with("LOCK")) {
        for ending in ["", "; SELECT 1 / 0"] {
            statements.push(format!("{left}{ending}"));
            statements.push(state.clone());
        }
    }
    let sql = "SELECT mill.enqueue_many($1, max_attempts => 1)";
    database.rows(sql, &[&statements]).await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    database.until_empty().await;
    let states = "SELECT count(*), count(DISTINCT result), count(DISTINCT xmin::text)
                  FROM mill.attempts WHERE statement = $1 AND outcome = 'succeeded'";
    let row = &database.rows(states, &[&state]).await[0];
    let (all, distinct, transactions): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(all, i64::try_from(LEAVES.len() - 1).unwrap() * 2);
    let kinds = "SELECT DISTINCT result::text FROM mill.attempts WHERE statement = $1";
    let kinds: Vec<String> =
        database.rows(kinds, &[&state]).await.iter().map(|row| row.get(0)).collect();
    assert_eq!(distinct, 1, "{kinds:#?}");
    transactions < all / 2
}
