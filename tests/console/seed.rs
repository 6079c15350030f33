//! A fleet with a value in every column that a page shows.

use serde_json::json;

use crate::harness::{Database, Worker, eventually};
use crate::runs::run::job;
use crate::schedules::schedule::planned;

/// Fills every table: with a task in each state, history with every optional field, runs, and
/// schedules. Returns the ids of a running and of a failed task.
pub(crate) async fn seed(database: &Database) -> (i64, i64) {
    let failing = "DO $$ BEGIN RAISE NOTICE 'n'; RAISE 'm' USING DETAIL = 'd', HINT = 'h'; END $$";
    let named =
        ", name => 'it', key => 'k', group_name => 'g', max_attempts => 1, params => '[\"p\"]'";
    database
        .execute(
            "SELECT mill.set_group('g', 'described'); SELECT mill.set_active_period('g', '00:00', '23:59', 'UTC');
             SELECT mill.set_max_running('queue', 'default', 100); SELECT mill.pause('other');
             SELECT mill.set_profile('etl', ARRAY['mill_producer'], 'described'), mill.set_target('dwh');
             INSERT INTO mill.target_checks (name, begun_at, held_back) VALUES ('dwh', now(), 'described');
             SELECT mill.set_dependency('it', 'parent');
             CREATE TABLE public.inbox (came_at timestamptz NOT NULL);
             INSERT INTO public.inbox VALUES (now());
             SELECT mill.set_schedule('triggered', 'trigger(table: inbox, age: came_at, every: 1s, rows: 1)', 'SELECT 1');
             CREATE PROCEDURE public.declared() LANGUAGE sql AS 'SELECT 1';
             COMMENT ON PROCEDURE public.declared IS '@daily(25:99)'",
        )
        .await;
    // A worker reads comments at its start, and then periodically.
    let mut worker = Worker::start(database, &["--readers", "4", "--poll-interval", "50ms"]);
    database.execute("SELECT mill.enqueue('SELECT 1 AS c', name => 'it', explain => true)").await;
    let failed = database.enqueue(failing, &named.replace(", params => '[\"p\"]'", "")).await;
    let with_params = named.replace("'k'", "'l'");
    let with_params = database.enqueue("SELECT $1::text", &with_params).await;
    job(
        database,
        "it",
        json!([
            {"name": "it", "statement": "SELECT $1::text AS c", "description": "t", "params": ["p"]},
            {"name": "next", "statement": "SELECT 1", "after": ["it"], "queue": "none"},
        ]),
    )
    .await;
    database.execute("SELECT mill.start_run(ARRAY['it'])").await;
    database.execute("SELECT mill.set_schedule('it', 'daily(03:15)', jobs => ARRAY['it'])").await;
    planned(database, "it").await;
    database.execute("SELECT mill.run_now('it', true)").await;
    let has_error = "SELECT EXISTS (SELECT FROM mill.schedule_declaration_errors)";
    eventually("the error is recorded", async || database.value(has_error).await).await;
    database.outcome(failed).await;
    database.outcome(with_params).await;
    let fired = "SELECT EXISTS (SELECT FROM mill.runs WHERE reason IS NOT NULL)";
    eventually("the trigger has fired", async || database.value(fired).await).await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let holding = "DO $$ BEGIN RAISE NOTICE 'n'; RAISE NOTICE 'progress: 40%% l'; PERFORM pg_advisory_xact_lock(1); END $$";
    let running = database.enqueue(holding, ", name => 'it'").await;
    database.until_waiting_for_lock(running).await;
    let output = "SELECT EXISTS (SELECT FROM mill.progress WHERE message IS NOT NULL AND notices IS NOT NULL)";
    eventually("progress is recorded", async || database.value(output).await).await;
    // In a paused queue: the worker still runs tasks.
    database.execute(&format!("SELECT mill.enqueue('SELECT $1', queue => 'other'{named})")).await;
    // Kill the worker: from here on it must change nothing, and its running task and the request to
    // cancel it must remain.
    worker.kill();
    database.execute(&format!("SELECT mill.cancel({running})")).await;
    database
        .execute("SELECT mill.begin_request('c', 'k', 'r'), mill.finish_request('c', 'k', '\"a\"')")
        .await;
    database.execute(UNCONNECTED).await;
    // Use a run that does not exist, because events of existing runs may be processed meanwhile.
    let event = r#"INSERT INTO mill.run_events (run_id, message, result) VALUES (0, 'm', '["r"]')"#;
    database.execute(event).await;
    subscribe(database).await;
    plan(database).await;
    for table in ["jobs", "runs", "schedules"] {
        let labels = r#"tags = '{t}', metadata = '{"k": "v"}'"#;
        database.execute(&format!("UPDATE mill.{table} SET {labels}")).await;
    }
    for table in ["tasks", "attempts", "job_tasks", "run_tasks"] {
        let options = r#"'{"tags": ["t"], "metadata": {"k": "v"}}'"#;
        let options = format!("jsonb_populate_record(NULL::mill.task_options, {options})");
        database.execute(&format!("UPDATE mill.{table} SET options = {options}")).await;
    }
    (running, failed)
}

/// As if a reader of the killed worker had not been able to connect, and an operation had failed again and again.
const UNCONNECTED: &str = r#"UPDATE mill.workers SET unconnected = '[{"profile": "", "login": "l", "readers": 4,
    "connected": 3, "failed": 1, "error": "m", "seconds": 1}]', error = 'm', error_since = now()"#;

/// Creates a subscription of each kind with every optional setting, and a notification of each.
async fn subscribe(database: &Database) {
    database
        .execute(
            r#"SELECT mill.set_subscription(k, s::jsonb || '{"events": ["task_failed"], "queue": "q", "job": "it",
                "schedule": "it", "tag": "t", "task": "it", "description": "d"}'), mill.test_subscription(k) FROM (VALUES
                ('d', '{"destination": "d"}'), ('c', '{"channel": "c"}'),
                ('s', '{"statement": "SELECT $1", "task_queue": "q", "run_as": "etl"}')) AS v(k, s);
            UPDATE mill.notifications SET last_error = 'e', dead_at = now(); UPDATE mill.subscription_state SET last_error = 'e';
            INSERT INTO mill.backlog_notices VALUES (1, 'q'); UPDATE mill.workers SET destinations = '{d}'"#,
        )
        .await;
}

/// Plans a pause of the fleet, and starts a backfill.
async fn plan(database: &Database) {
    database
        .execute(
            "SELECT mill.pause_fleet(now() + interval '2 days', 'r', now() + interval '1 day');
             SELECT mill.backfill_schedule('it', '2026-01-01Z', '2026-01-02Z', '{\"params\": {\"p\": \"v\"}}')",
        )
        .await;
}
