//! Every action is recorded in mill.audit with the login of its caller, whichever program performs
//! the action.

use queue::audit::set_actor;
use serde_json::json;

use crate::harness::login::{Login, answer};
use crate::harness::{Database, Program, Worker, eventually};
use crate::runs::run::{FLAGS, end, job, start, states};

/// Every action with its expected record: action, subject, detail.
const ACTS: &[(&str, &str)] = &[
    ("SELECT mill.cancel(1)", r#"cancel task 1 {"result": "cancelled"}"#),
    ("SELECT mill.retry(1)", r#"retry task 1 {"result": "retried"}"#),
    ("SELECT mill.cancel_many('{1}')", r#"cancel task 1 {"result": "cancelled"}"#),
    ("SELECT mill.retry_many('{1}')", r#"retry task 1 {"result": "retried"}"#),
    (
        "SELECT mill.change_task(1, '{\"priority\": \"high\"}')",
        r#"change_task task 1 {"priority": {"new": "high", "old": "normal"}}"#,
    ),
    (
        "SELECT mill.change_tasks('{1}', '{\"priority\": \"low\"}')",
        r#"change_task task 1 {"priority": {"new": "low", "old": "high"}}"#,
    ),
    ("SELECT mill.pause_fleet(reason => 'r')", r#"pause_fleet fleet {"reason": "r"}"#),
    ("SELECT mill.resume_fleet()", r#"resume_fleet fleet {"planned": false, "windows": 1}"#),
    ("SELECT mill.pause('q')", "pause queue q"),
    ("SELECT mill.resume('q')", "resume queue q"),
    (
        "SELECT mill.set_shared_commit('q', '20 ms')",
        r#"set_shared_commit queue q {"budget": {"new": "00:00:00.02", "old": null}}"#,
    ),
    (
        "SELECT mill.set_max_running('queue', 'q', NULL)",
        r#"set_max_running queue q {"max_running": null}"#,
    ),
    (
        "SELECT mill.set_max_running('queue', 'q', 4)",
        r#"set_max_running queue q {"max_running": {"new": 4, "old": null}}"#,
    ),
    (
        "SELECT mill.set_max_running('queue', 'q', 5)",
        r#"set_max_running queue q {"max_running": {"new": 5, "old": 4}}"#,
    ),
    (
        "SELECT mill.set_rate('key', 'k', 10, '1 min')",
        r#"set_rate key k {"period": {"new": "00:01:00", "old": null}, "starts": {"new": 10, "old": null}}"#,
    ),
    (
        "SELECT mill.set_rate('key', 'k', 9, '1 min')",
        r#"set_rate key k {"period": "00:01:00", "starts": {"new": 9, "old": 10}}"#,
    ),
    (
        "SELECT mill.set_queue_storage('q', params => false)",
        r#"set_queue_storage queue q {"params": {"new": false, "old": true}}"#,
    ),
    (
        "SELECT mill.set_queue_conditions('q', max_active_sessions => 90)",
        r#"set_queue_conditions queue q {"max_snapshot_age": null, "max_active_sessions": {"new": 90, "old": null}, "max_replication_lag": null}"#,
    ),
    ("SELECT mill.remove_limit('key', 'k')", "remove_limit key k"),
    ("SELECT mill.remove_limit('queue', 'q')", "remove_limit queue q"),
    ("SELECT mill.remove_queue('q')", "remove_queue queue q"),
    ("SELECT mill.set_group('g', max_running => 2)", r#"set_group group g {"max_running": 2}"#),
    (
        "SELECT mill.set_group('g', priority => 'high')",
        r#"set_group group g {"priority": {"new": "high", "old": null}}"#,
    ),
    (
        "SELECT mill.set_max_running('group', 'g', 3)",
        r#"set_max_running group g {"max_running": {"new": 3, "old": 2}}"#,
    ),
    (
        "SELECT mill.set_active_period('g', '22:00', '06:00')",
        r#"set_active_period group g {"zone": {"new": "UTC", "old": null}, "opens": {"new": "22:00:00", "old": null}, "closes": {"new": "06:00:00", "old": null}}"#,
    ),
    (
        "SELECT mill.set_default_group('g')",
        r#"update_settings settings {"default_group": {"new": "g", "old": null}}"#,
    ),
    (
        "SELECT mill.set_default_group(NULL)",
        r#"update_settings settings {"default_group": {"new": null, "old": "g"}}"#,
    ),
    ("SELECT mill.drop_group('g')", "drop_group group g"),
    (
        "SELECT mill.set_weights(low => 7)",
        r#"set_weights priorities {"low": {"new": 7, "old": 5}}"#,
    ),
    (
        "SELECT mill.set_reserved_capacity('high')",
        r#"update_settings settings {"reserved_capacity": {"new": "high", "old": "none"}}"#,
    ),
    (
        "UPDATE mill.settings SET max_crashes = 6",
        r#"update_settings settings {"max_crashes": {"new": 6, "old": 5}}"#,
    ),
    (
        "SELECT mill.drain('00000000-0000-0000-0000-000000000001')",
        r#"drain worker 00000000-0000-0000-0000-000000000001 {"draining": true}"#,
    ),
    (
        "SELECT mill.set_job('J', '[{\"name\": \"t\", \"statement\": \"SELECT 1\"}]')",
        r#"set_job job J {"version": 1}"#,
    ),
    (
        "SELECT mill.enable_job_task('j', 't', false)",
        r#"enable_job_task job J {"task": "t", "enabled": false}"#,
    ),
    ("SELECT mill.enable_job('j', false)", r#"enable_job job J {"enabled": false}"#),
    (
        "SELECT mill.set_dependency('b', 'a')",
        r#"set_dependency dependency a > b {"expected": "succeeded"}"#,
    ),
    ("SELECT mill.drop_dependency('b', 'a')", "drop_dependency dependency a > b"),
    (
        "SELECT mill.set_schedule('s', 'manual', 'SELECT 1')",
        r#"put_schedule schedule s {"result": "new", "timing": "manual", "enabled": true, "declared_in": "call"}"#,
    ),
    (
        "SELECT mill.set_schedule('s', 'daily(03:00)', 'SELECT 1')",
        r#"put_schedule schedule s {"result": "changed", "timing": {"new": "daily(03:00)", "old": "manual"}, "enabled": true, "declared_in": "call"}"#,
    ),
    ("SELECT mill.enable_schedule('s', false)", r#"enable_schedule schedule s {"enabled": false}"#),
    (
        "SELECT mill.override_schedule('s', '{\"max_attempts\": 2}')",
        r#"override_schedule schedule s {"max_attempts": {"new": 2, "old": null}}"#,
    ),
    ("SELECT mill.run_now('s')", r#"run_now schedule s {"run": 1, "force": false}"#),
    ("SELECT mill.cancel_run(1)", r#"cancel_run run 1 {"kill": false}"#),
    (
        "SELECT mill.set_schedule('c', 'daily(03:00)', 'SELECT 1')",
        r#"put_schedule schedule c {"result": "new", "timing": "daily(03:00)", "enabled": true, "declared_in": "call"}"#,
    ),
    (
        "SELECT mill.run_now('c', true, '{\"params\": {}, \"fire_at\": \"2026-01-01T03:00Z\"}')",
        r#"run_now schedule c {"run": 2, "force": true, "fire_at": "2026-01-01T03:00Z"}"#,
    ),
    (
        "SELECT mill.backfill_schedule('c', '2026-01-01Z', '2026-01-02Z', '{\"max_running\": 2}')",
        r#"backfill_schedule schedule c {"to": "2026-01-02T00:00:00+00:00", "from": "2026-01-01T00:00:00+00:00", "backfill": 1, "max_running": 2}"#,
    ),
    ("SELECT mill.pause_backfill(1)", r#"pause_backfill schedule c {"backfill": 1}"#),
    ("SELECT mill.resume_backfill(1)", r#"resume_backfill schedule c {"backfill": 1}"#),
    ("SELECT mill.cancel_backfill(1)", r#"cancel_backfill schedule c {"backfill": 1}"#),
    ("SELECT mill.remove_schedules(ARRAY['s'])", "remove_schedules schedule s"),
    (
        "SELECT mill.set_subscription('n', '{\"events\": [\"run_failed\"], \"channel\": \"c\"}')",
        r#"set_subscription subscription n {"events": ["run_failed"], "channel": "c"}"#,
    ),
    ("SELECT mill.test_subscription('n')", "test_subscription subscription n"),
    (
        "SELECT mill.retry_notifications('n')",
        r#"retry_notifications subscription n {"notifications": 0}"#,
    ),
    (
        "SELECT mill.enable_subscription('n', false)",
        r#"enable_subscription subscription n {"enabled": false}"#,
    ),
    ("SELECT mill.remove_subscription('n')", "remove_subscription subscription n"),
];

/// Calls that succeed without an effect.
const NOTHING: &[&str] = &[
    "SELECT mill.cancel(77)",
    "SELECT mill.retry(77)",
    "SELECT mill.cancel_many('{77}')",
    "SELECT mill.retry_many('{77}')",
    "SELECT mill.purge_queue('nobody')",
    "SELECT mill.resume('nobody')",
    "SELECT mill.drop_group('nobody')",
    "SELECT mill.drain('00000000-0000-0000-0000-000000000002')",
    "SELECT mill.enable_job('nobody')",
    "SELECT mill.enable_job_task('j', 'nobody')",
    "SELECT mill.drop_dependency('x', 'y')",
    "SELECT mill.cancel_run(77)",
    "SELECT mill.enable_schedule('nobody')",
    "SELECT mill.backfill_schedule('nobody', now(), now())",
    "SELECT mill.pause_backfill(77)",
    "SELECT mill.resume_backfill(77)",
    "SELECT mill.cancel_backfill(1)",
    "SELECT mill.override_schedule('nobody', '{}')",
    "SELECT mill.test_subscription('nobody')",
    "SELECT mill.enable_subscription('nobody')",
    "SELECT mill.remove_subscription('nobody')",
    "SELECT mill.repair_sequences()",
    "UPDATE mill.settings SET max_crashes = max_crashes",
];

#[tokio::test(flavor = "multi_thread")]
async fn every_action_is_recorded_with_its_login_and_a_call_without_effect_is_not() {
    let database = Database::new().await;
    database.enqueue("SELECT 1", ", due_at => now() + interval '1 day'").await;
    database
        .execute(
            "INSERT INTO mill.workers (id, session_pid, session_started_at, readers, heartbeat_interval, orphan_timeout)
                VALUES ('00000000-0000-0000-0000-000000000001', 1, now(), 1, '5 s', '30 s')",
        )
        .await;
    let operator = Login::new(&database, "operator", "mill_operator").await;
    let client = operator.connect().await;
    client.batch_execute("SET application_name = 'a test'").await.unwrap();
    let last =
        "SELECT concat_ws(' ', action, subject, detail), login, coalesce(role, ''), application, actor
        FROM mill.audit ORDER BY id DESC LIMIT 1";
    let count = "SELECT count(*) FROM mill.audit";
    for (n, (sql, expected)) in ACTS.iter().enumerate() {
        assert_eq!(answer(&client, sql).await, "ok", "{sql}");
        let row = &database.rows(last, &[]).await[0];
        assert_eq!(row.get::<_, &str>(0), *expected, "{sql}");
        let by = (row.get::<_, &str>(1), row.get::<_, &str>(2), row.get::<_, &str>(3));
        assert_eq!(by, (&*operator.name, "", "a test"));
        let rows: i64 = database.value(count).await;
        assert_eq!(rows, i64::try_from(n).unwrap() + 1, "one row for {sql}");
    }
    for sql in NOTHING {
        assert_eq!(answer(&client, sql).await, "ok", "{sql}");
    }
    // An action that is rolled back leaves no record.
    client.batch_execute("BEGIN; SELECT mill.pause('q'); ROLLBACK").await.unwrap();
    assert_eq!(database.value::<i64>(count).await, i64::try_from(ACTS.len()).unwrap());

    // Check that `ACTS` has every function that an operator may call and that changes data.
    let tried: Vec<&str> =
        ACTS.iter().filter_map(|(sql, _)| sql.strip_prefix("SELECT mill.")).collect();
    // Five functions need a run, and are tested below, in tests/runs/run_control.rs and in
    // tests/runs/approvals.rs. A target that was restored is accepted in tests/targets/restore.rs, and the conditions
    // of a target are set in tests/targets/conditions.rs. The record of
    // mill.put_schedule has the timing that mill.accept_timing accepts. mill.lock_schedule changes nothing.
    // mill.purge_queue also records each task: tests/operation/steering/purge.rs. A repair of sequences is
    // recorded in tests/guarantees/server/logical_replication.rs.
    let known = [
        "restart_run",
        "rerun_run",
        "retry_run_task",
        "approve",
        "reject",
        "put_schedule",
        "accept_timing",
        "lock_schedule",
        "purge_queue",
        "accept_restored_target",
        "set_target_conditions",
        "repair_sequences",
        // Changes nothing.
        "lock",
    ];
    let functions =
        "SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'mill'::regnamespace
        AND p.provolatile = 'v' AND has_function_privilege('mill_operator', p.oid, 'EXECUTE')
        AND NOT has_function_privilege('mill_viewer', p.oid, 'EXECUTE')
        AND NOT has_function_privilege('mill_producer', p.oid, 'EXECUTE')";
    for row in database.rows(functions, &[]).await {
        let name: &str = row.get(0);
        let here = tried.iter().any(|sql| sql.starts_with(&format!("{name}(")));
        assert!(here || known.contains(&name), "mill.{name} is not audited");
    }
    // No role can change the audit.
    for sql in [
        "DELETE FROM mill.audit",
        "UPDATE mill.audit SET login = 'other'",
        "SELECT mill.record_audit('a', 'b')",
    ] {
        assert_eq!(answer(&client, sql).await, "42501", "{sql}");
    }
    drop(client);
    operator.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_is_recorded_and_a_refusal_is_not() {
    let database = Database::new().await;
    let operator = Login::new(&database, "operator", "mill_operator").await;
    let client = operator.connect().await;
    job(
        &database,
        "j",
        json!([
            {"name": "fails", "max_attempts": 1, "statement": "SELECT 1 / 0"},
            {"name": "held", "statement": "SELECT pg_advisory_xact_lock_shared(1)"},
        ]),
    )
    .await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let _worker = Worker::start(&database, &FLAGS);
    let run = start(&database, "j").await;
    let failed = async || states(&database, run).await.contains("fails failed");
    eventually("one task has failed and the other holds the run open", failed).await;
    let last =
        "SELECT count(*) || ': ' || coalesce((SELECT concat_ws(' ', action, subject, detail, login)
        FROM mill.audit ORDER BY id DESC LIMIT 1), '') FROM mill.audit";
    let before: String = database.value(last).await;
    let [retry, nobody, restart] = [
        format!("SELECT mill.retry_run_task({run}, 'fails')"),
        format!("SELECT mill.retry_run_task({run}, 'nobody')"),
        format!("SELECT mill.restart_run({run}, never_run => false)"),
    ];
    assert_eq!(answer(&client, &nobody).await, "ok");
    assert_eq!(answer(&client, &restart).await, "55000");
    assert_eq!(database.value::<String>(last).await, before, "nothing was done");
    assert_eq!(answer(&client, &retry).await, "ok");
    let count = |before: &str| before.split(':').next().and_then(|it| it.parse::<u32>().ok());
    let rows = count(&before).unwrap();
    let output = format!(
        "{}: retry_run_task run {run} {{\"task\": \"fails\", \"tasks\": 1}} {}",
        rows + 1,
        operator.name
    );
    assert_eq!(database.value::<String>(last).await, output);
    eventually("it has failed again", failed).await;
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(end(&database, run).await, "failed");
    assert_eq!(answer(&client, &restart).await, "ok");
    let recorded: String = database.value(last).await;
    let begins = format!(
        "{}: restart_run run {run} {{\"force\": false, \"state\": \"failed\", \"tasks\": 1, \
         \"failed\": true, ",
        rows + 2
    );
    assert!(recorded.starts_with(&begins) && recorded.ends_with(&operator.name), "{recorded}");
    drop(client);
    operator.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_records_who_a_program_acts_for_next_to_its_login() {
    let mut database = Database::new().await;
    database.execute("SET ROLE mill_operator; SELECT mill.pause('a'); RESET ROLE").await;
    let url = database.url();
    let mut client = crate::harness::open_url(&url).await;
    let transaction = client.transaction().await.unwrap();
    set_actor(&transaction, "ann").await.unwrap();
    transaction.batch_execute("SELECT mill.pause('b')").await.unwrap();
    transaction.commit().await.unwrap();
    // The actor of a transaction does not apply to the next transaction of the session.
    client.batch_execute("SELECT mill.pause('c')").await.unwrap();
    database.reconnect().await;
    let reported = "SELECT string_agg(concat_ws(' ', subject, coalesce(role, '-'), coalesce(actor, '-')), ', ' ORDER BY id)
        FROM mill.audit";
    assert_eq!(
        database.value::<String>(reported).await,
        "queue a mill_operator -, queue b - ann, queue c - -"
    );
    let listed = Program::pgmill(&database, &["audit", "--login", "ann"]).succeeds().await;
    assert!(listed.contains(" (for ann)") && listed.contains("queue b"), "{listed}");
    assert!(!listed.contains("queue a"), "{listed}");
    Program::pgmill(&database, &["queue", "pause", "d", "--dry-run", "--create"]).succeeds().await;
    Program::pgmill(&database, &["queue", "pause", "e", "--create"]).succeeds().await;
    database.execute("SELECT mill.set_profile('p', '{mill_producer}')").await;
    database.execute("SELECT mill.set_profile('p', '{mill_operator}')").await;
    let listed = Program::pgmill(&database, &["audit", "--subject", "profile p"]).succeeds().await;
    let change = r#"allowed: ["mill_producer"] → ["mill_operator"]"#;
    assert!(listed.contains(change), "{listed}");
    database.execute("DELETE FROM mill.audit WHERE subject = 'profile p'").await;
    let listed = Program::pgmill(&database, &["audit", "--json", "--limit", "1"]).succeeds().await;
    assert!(listed.contains("\"queue e\"") && listed.contains("\"pgmill\""), "{listed}");

    database.execute("UPDATE mill.audit SET at = '2026-03-01 12:00Z' WHERE id < 3").await;
    let period = ["audit", "--from", "2026-03-01T12:00:00Z", "--to", "2026-03-01T12:00:00Z"];
    let listed = Program::pgmill(&database, &period).succeeds().await;
    assert!(listed.contains("queue a") && !listed.contains("queue c"), "{listed}");
    let later = ["audit", "--from", "2026-03-01T12:00:01Z"];
    let listed = Program::pgmill(&database, &later).succeeds().await;
    assert!(!listed.contains("queue a") && listed.contains("queue c"), "{listed}");
    database.execute("UPDATE mill.audit SET at = now() - interval '366 days' WHERE id < 3").await;
    database.execute("SELECT mill.prune()").await;
    assert_eq!(database.value::<i64>("SELECT min(id) FROM mill.audit").await, 3);
}
