//! Tasks of a chain: the COMMIT of one task and the statement of the next travel in one message, and
//! nevertheless each task has its own transaction, result and session state.

use futures_util::future::join_all;
use proxy::{Cut, FaultAction, MessageMatch, Proxy};

use crate::harness::{Database, Worker, amount, eventually};

/// Inserts the task, its transaction, and whether the message also contained a COMMIT.
const MARK: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint,
    pg_current_xact_id()::text::bigint, current_query() ~ 'worker[.]commit'";

const ONE_READER: [&str; 4] = ["--readers", "1", "--poll-interval", "20ms"];

async fn database() -> Database {
    let database = Database::new().await;
    database
        .execute(
            "CREATE TABLE effect (task bigint NOT NULL, xact bigint NOT NULL, chained boolean)",
        )
        .await;
    database
}

/// Runs tasks until a chain has formed, which the reader does once tasks took a few milliseconds.
async fn until_chained(database: &Database) {
    eventually("a chain forms", async || {
        database.enqueue_many(50, MARK).await;
        database.until_empty().await;
        database.value::<bool>("SELECT bool_or(chained) FROM effect").await
    })
    .await;
    database.execute("TRUNCATE effect").await;
}

/// Enqueues all statements in one transaction and returns the task ids.
async fn enqueue(database: &Database, statements: &[&str]) -> Vec<i64> {
    let sql = "SELECT mill.enqueue(statement, max_attempts => 1)
        FROM unnest($1::text[]) WITH ORDINALITY AS t (statement, n) ORDER BY n";
    database.rows(sql, &[&statements]).await.iter().map(|row| row.get(0)).collect()
}

/// Asserts that each of these tasks has succeeded in its first attempt, with one effect.
async fn exactly_once(database: &Database, ids: &[i64], what: &str) {
    let sql = "SELECT count(*) FROM unnest($1::bigint[]) AS id
        WHERE (SELECT count(*) FROM effect e WHERE e.task = id) = 1
            AND (SELECT array_agg(a.outcome::text) FROM mill.attempts a WHERE a.task_id = id) = '{succeeded}'";
    let sound: i64 = database.rows(sql, &[&ids]).await[0].get(0);
    assert_eq!(usize::try_from(sound).unwrap(), ids.len(), "{what}");
}

#[tokio::test]
async fn each_task_of_a_chain_has_its_own_transaction_and_history() {
    let database = database().await;
    let _worker = Worker::start(&database, &ONE_READER);
    until_chained(&database).await;
    let ids = enqueue(&database, &[MARK; 200]).await;
    database.until_empty().await;
    exactly_once(&database, &ids, "200 tasks").await;
    let transactions = "SELECT count(DISTINCT xact) FROM effect";
    assert_eq!(database.value::<i64>(transactions).await, 200);
    let odd = "SELECT count(*) FROM mill.attempts WHERE rows <> 1 OR result IS NOT NULL
        OR notices IS NOT NULL OR finished_at < started_at";
    assert_eq!(database.value::<i64>(odd).await, 0);
}

#[tokio::test]
async fn a_faulty_task_of_a_chain_fails_alone_with_its_own_error() {
    let database = database().await;
    database
        .execute(
            "CREATE TABLE parent (id integer PRIMARY KEY);
             CREATE TABLE child (id integer REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
             CREATE PROCEDURE commits() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'",
        )
        .await;
    let _worker = Worker::start(&database, &ONE_READER);
    until_chained(&database).await;
    let faults = [
        ("SELEC 1", "42601", Some(1)),
        ("SELECT 'ä', missing", "42703", Some(13)),
        ("SELECT 1/0", "22012", None),
        ("INSERT INTO child VALUES (1)", "23503", None),
        ("CALL commits()", "2D000", None),
        ("SELECT $x$", "42601", Some(8)),
    ];
    let mut statements = Vec::new();
    for (fault, ..) in faults {
        statements.extend([MARK, MARK, MARK, fault, MARK, fault, fault, MARK]);
    }
    let ids = enqueue(&database, &statements).await;
    database.until_empty().await;
    let (mut sound, mut faulty) = (Vec::new(), Vec::new());
    for (id, statement) in ids.iter().zip(&statements) {
        match faults.iter().find(|(fault, ..)| fault == statement) {
            Some(fault) => faulty.push((*id, fault)),
            None => sound.push(*id),
        }
    }
    exactly_once(&database, &sound, "the tasks between the faulty ones").await;
    for (id, (statement, sqlstate, position)) in faulty {
        let sql = "SELECT sqlstate, position FROM mill.attempts WHERE task_id = $1";
        let rows = database.rows(sql, &[&id]).await;
        let found: Vec<(String, Option<i32>)> =
            rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        assert_eq!(found, [((*sqlstate).to_owned(), *position)], "{statement}");
    }
}

#[tokio::test]
async fn no_session_state_passes_from_one_task_of_a_chain_to_the_next() {
    let database = database().await;
    database.execute("CREATE TABLE seen (task bigint, chained boolean, state text)").await;
    let leaves = "SET default_transaction_isolation = 'serializable'; SET search_path = nowhere;
        CREATE TEMP TABLE left_behind (); SELECT pg_advisory_lock(current_setting('mill.task_id')::bigint);
        LISTEN left_behind; PREPARE left_behind AS SELECT 1; SET statement_timeout = '1 h';
        DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1; SET ROLE pg_monitor";
    let sees = "INSERT INTO seen SELECT current_setting('mill.task_id')::bigint,
        current_query() ~ 'worker[.]commit', concat_ws(' ', current_setting('transaction_isolation'),
            current_setting('search_path'), to_regclass('pg_temp.left_behind'), current_setting('role'),
            current_setting('statement_timeout'),
            (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
            (SELECT count(*) FROM pg_prepared_statements WHERE from_sql), (SELECT count(*) FROM pg_cursors),
            (SELECT count(*) FROM pg_listening_channels()))";
    let _worker = Worker::start_as_superuser(&database, "the task sets a role", &ONE_READER);
    until_chained(&database).await;
    eventually("a task follows the other one in a chain", async || {
        enqueue(&database, &[leaves, sees].repeat(20)).await;
        database.until_empty().await;
        database.value::<bool>("SELECT coalesce(bool_or(chained), false) FROM seen").await
    })
    .await;
    let states = "SELECT string_agg(DISTINCT state, '; ') FROM seen";
    let expected = "read committed \"$user\", public none 0 0 0 0 0";
    assert_eq!(database.value::<String>(states).await, expected);
    let failed = "SELECT count(*) FROM mill.attempts WHERE outcome <> 'succeeded'";
    assert_eq!(database.value::<i64>(failed).await, 0);
}

/// The server reads a message with the settings that the session has when the message arrives, before
/// it executes the reset in this message.
#[tokio::test]
async fn a_task_is_read_with_the_settings_of_a_clean_session() {
    let database = database().await;
    database.execute("CREATE TABLE seen (text text NOT NULL)").await;
    let leaves = "SET client_encoding = 'LATIN1'; SET standard_conforming_strings = off";
    let named = "INSERT INTO seen VALUES (current_setting('mill.name'))";
    let sees = ["INSERT INTO seen VALUES ('é')", r"INSERT INTO seen VALUES ('a\tb')", named];
    let tasks: Vec<&str> = sees.iter().flat_map(|sees| [leaves, *sees, leaves, MARK]).collect();
    let enqueue = "SELECT mill.enqueue(statement, max_attempts => 1,
            name => CASE WHEN statement LIKE '%mill.name%' THEN 'ü' END)
        FROM generate_series(1, 10), unnest($1::text[]) WITH ORDINALITY AS t (statement, n) ORDER BY 1, n";
    let _worker = Worker::start(&database, &ONE_READER);
    until_chained(&database).await;
    database.rows(enqueue, &[&tasks]).await;
    database.until_empty().await;
    let seen = "SELECT string_agg(DISTINCT text, ' ' ORDER BY text) || ' ' || count(*) FROM seen";
    assert_eq!(database.value::<String>(seen).await, r"a\tb é ü 30");
    let failed = "SELECT count(*) FROM mill.attempts WHERE outcome <> 'succeeded'";
    assert_eq!(database.value::<i64>(failed).await, 0);
}

#[tokio::test]
async fn a_notice_of_a_commit_is_not_attributed_to_the_next_task() {
    let database = database().await;
    database
        .execute(
            "CREATE TABLE noisy (id integer);
             CREATE FUNCTION speak() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN RAISE NOTICE ''from the commit''; RETURN NULL; END';
             CREATE CONSTRAINT TRIGGER speak AFTER INSERT ON noisy DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION speak()",
        )
        .await;
    let _worker = Worker::start(&database, &ONE_READER);
    until_chained(&database).await;
    let fails = "DO 'BEGIN RAISE NOTICE ''own''; RAISE ''failed''; END'";
    let silent =
        ["INSERT INTO noisy VALUES (2)", "SELECT 1/0", "INSERT INTO noisy VALUES (2)", fails];
    let repeats = amount(8, 20);
    let failing = enqueue(&database, &silent.repeat(repeats)).await;
    database.until_empty().await;
    let of_failures = "SELECT count(*) FILTER (WHERE sqlstate = '22012' AND notices IS NOT NULL),
            count(*) FILTER (WHERE sqlstate = 'P0001' AND jsonb_array_length(notices) = 1
                AND notices->0->>'message' = 'own')
        FROM mill.attempts WHERE task_id = ANY ($1)";
    let row = &database.rows(of_failures, &[&failing]).await[0];
    let expected = i64::try_from(repeats).unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (0, expected));
    until_chained(&database).await;
    let statements = ["INSERT INTO noisy VALUES (1)", MARK].repeat(repeats);
    let ids = enqueue(&database, &statements).await;
    let own = enqueue(&database, &["DO 'BEGIN RAISE NOTICE ''own''; END'", MARK].repeat(5)).await;
    database.until_empty().await;
    let marks: Vec<i64> = ids.iter().chain(&own).skip(1).step_by(2).copied().collect();
    exactly_once(&database, &marks, "tasks after a commit with a notice").await;
    let sql = "SELECT count(*) FILTER (WHERE task_id = ANY ($1)),
            count(*) FILTER (WHERE notices->0->>'message' = 'own' AND jsonb_array_length(notices) = 1)
        FROM mill.attempts WHERE notices IS NOT NULL AND outcome = 'succeeded'";
    let row = &database.rows(sql, &[&marks]).await[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (0, 5));
}

#[tokio::test]
async fn a_task_that_runs_again_alone_because_of_a_notice_shows_its_notices_while_it_runs() {
    let database = database().await;
    database.execute("CREATE SEQUENCE in_chain; SELECT pg_advisory_lock(7)").await;
    let _worker = Worker::start(&database, &ONE_READER);
    until_chained(&database).await;
    let noisy = "DO $$ BEGIN RAISE NOTICE 'own'; IF current_query() ~ 'worker[.]commit'
        THEN PERFORM nextval('in_chain'); ELSE PERFORM pg_advisory_xact_lock(7); END IF; END $$";
    let ids = enqueue(&database, &[MARK, noisy]).await;
    let shown = "SELECT coalesce(max(notices->0->>'message'), '') FROM mill.running";
    eventually("its notice is shown", async || database.value::<String>(shown).await == "own")
        .await;
    let in_chain = "SELECT is_called FROM in_chain";
    assert!(database.value::<bool>(in_chain).await, "the task has not run in a chain before");
    database.execute("SELECT pg_advisory_unlock(7)").await;
    assert_eq!(database.outcome(ids[1]).await, "succeeded");
}

#[tokio::test]
async fn tasks_with_parameters_limits_or_effects_outside_the_cluster_run_in_no_chain() {
    let options = [
        "params => '[]'",
        "concurrency_key => 'k', concurrency => 8",
        "external => true",
        "explain => true",
        "options => '{\"isolation\": \"read_committed\"}'",
    ];
    let database = database().await;
    for option in options {
        // Such tasks keep their worker from chains for BATCH_COOL_DOWN.
        let _worker = Worker::start(&database, &ONE_READER);
        until_chained(&database).await;
        let sql = format!("SELECT mill.enqueue($1, {option}) FROM generate_series(1, 40)");
        database.rows(&sql, &[&MARK]).await;
        database.until_empty().await;
        let chained = "SELECT count(*) FILTER (WHERE chained) || ' of ' || count(*) FROM effect";
        assert_eq!(database.value::<String>(chained).await, "0 of 40", "{option}");
    }
}

#[tokio::test]
async fn tasks_do_not_wait_behind_a_slow_task_of_their_chain() {
    let database = database().await;
    database.execute("SELECT pg_advisory_lock(7)").await;
    let worker = Worker::start(&database, &["--readers", "2", "--poll-interval", "20ms"]);
    until_chained(&database).await;
    let slow = "SELECT pg_advisory_xact_lock(7)";
    let ids = enqueue(&database, &[&[slow][..], &[MARK; 30]].concat()).await;
    let left = "SELECT count(*) FROM mill.tasks";
    eventually("every other task has ended", async || database.value::<i64>(left).await == 1).await;
    exactly_once(&database, &ids[1..], "the tasks behind the slow one").await;
    database.execute("SELECT pg_advisory_unlock(7)").await;
    assert_eq!(database.outcome(ids[0]).await, "succeeded");
    assert!(!worker.log().contains("claim lost"), "{}", worker.log());
}

/// Returns the task that waits for the lock in a message that began with the COMMIT of the task
/// before it, with all ids.
async fn chained_and_waiting(database: &Database) -> (i64, Vec<i64>) {
    loop {
        until_chained(database).await;
        let waits = format!("{MARK}; SELECT pg_advisory_xact_lock(7)");
        let ids = enqueue(database, &[MARK, &waits, MARK]).await;
        let id = ids[1];
        database.until_waiting_for_lock(id).await;
        let chained = "SELECT query ~ 'worker[.]commit' FROM pg_stat_activity
            WHERE datname = current_database() AND application_name LIKE 'pgmill reader 1 %'";
        if database.value::<bool>(chained).await {
            return (id, ids);
        }
        database.execute("SELECT pg_advisory_unlock(7)").await;
        database.until_empty().await;
        database.execute("SELECT pg_advisory_lock(7)").await;
    }
}

#[tokio::test]
async fn a_task_that_became_slow_holds_up_no_task_of_its_chain() {
    let database = database().await;
    database.execute("SELECT pg_advisory_lock(7)").await;
    let _worker = Worker::start(&database, &["--readers", "2", "--poll-interval", "20ms"]);
    until_chained(&database).await;
    let waits = format!("{MARK}; SELECT pg_advisory_xact_lock(7)");
    let ids = enqueue(&database, &[MARK, MARK, &waits, MARK, MARK, MARK]).await;
    let left = "SELECT count(*) FROM mill.tasks";
    eventually("every other task has ended", async || database.value::<i64>(left).await == 1).await;
    database.until_waiting_for_lock(ids[2]).await;
    exactly_once(&database, &[&ids[..2], &ids[3..]].concat(), "the other tasks").await;
    database.execute("SELECT pg_advisory_unlock(7)").await;
    assert_eq!(database.outcome(ids[2]).await, "succeeded");
    exactly_once(&database, &ids, "all tasks").await;
}

#[tokio::test]
async fn a_slow_commit_holds_up_at_most_the_task_in_its_message() {
    let database = database().await;
    database
        .execute(
            "SELECT pg_advisory_lock(7);
             CREATE TABLE slow (id integer);
             CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END';
             CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION wait()",
        )
        .await;
    let _worker = Worker::start(&database, &["--readers", "2", "--poll-interval", "20ms"]);
    until_chained(&database).await;
    let slow = format!("{MARK}; INSERT INTO slow VALUES (1)");
    let ids = enqueue(&database, &[&[slow.as_str()][..], &[MARK; 12]].concat()).await;
    database.until_waiting_for_lock(ids[0]).await;
    let left = "SELECT count(*) FROM mill.tasks";
    eventually("all but two tasks have ended", async || database.value::<i64>(left).await <= 2)
        .await;
    database.execute("SELECT pg_advisory_unlock(7)").await;
    database.until_empty().await;
    exactly_once(&database, &ids, "all tasks").await;
}

#[tokio::test]
async fn a_cancel_ends_the_running_task_of_a_chain_and_no_other() {
    let database = database().await;
    database.execute("SELECT pg_advisory_lock(7)").await;
    let _worker = Worker::start(&database, &ONE_READER);
    let (id, ids) = chained_and_waiting(&database).await;
    database.execute(&format!("SELECT mill.cancel({id})")).await;
    assert_eq!(database.outcome(id).await, "cancelled");
    database.until_empty().await;
    exactly_once(&database, &[ids[0], ids[2]], "the other tasks").await;
    let cancelled = format!("SELECT count(*) FROM effect WHERE task = {id}");
    assert_eq!(database.value::<i64>(&cancelled).await, 0);
}

#[tokio::test]
async fn a_terminated_backend_ends_the_running_task_of_a_chain_and_no_other() {
    let database = database().await;
    database.execute("SELECT pg_advisory_lock(7)").await;
    let _worker = Worker::start(&database, &ONE_READER);
    let (id, ids) = chained_and_waiting(&database).await;
    database
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'pgmill reader 1 %'",
        )
        .await;
    database.execute("SELECT pg_advisory_unlock(7)").await;
    assert_eq!(database.outcome(id).await, "failed");
    database.until_empty().await;
    exactly_once(&database, &[ids[0], ids[2]], "the other tasks").await;
    let effects = format!("SELECT count(*) FROM effect WHERE task = {id}");
    assert_eq!(database.value::<i64>(&effects).await, 0);
}

/// Runs chains on one reader. The session is cut at the n-th message of the n-th chain; in the short
/// form, only at every third message from `first` on, because the other sweeps cut at the messages
/// in between. Returns the number of the last message that could be cut.
async fn sweep(first: u32, cut: Cut) -> u32 {
    let database = database().await;
    let proxy = Proxy::start(&database.url()).await.unwrap();
    let through = proxy.url(&database.task_url());
    let flags = ["--readers", "1", "--poll-interval", "100ms", "--task-url", &through];
    let _worker = Worker::start(&database, &flags);
    for n in (amount(first, 1)..).step_by(amount(3, 1)) {
        until_chained(&database).await;
        let idle = "SELECT count(*) = 1 AND bool_and(state = 'idle') FROM pg_stat_activity
            WHERE datname = current_database() AND application_name LIKE 'pgmill reader 1 %'";
        eventually("the reader is idle", async || database.value::<bool>(idle).await).await;
        proxy.arm(MessageMatch::Message(n), FaultAction::Cut(cut));
        let ids = enqueue(&database, &[MARK; 6]).await;
        database.until_empty().await;
        let fired = proxy.disarm();
        let sql = "SELECT count(*) FROM unnest($1::bigint[]) AS id
            WHERE (SELECT count(*) FROM effect e WHERE e.task = id) = 1
                AND (SELECT count(*) FROM mill.attempts a
                    WHERE a.task_id = id AND a.final AND a.outcome = 'succeeded') = 1";
        let sound: i64 = database.rows(sql, &[&ids]).await[0].get(0);
        assert_eq!(sound, 6, "{cut:?} message {n}");
        if !fired {
            return n - 1;
        }
    }
    unreachable!("a chain has an end")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_task_of_a_chain_has_one_effect_wherever_its_session_is_cut() {
    let cuts = [(1, Cut::Before), (2, Cut::After), (3, Cut::Unseen)];
    for messages in join_all(cuts.map(|(first, cut)| sweep(first, cut))).await {
        assert!(messages >= 4, "{messages} messages were cut: too few for a meaningful test");
    }
}
