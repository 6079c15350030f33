//! The checker finds each planted violation, reports nothing else, and reports nothing for a
//! correct history.

use std::time::{Duration, SystemTime};

use checker::{Answer, Expect, MONITORED, Monitor, Op, OpKind, check, record};
use serde_json::json;

use crate::harness::{Database, PrivateDatabase, Worker};
use crate::runs::run::{end, job, start};

/// Returns the invariants that are violated, each with an example.
pub(crate) async fn broken(database: &Database, expect: &Expect) -> Vec<(&'static str, String)> {
    let findings = check(database.client(), expect).await.unwrap();
    assert_eq!(findings.len(), checker::names().count());
    findings
        .into_iter()
        .filter(|finding| finding.count > 0)
        .map(|finding| (finding.invariant, finding.examples.join("; ")))
        .collect()
}

/// Returns the expectation that all requests have been processed, and that the last fault was
/// healed an hour ago.
async fn expect(database: &Database) -> Expect {
    let now: SystemTime = database.value("SELECT clock_timestamp()").await;
    Expect {
        fleet_gone: true,
        healed_at: Some(now - Duration::from_secs(3600)),
        orphan_timeout: Duration::from_secs(3),
        bound: Duration::from_secs(60),
        ..Expect::default()
    }
}

/// Enqueues a task, and records the request.
pub(crate) async fn requested(
    database: &Database,
    ops: &mut Vec<Op>,
    name: &str,
    call: (&str, &str),
) -> i64 {
    let (statement, options) = call;
    let id = database.enqueue(statement, &format!(", name => '{name}'{options}")).await;
    let op = Op::new(OpKind::Enqueue, Answer::Ok);
    ops.push(Op { name: Some(name.to_owned()), task: Some(id), ..op });
    id
}

/// Performs an operator action on a task, and records it with the reply.
async fn acknowledged(database: &Database, ops: &mut Vec<Op>, what: OpKind, task: i64) {
    let function = if what == OpKind::Cancel { "cancel" } else { "retry" };
    let reply: String = database.value(&format!("SELECT mill.{function}({task})")).await;
    ops.push(Op { task: Some(task), reply: Some(reply), ..Op::new(what, Answer::Ok) });
}

const WORK: &str = "SELECT chaos.work()";
const LIMITED: &str = "SELECT chaos.work(0.01, '{k}')";
const AUTOCOMMIT: &str = "SELECT chaos.begin_work(); SELECT chaos.end_work()";

/// Produces a history with every kind of event, run by a real worker.
async fn good_history(database: &Database) {
    database.execute(checker::INSTALL).await;
    database.execute("INSERT INTO chaos.limits VALUES ('k', 1)").await;
    let ops = &mut Vec::new();
    let mut worker = Worker::start(database, &["--readers", "4", "--poll-interval", "20ms"]);
    let keyed = requested(database, ops, "keyed", (WORK, ", key => 'k'")).await;
    requested(database, ops, "plain", (WORK, "")).await;
    let twice = ", max_attempts => 2, retry_interval => '0'";
    requested(database, ops, "fails", ("SELECT 1/0", twice)).await;
    requested(database, ops, "vacuum", (AUTOCOMMIT, ", mode => 'autocommit'")).await;
    let once = ", mode => 'autocommit', at_most_once => true";
    requested(database, ops, "once", (AUTOCOMMIT, once)).await;
    for name in ["limited a", "limited b"] {
        requested(database, ops, name, (LIMITED, ", concurrency_key => 'k'")).await;
    }
    let later = ", due_at => now() + interval '1 hour'";
    let cancelled = requested(database, ops, "cancelled", (WORK, later)).await;
    acknowledged(database, ops, OpKind::Cancel, cancelled).await;
    let again = requested(database, ops, "again", (WORK, later)).await;
    acknowledged(database, ops, OpKind::Cancel, again).await;
    acknowledged(database, ops, OpKind::Retry, again).await;
    database.outcome(keyed).await;
    requested(database, ops, "keyed again", (WORK, ", key => 'k'")).await;
    runs(database, ops).await;
    database.until_empty().await;
    worker.terminate().await;
    record(database.client(), ops).await.unwrap();
}

/// Runs a diamond, and a run that fails again after a restart.
async fn runs(database: &Database, ops: &mut Vec<Op>) {
    let task =
        |name: &str, after: &[&str]| json!({"name": name, "statement": WORK, "after": after});
    let mut tasks = vec![
        task("top", &[]),
        task("left", &["top"]),
        task("right", &["top"]),
        task("bottom", &["left", "right"]),
        task("either", &["left", "right"]),
    ];
    tasks[4]["join"] = json!("any");
    job(database, "diamond", json!(tasks)).await;
    job(database, "vain", json!([{"name": "v", "statement": "SELECT 1/0", "max_attempts": 1}]))
        .await;
    for name in ["diamond", "vain"] {
        let run = start(database, name).await;
        ops.push(Op { run: Some(run), ..Op::new(OpKind::StartRun, Answer::Ok) });
        end(database, run).await;
        if name == "vain" {
            database.execute(&format!("SELECT mill.restart_run({run})")).await;
            ops.push(Op { run: Some(run), ..Op::new(OpKind::RestartRun, Answer::Ok) });
            end(database, run).await;
        }
    }
}

const TASK: &str = "(SELECT task FROM chaos.ops WHERE what = 'enqueue' AND name = ";

/// Violations in SQL, with <name> for the id of a task, each with the invariants that it violates.
const PLANTED: &[(&str, &[&str])] = &[
    ("DELETE FROM mill.attempts WHERE name = 'fails'", &["nothing_lost"]),
    ("DELETE FROM mill.runs WHERE jobs = '{diamond}'", &["nothing_lost"]),
    ("DELETE FROM chaos.ops WHERE name = 'plain'", &["nothing_unexpected"]),
    ("UPDATE chaos.ops SET answer = 'refused' WHERE name = 'plain'", &["nothing_unexpected"]),
    ("DELETE FROM chaos.ops WHERE what = 'start_run'", &["nothing_unexpected"]),
    ("UPDATE mill.run_tasks SET task_id = 0 WHERE name = 'bottom'", &["nothing_unexpected"]),
    (
        "INSERT INTO chaos.effect SELECT * FROM chaos.effect WHERE task = <plain>",
        &["no_effect_twice"],
    ),
    ("DELETE FROM chaos.effect WHERE task = <plain>", &["effect_iff_succeeded"]),
    ("DELETE FROM chaos.effect WHERE task = <vacuum>", &["effect_iff_succeeded"]),
    ("UPDATE chaos.effect SET pid = pid + 1 WHERE task = <plain>", &["effect_iff_succeeded"]),
    (
        "UPDATE mill.attempts SET outcome = 'failed', sqlstate = 'MT900' WHERE name = 'plain'",
        &["effect_iff_succeeded"],
    ),
    (
        "UPDATE chaos.effect SET finished_at = finished_at + interval '2 s' WHERE task = <vacuum>;
         INSERT INTO chaos.start SELECT task, attempt, pid + 1, started_at + interval '1 s'
            FROM chaos.start WHERE task = <vacuum>",
        &["one_holder"],
    ),
    (
        "UPDATE mill.attempts SET started_at = started_at - interval '1 h'
         WHERE name = 'fails' AND attempt = 2",
        &["one_holder"],
    ),
    (
        "UPDATE chaos.effect SET started_at = (SELECT started_at FROM chaos.effect
            WHERE task = <limited a>) WHERE task = <limited b>",
        &["limits_kept"],
    ),
    (
        "UPDATE mill.attempts SET started_at = started_at - interval '1 h' WHERE name = 'bottom'",
        &["graph_order"],
    ),
    (
        "UPDATE mill.attempts SET started_at = started_at - interval '1 h' WHERE name = 'either'",
        &["graph_order"],
    ),
    (
        "UPDATE chaos.effect SET started_at = started_at - interval '1 h'
         WHERE task = (SELECT task_id FROM mill.run_tasks WHERE name = 'bottom')",
        &["graph_order"],
    ),
    (
        // The task was cancelled in the queue before it started.
        "UPDATE mill.attempts SET started_at = NULL, outcome = 'cancelled' WHERE name = 'bottom';
         UPDATE mill.run_tasks SET state = 'cancelled' WHERE name = 'bottom';
         DELETE FROM chaos.effect
         WHERE task = (SELECT task_id FROM mill.run_tasks WHERE name = 'bottom')",
        &[],
    ),
    ("UPDATE mill.run_tasks SET state = 'failed' WHERE name = 'bottom'", &["runs_agree"]),
    ("UPDATE mill.run_tasks SET state = 'released' WHERE name = 'v'", &["runs_agree"]),
    (
        "UPDATE mill.attempts SET options.max_attempts = 1 WHERE name = 'fails'",
        &["attempts_bounded"],
    ),
    (
        "UPDATE mill.attempts SET options.max_attempts = 3 WHERE name = 'fails'",
        &["attempts_bounded"],
    ),
    ("CALL again('lost', NULL, 6)", &["attempts_bounded"]),
    ("CALL again('lost', NULL, 5)", &[]),
    ("CALL again('failed', '40001', 6)", &["attempts_bounded"]),
    ("CALL again('failed', '40001', 5)", &[]),
    (
        "UPDATE mill.attempts SET attempt = 3 WHERE name = 'fails' AND attempt = 2",
        &["attempts_increase"],
    ),
    (
        "UPDATE mill.attempts SET attempt = 1 WHERE name = 'fails' AND attempt = 2",
        &["attempts_increase"],
    ),
    (
        "INSERT INTO chaos.start SELECT task, attempt, pid, started_at - interval '1 h'
         FROM chaos.start WHERE task = <once>",
        &["at_most_once"],
    ),
    (
        "INSERT INTO chaos.start SELECT task, attempt + 1, pid, started_at + interval '1 h'
         FROM chaos.start WHERE task = <vacuum>",
        &["starts_recorded"],
    ),
    (
        "INSERT INTO mill.attempts SELECT * FROM mill.attempts WHERE name = 'cancelled'",
        &["ends_once"],
    ),
    (
        "INSERT INTO mill.tasks (id, name, statement) VALUES (<plain>, 'plain', 'SELECT 1')",
        &["ends_once", "nothing_left"],
    ),
    ("DELETE FROM chaos.ops WHERE what = 'retry'", &["ends_once", "cancelled_stays"]),
    ("DELETE FROM chaos.ops WHERE what = 'restart_run'", &["ends_once"]),
    (
        "UPDATE mill.attempts SET outcome = 'failed', sqlstate = 'MT900' WHERE name = 'cancelled'",
        &["cancelled_stays"],
    ),
    (
        "UPDATE mill.attempts SET enqueued_at = enqueued_at - interval '1 h'
         WHERE name = 'keyed again'",
        &["key_is_one_task"],
    ),
    (
        "UPDATE mill.attempts SET options.max_attempts = 1 WHERE name = 'fails';
         UPDATE mill.attempts SET outcome = 'lost', started_at = started_at - interval '2 h'
         WHERE name = 'fails' AND attempt = 1",
        &["recovered_in_time"],
    ),
    (
        "INSERT INTO mill.tasks (name, statement, state, attempt, token, claimed_by, claimed_at,
            session_pid, session_started_at)
         VALUES ('held', 'SELECT 1', 'running', 1, gen_random_uuid(), gen_random_uuid(),
            now() - interval '2 h', 1, now());
         INSERT INTO chaos.ops (what, answer, task) SELECT 'enqueue', 'ok', id FROM mill.tasks",
        &["recovered_in_time", "nothing_left"],
    ),
    (
        "INSERT INTO chaos.ops (what, answer, name) VALUES ('enqueue', 'unknown', 'late');
         SELECT mill.enqueue('SELECT 1', name => 'late')",
        &["nothing_left"],
    ),
    (
        "UPDATE mill.runs SET state = 'running', finished_at = NULL WHERE jobs = '{vain}'",
        &["nothing_left"],
    ),
    ("INSERT INTO mill.permits (limit_id, task_id) VALUES (1, 0)", &["nothing_left"]),
    ("INSERT INTO mill.dedup_keys VALUES ('left', 0)", &["nothing_left"]),
    ("BEGIN; CREATE TABLE left_behind (); PREPARE TRANSACTION 'left behind'", &["no_session_left"]),
    ("", &[]),
];

/// Inserts additional attempts of the failing task before the existing ones.
const AGAIN: &str =
    "CREATE PROCEDURE again(word text, code text, times integer) LANGUAGE plpgsql AS $$
DECLARE
    one mill.attempts;
BEGIN
    UPDATE mill.attempts SET attempt = attempt + times WHERE name = 'fails';
    SELECT * INTO one FROM mill.attempts WHERE name = 'fails' LIMIT 1;
    one.outcome := word;
    one.sqlstate := code;
    one.final := false;
    FOR n IN 1..times LOOP
        one.attempt := n;
        one.started_at := one.enqueued_at + n * interval '1 us';
        one.finished_at := one.started_at;
        INSERT INTO mill.attempts SELECT (one).*;
    END LOOP;
END $$";

/// Tables that the planted violations change.
const CHANGED: [&str; 9] = [
    "chaos.effect",
    "chaos.ops",
    "chaos.start",
    "mill.attempts",
    "mill.dedup_keys",
    "mill.permits",
    "mill.run_tasks",
    "mill.runs",
    "mill.tasks",
];

/// Executes a statement for each of the tables, whose name replaces `$`.
async fn for_each_changed(database: &Database, sql: &str) {
    let each = CHANGED.map(|table| sql.replace('$', table));
    database.execute(&each.join("; ")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_checker_finds_each_planted_violation_and_nothing_else() {
    let settings = [("max_prepared_transactions", "2"), ("fsync", "off")];
    let private = PrivateDatabase::new(&settings).await;
    let database = &private.database;
    good_history(database).await;
    database.execute(AGAIN).await;
    // Bringing the rows back takes less time than a copy of the database for each violation.
    database.execute("CREATE SCHEMA kept").await;
    for_each_changed(database, "CREATE TABLE kept.\"$\" AS TABLE $").await;
    let mut bitten = std::collections::BTreeSet::new();
    for (plant, invariants) in PLANTED {
        let mut sql = (*plant).to_owned();
        while let Some((before, rest)) = sql.split_once('<') {
            let (name, after) = rest.split_once('>').unwrap();
            sql = format!("{before}{TASK}'{name}'){after}");
        }
        database.execute(&sql).await;
        let found = broken(database, &expect(database).await).await;
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, *invariants, "{sql}: {found:#?}");
        bitten.extend(names);
        if plant.contains("PREPARE") {
            database.execute("ROLLBACK PREPARED 'left behind'").await;
        }
        let bring_back =
            "DELETE FROM $; INSERT INTO $ OVERRIDING SYSTEM VALUE SELECT * FROM kept.\"$\"";
        for_each_changed(database, bring_back).await;
    }
    let toothless: Vec<&str> = checker::names().filter(|name| !bitten.contains(name)).collect();
    assert!(toothless.is_empty(), "no planted violation for {toothless:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_checker_finds_leftover_sessions() {
    let database = Database::new().await;
    database.execute(checker::INSTALL).await;
    let expect = Expect { fleet_gone: true, ..Expect::default() };
    for sql in ["BEGIN; SELECT 1", "SELECT pg_advisory_lock(1)"] {
        assert_eq!(broken(&database, &expect).await, []);
        let session = database.connect().await;
        session.batch_execute(sql).await.unwrap();
        let found = broken(&database, &expect).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, "no_session_left");
        session.batch_execute("ROLLBACK; SELECT pg_advisory_unlock_all()").await.unwrap();
    }
}

#[tokio::test]
async fn a_monitor_sees_two_executions_of_a_task_and_more_than_a_limit_allows() {
    let database = Database::new().await;
    database.execute(checker::INSTALL).await;
    database.execute("INSERT INTO chaos.limits VALUES ('k', 1), ('wide', 2)").await;
    let (first, second) = (database.connect().await, database.connect().await);
    let begin = async |session: &tokio_postgres::Client, task: i64, limits: &str| {
        let sql = format!(
            "BEGIN; SET LOCAL mill.task_id = '{task}'; SET LOCAL mill.attempt = '1';
             SELECT chaos.work(0, '{{{limits}}}')"
        );
        session.batch_execute(&sql).await.unwrap();
    };
    let poll = async |expected: &[(&str, &str)]| {
        let mut monitor = Monitor::default();
        monitor.poll(database.client()).await.unwrap();
        let findings = monitor.findings();
        assert_eq!(findings.iter().map(|it| it.invariant).collect::<Vec<_>>(), MONITORED);
        let seen =
            findings.iter().flat_map(|it| it.examples.iter().map(|text| (it.invariant, text)));
        let seen: Vec<_> = seen.collect();
        assert_eq!(seen.len(), expected.len(), "{seen:?}");
        for ((invariant, text), (name, part)) in seen.iter().zip(expected) {
            assert!(invariant == name && text.contains(part), "{seen:?}");
        }
        monitor.executions
    };
    begin(&first, 1, "wide").await;
    begin(&second, 2, "wide").await;
    assert_eq!(poll(&[]).await, 2);
    second.batch_execute("ROLLBACK").await.unwrap();
    begin(&second, 1, "wide").await;
    poll(&[("one_execution", "task 1 is executed by the backends")]).await;
    second.batch_execute("COMMIT").await.unwrap();
    first.batch_execute("COMMIT").await.unwrap();
    assert_eq!(poll(&[]).await, 0);
    begin(&first, 3, "k").await;
    begin(&second, 4, "k").await;
    poll(&[("limits_kept_meanwhile", "limit k: 2 executions at once, of 1")]).await;
}
