//! The database moves to another server by logical replication, which copies rows and leaves sequences
//! alone. No enqueue is refused afterwards, and no id is given twice.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::restore::program;
use super::worker;
use crate::harness::{Database, PrivateDatabase, Program, amount, eventually};
use crate::runs::run::end;
use crate::schedules::schedule::daily_in_half_a_day;

const EFFECT: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";
const WAITS_FOR_LOCK: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint;
    SELECT pg_advisory_xact_lock_shared(1)";

/// Leaves the tables empty, as pg_dump --schema-only does. The rows that the schema inserts come from the
/// publisher, too.
const EMPTY: &str =
    "DO $$BEGIN EXECUTE (SELECT 'TRUNCATE ' || string_agg(c.oid::regclass::text, ', ')
    FROM pg_class c WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind IN ('r', 'p')
        AND c.relpersistence = 'p' AND NOT c.relispartition) || ' CASCADE'; END$$";

/// A row in a partition of history that the publisher creates after the tables are copied. Without
/// publish_via_partition_root, the subscriber would silently ignore it.
const LATER: &str = "SELECT mill.prepare_history(20);
    INSERT INTO mill.attempts SELECT (jsonb_populate_record(a, jsonb_build_object(
            'finished_at', now() + interval '15 days', 'attempt', 2, 'final', false))).*
        FROM mill.attempts a LIMIT 1";

/// Ids of different tasks in history.
const GIVEN_TWICE: &str = "SELECT count(*) FROM (SELECT FROM mill.attempts WHERE final
    GROUP BY task_id HAVING count(*) > 1) AS twice";

/// Number of tasks that have ended before the move, without the one that needs a permit.
fn tasks_before() -> i64 {
    amount(60, 300)
}

/// Creates work of every kind on the publisher: ended tasks, a waiting task, a run in progress to which a
/// task was added, a schedule and a limit. Returns the run.
async fn at_work(database: &Database) -> i64 {
    database.execute("CREATE TABLE effect (task bigint PRIMARY KEY)").await;
    database
        .execute("CREATE PUBLICATION moves FOR ALL TABLES WITH (publish_via_partition_root)")
        .await;
    database.enqueue_many(tasks_before().try_into().unwrap(), EFFECT).await;
    database.enqueue(EFFECT, ", concurrency_key => 'k'").await;
    database.until_empty().await;
    let timing = daily_in_half_a_day(database).await;
    database.execute(&format!("SELECT mill.set_schedule('s', '{timing}', 'SELECT 1')")).await;
    database
        .execute(
            r#"SELECT mill.set_job('j', jsonb_build_array(
                jsonb_build_object('name', 'a', 'queue', 'later', 'statement', 'SELECT 1'),
                jsonb_build_object('name', 'b', 'queue', 'later', 'statement', 'SELECT 1', 'after', '["a"]'::jsonb)))"#,
        )
        .await;
    let run: i64 = database.value("SELECT run_id FROM mill.start_run('{j}')").await;
    database
        .execute(&format!(
            "SELECT mill.add_run_task('c', 'SELECT 1', run_id => {run}, queue => 'later')"
        ))
        .await;
    database.enqueue(EFFECT, ", queue => 'later'").await;
    database.execute("SELECT mill.pause('later')").await;
    run
}

/// Copies the definitions of the tables with pg_dump. Returns `false` if a program is missing.
fn dumped_schema(from: &Database, to: &Database) -> bool {
    let (Some(dump), Some(psql)) = (program("pg_dump"), program("psql")) else { return false };
    let dumped = Command::new(dump).arg("--schema-only").arg(from.url()).output().unwrap();
    if String::from_utf8_lossy(&dumped.stderr).contains("server version mismatch") {
        println!("skipped: pg_dump is older than the server");
        return false;
    }
    assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
    let file = std::env::temp_dir().join(format!("pgmill-schema-{}", to.name()));
    std::fs::write(&file, dumped.stdout).unwrap();
    let restored = Command::new(psql)
        .args(["-Xq", "-v", "ON_ERROR_STOP=1", "-f"])
        .arg(&file)
        .arg(to.url())
        .stdout(Stdio::null())
        .output()
        .unwrap();
    std::fs::remove_file(file).unwrap();
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    true
}

/// Subscribes, and returns when all tables are copied.
async fn subscribe(from: &Database, to: &Database) {
    to.execute("SELECT mill.prepare_history(30)").await;
    let subscribe =
        format!("CREATE SUBSCRIPTION moves CONNECTION '{}' PUBLICATION moves", from.url());
    to.execute(&subscribe).await;
    let left = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'";
    eventually("all tables are copied", async || to.value::<i64>(left).await == 0).await;
}

/// Returns when the subscriber has all that was committed, and ends the subscription.
async fn cut_over(from: &Database, to: &Database) {
    let end: String = from.value("SELECT pg_current_wal_lsn()::text").await;
    let arrived = format!(
        "SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = 'moves'"
    );
    eventually("the subscriber has everything", async || from.value::<bool>(&arrived).await).await;
    to.execute("DROP SUBSCRIPTION moves").await;
}

/// Returns the sequences that are behind. Checks that the doctor names them.
async fn reported(database: &Database) -> Vec<String> {
    let names: Vec<String> =
        database.value("SELECT ARRAY(SELECT sequence FROM mill.sequences_behind())").await;
    let (_, printed, _) = Program::pgmill(database, &["doctor", "--json"]).run().await;
    let document: Value = serde_json::from_str(&printed).unwrap();
    let checks = document["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["check"] == "sequences").unwrap();
    for name in &names {
        assert!(check["message"].as_str().unwrap().contains(name), "{check}");
    }
    assert_eq!(check["status"], if names.is_empty() { "ok" } else { "problem" });
    names
}

async fn moves_to_another_server(
    copy_schema: impl AsyncFnOnce(&Database, &PrivateDatabase) -> bool,
) {
    let settings = [("wal_level", "logical"), ("fsync", "off")];
    let old = PrivateDatabase::before_upgrade(&settings).await;
    let new = PrivateDatabase::new(&settings[1..]).await;
    let old = &old.database;
    let mut first = worker(old, "4", "5s", &["--queues", "default", "--shutdown-timeout", "0s"]);
    let run = at_work(old).await;
    if !copy_schema(old, &new).await {
        return;
    }
    let new = &new.database;
    subscribe(old, new).await;
    old.execute(LATER).await;
    // The worker stops, and gives a task back.
    old.execute("SELECT pg_advisory_lock(1)").await;
    let held = old.enqueue(WAITS_FOR_LOCK, "").await;
    old.until_waiting_for_lock(held).await;
    assert!(first.terminate().await.success());
    cut_over(old, new).await;

    let count = async |what: &str| new.value::<i64>(&format!("SELECT count(*) FROM {what}")).await;
    assert_eq!(count("effect").await, tasks_before() + 1);
    let behind = reported(new).await;
    for name in ["mill.audit_id_seq", "mill.tasks_id_seq", "mill.runs_id_seq", "mill.added_nodes"] {
        assert!(behind.contains(&name.to_owned()), "{name} in {behind:?}");
    }
    let last: i64 = new.value("SELECT max(id) FROM mill.tasks").await;

    let mut second = worker(new, "4", "5s", &["--queues", "default,later"]);
    second.until_logged("ready").await;
    assert!(second.log().contains("sequences were behind their tables"), "{}", second.log());
    assert_eq!(reported(new).await, Vec::<String>::new());
    let more: i64 = amount(20, 100);
    for _ in 0..more {
        assert!(new.enqueue(EFFECT, ", concurrency_key => 'other'").await > last);
    }
    new.execute(&format!(
        "SELECT mill.add_run_task('d', 'SELECT 1', run_id => {run}, after => '{{b}}')"
    ))
    .await;
    let next: i64 = new.value("SELECT run_id FROM mill.start_run('{j}')").await;
    new.execute("SELECT mill.run_now('s'), mill.resume('later')").await;
    new.until_empty().await;
    for run in [run, next] {
        assert_eq!(end(new, run).await, "succeeded");
    }
    assert_eq!(new.value::<i64>(GIVEN_TWICE).await, 0);
    assert_eq!(new.outcome(held).await, "succeeded");
    // Effects and history agree.
    let succeeded = "SELECT count(DISTINCT task_id) FROM mill.attempts
        WHERE outcome = 'succeeded' AND final AND statement LIKE 'INSERT INTO effect%'";
    let effects = tasks_before() + more + 3;
    assert_eq!((count("effect").await, new.value::<i64>(succeeded).await), (effects, effects));
    let recorded =
        "SELECT detail ? 'mill.tasks_id_seq' FROM mill.audit WHERE action = 'repair_sequences'";
    assert!(new.value::<bool>(recorded).await);
    assert!(second.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_to_a_logical_replica_gives_no_id_twice() {
    moves_to_another_server(async |_, new| {
        new.database.execute("CREATE TABLE effect (task bigint PRIMARY KEY)").await;
        new.database.execute(EMPTY).await;
        true
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_logical_replica_with_a_dumped_schema_needs_nothing_else() {
    moves_to_another_server(async |old, new| {
        new.database.execute("DROP PUBLICATION everything; DROP SCHEMA mill CASCADE").await;
        dumped_schema(old, &new.database)
    })
    .await;
}

/// Lets the sequence of the tasks start over, as in a copy.
const BEHIND: &str = "ALTER SEQUENCE mill.tasks_id_seq RESTART";

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_waits_for_open_transactions_and_moves_no_sequence_back() {
    let database = Database::new().await;
    // The test may take longer than two seconds.
    database.execute("ALTER FUNCTION mill.repair_sequences SET lock_timeout = '1 min'").await;
    database.enqueue_many(5, "SELECT 1").await;
    database.execute("SELECT mill.cancel_many(ARRAY(SELECT id FROM mill.tasks))").await;
    database.execute(BEHIND).await;
    let behind =
        "SELECT coalesce(string_agg(concat_ws(' ', sequence, next_id, highest_id), ', '), '')
        FROM mill.sequences_behind()";
    assert_eq!(database.value::<String>(behind).await, "mill.tasks_id_seq 1 5");

    // The open transaction takes more values while the repair waits for it.
    let (producer, repair, other) =
        (database.connect().await, database.connect().await, database.connect().await);
    producer.batch_execute("BEGIN; SELECT mill.enqueue('SELECT 1')").await.unwrap();
    let call = "SELECT mill.repair_sequences()";
    let more = async {
        database.until_a_session_waits_or("false").await;
        let eight = "SELECT mill.enqueue('SELECT 1') FROM generate_series(1, 8); COMMIT";
        producer.batch_execute(eight).await.unwrap();
    };
    let (repaired, ()) = tokio::join!(repair.query_one(call, &[]), more);
    assert_eq!(repaired.unwrap().get::<_, Vec<String>>(0), Vec::<String>::new());
    assert_eq!(database.enqueue("SELECT 1", "").await, 10);

    // A producer that comes while the repair waits gets its value after the repair.
    database.execute("DELETE FROM mill.tasks WHERE id < 8").await;
    database.execute(BEHIND).await;
    producer.batch_execute("BEGIN; SELECT mill.enqueue('SELECT 1')").await.unwrap();
    let later = async {
        database.until_a_session_waits_or("false").await;
        let commit = async {
            let waiting = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock'";
            eventually("two sessions wait", async || database.value::<i64>(waiting).await == 2)
                .await;
            producer.batch_execute("COMMIT").await.unwrap();
        };
        let enqueue = "SELECT mill.enqueue('SELECT 1')";
        tokio::join!(other.query_one(enqueue, &[]), commit).0.unwrap().get::<_, i64>(0)
    };
    let (repaired, id) = tokio::join!(repair.query_one(call, &[]), later);
    assert_eq!(repaired.unwrap().get::<_, Vec<String>>(0), ["mill.tasks_id_seq"]);
    assert_eq!(id, 11);
    let audit = "SELECT detail::text FROM mill.audit WHERE action = 'repair_sequences'";
    let expected = r#"{"mill.tasks_id_seq": {"new": 11, "old": 2}}"#;
    assert_eq!(database.value::<String>(audit).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sequence_is_checked_and_the_check_locks_few_partitions() {
    let database = Database::new().await;
    for days_ago in 1..=40 {
        database.create_day(days_ago).await;
    }
    database.enqueue("SELECT 1", "").await;
    let client = database.connect().await;
    let locked = "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        WHERE l.pid = pg_backend_pid() AND c.relkind = 'r' AND c.relispartition";
    client.batch_execute("BEGIN; SELECT * FROM mill.sequences_behind()").await.unwrap();
    // The queue has no history, so the check reads all days.
    assert_eq!(client.query_one(locked, &[]).await.unwrap().get::<_, i64>(0), 48 - 6);
    client.batch_execute("ROLLBACK").await.unwrap();
    database.execute("SELECT mill.cancel(1)").await;
    client.batch_execute("BEGIN; SELECT * FROM mill.sequences_behind()").await.unwrap();
    assert_eq!(client.query_one(locked, &[]).await.unwrap().get::<_, i64>(0), 4);
    client.batch_execute("ROLLBACK").await.unwrap();

    // The highest id ended before the last days.
    database
        .execute(
            "INSERT INTO mill.attempts SELECT (jsonb_populate_record(a, jsonb_build_object(
                'finished_at', now() - interval '30 days', 'task_id', 77))).* FROM mill.attempts a",
        )
        .await;
    database
        .execute(
            "SELECT mill.pause('q'), mill.set_target('t', allowed => '{}');
             UPDATE mill.targets SET epoch = 40;
             SELECT mill.set_job('j', '[{\"name\": \"a\", \"statement\": \"SELECT 1\"}]');
             SELECT mill.add_run_task('b', 'SELECT 1', run_id => run_id) FROM mill.start_run('{j}')",
        )
        .await;
    // All sequences start over.
    database
        .execute(
            "DO $$ DECLARE s record; BEGIN
                FOR s IN SELECT c.oid::regclass AS name FROM pg_class c
                    WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind = 'S'
                LOOP EXECUTE format('ALTER SEQUENCE %s RESTART', s.name); END LOOP;
            END $$",
        )
        .await;
    let repaired: Vec<String> = database.value("SELECT mill.repair_sequences()").await;
    for name in ["mill.added_nodes", "mill.audit_id_seq", "mill.runs_id_seq", "mill.target_epochs"]
    {
        assert!(repaired.contains(&name.to_owned()), "{name} in {repaired:?}");
    }
    assert_eq!(database.enqueue("SELECT 1", "").await, 78);
    assert_eq!(database.value::<i64>("SELECT nextval('mill.target_epochs')").await, 41);
    let again: Vec<String> = database.value("SELECT mill.repair_sequences()").await;
    assert_eq!(again, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn init_names_the_sequences_and_a_worker_whose_repair_fails_registers_and_works() {
    let database = Database::new().await;
    database.enqueue_many(3, EFFECT).await;
    database
        .execute("CREATE TABLE effect (task bigint); DELETE FROM mill.tasks WHERE id = 1")
        .await;
    database.execute(BEHIND).await;
    // init only names them: a worker may be using the sequences.
    let printed = Program::init(&database).succeeds().await;
    assert!(printed.contains("behind their tables: mill.tasks_id_seq\n"), "{printed}");
    let printed = Program::pgmill(&database, &["init", "--json"])
        .by_superuser(&database, "applies the schema")
        .succeeds()
        .await;
    let document: Value = serde_json::from_str(&printed).unwrap();
    let expected = json!([{"sequence": "mill.tasks_id_seq", "next_id": 1, "highest_id": 3}]);
    assert_eq!(document["sequences_behind"], expected);
    let producer = database.connect().await;
    producer.batch_execute("BEGIN; SELECT mill.enqueue('SELECT 1')").await.unwrap();
    let mut worker = worker(&database, "1", "5s", &[]);
    worker.until_logged("could not check and repair sequences").await;
    database.until_empty().await;
    let count = "SELECT count(*) FROM effect";
    assert_eq!(database.value::<i64>(count).await, 2);
    producer.batch_execute("ROLLBACK").await.unwrap();
    assert!(worker.terminate().await.success());
}
