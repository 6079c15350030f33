//! SQL answers the questions of an operator: the state of a task, the reason why it waits, and its
//! outcome.

use rustix::process::Signal;

use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker, eventually};

async fn why(database: &Database, id: i64) -> String {
    database.value::<Option<String>>(&format!("SELECT mill.why({id})")).await.unwrap()
}

/// Waits until the explanation contains all of these texts.
async fn until_why(database: &Database, id: i64, fragments: &[&str]) {
    let mut last = String::new();
    eventually(&format!("why of task {id} says {fragments:?}"), async || {
        let now = why(database, id).await;
        if now != last {
            println!("{now}");
            last = now;
        }
        fragments.iter().all(|text| last.contains(text))
    })
    .await;
}

/// Returns the backend pid of the session that tests hold locks with.
async fn own_pid(database: &Database) -> i32 {
    database.value("SELECT pg_backend_pid()").await
}

#[tokio::test(flavor = "multi_thread")]
async fn why_names_the_reason_that_a_task_is_not_running() {
    let database = Database::new().await;
    assert_eq!(database.value::<Option<String>>("SELECT mill.why(7)").await, None);

    let later = database.enqueue("SELECT 1", ", due_at => now() + interval '1 day'").await;
    until_why(&database, later, &["it is due at", "in 23:59:"]).await;
    let first = database.enqueue("SELECT pg_advisory_xact_lock(1)", ", queue => 'q'").await;
    until_why(&database, first, &["no live worker serves queue \"q\""]).await;
    database.execute("SELECT mill.pause('q')").await;
    until_why(&database, first, &["queue \"q\" is paused"]).await;
    database.execute("SELECT mill.resume('q'); SELECT pg_advisory_lock(1)").await;

    let flags = ["--readers", "1", "--heartbeat-interval", "200ms", "--queues", "q"];
    let worker = Worker::start(&database, &flags);
    let pid = own_pid(&database).await;
    let place = format!(":{} since", worker.pid());
    let blocked = format!("blocked by backend {pid}");
    until_why(&database, first, &["it is running on", &place, &blocked]).await;
    let second = database.enqueue("SELECT 1", ", queue => 'q'").await;
    let third = database.enqueue("SELECT 1", ", queue => 'q'").await;
    until_why(
        &database,
        second,
        &["all readers (1)", "\"q\" are busy; tasks ahead", "priority: 0"],
    )
    .await;
    until_why(&database, third, &["all readers (1)", "with the same priority: 1"]).await;
    database.execute("SELECT mill.drain(id) FROM mill.workers").await;
    until_why(&database, third, &["every worker that serves queue \"q\" is draining"]).await;

    database.execute("SELECT mill.set_max_running('queue', 'q', 0)").await;
    until_why(&database, third, &["queue \"q\" has max_running 0"]).await;
    database
        .execute(
            "SELECT mill.set_max_running('queue', 'q', NULL); SELECT mill.grant_waiting_permits()",
        )
        .await;
    database.execute("SELECT mill.drain(id, false) FROM mill.workers").await;
    // Freeze the only worker, so that no task is promoted.
    worker.signal(Signal::STOP);
    database
        .execute(&format!("UPDATE mill.tasks SET state = 'scheduled' WHERE id = {third}"))
        .await;
    until_why(&database, third, &["it is due and about to become pending"]).await;
    // The server may execute a heartbeat that the worker sent before it was frozen.
    eventually("the worker has stopped sending heartbeats", async || {
        database.execute("UPDATE mill.workers SET heartbeat_at = now() - interval '1 hour'").await;
        let why: String = database.value(&format!("SELECT mill.why({first})")).await;
        why.contains("has stopped sending heartbeats") && why.contains("about to be reclaimed")
    })
    .await;
    database.execute(&format!("SELECT mill.cancel({first})")).await;
    until_why(&database, first, &["it is running on", "and about to be cancelled"]).await;
    worker.signal(Signal::CONT);
    assert_eq!(database.outcome(first).await, "cancelled");
    for id in [second, third] {
        assert_eq!(database.outcome(id).await, "succeeded");
    }
    until_why(&database, first, &["it is finished: cancelled at", "on attempt 1"]).await;
    until_why(&database, second, &["it is finished: succeeded at", "on attempt 1"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_explains_a_running_a_retrying_and_a_finished_task() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "2", "--heartbeat-interval", "200ms"]);
    let sleeps = database.enqueue("SELECT pg_sleep(3600)", "").await;
    until_why(&database, sleeps, &["it is running on", "waiting for Timeout: PgSleep"]).await;
    let failed = database.enqueue("SELECT 1 / 0", ", max_attempts => 1").await;
    let fragments = ["it is finished: failed at", "on attempt 1: division by zero"];
    until_why(&database, failed, &fragments).await;
    let again = ", retry_interval => '1 hour', jitter => false";
    let retried = database.enqueue("SELECT 1 / 0", again).await;
    let fragments =
        ["attempt 1 ended as failed (division by zero); the next one is due at", "in 00:59:"];
    until_why(&database, retried, &fragments).await;
    database.execute(&format!("SELECT mill.cancel({retried})")).await;
    until_why(&database, retried, &["it is finished: cancelled at", "before it was claimed"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_shows_what_each_backend_waits_for_and_who_blocks_it() {
    let database = Database::new().await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let worker = Worker::start(&database, &["--readers", "2"]);
    let held =
        database.enqueue("SELECT pg_advisory_xact_lock(1)", ", name => 'held', queue => 'q'").await;
    let sleeps = database.enqueue("SELECT pg_sleep(3600)", "").await;
    let waits = "SELECT count(*) FROM mill.running WHERE wait_event IN ('advisory', 'PgSleep')";
    eventually("both wait", async || database.value::<i64>(waits).await == 2).await;
    let sql = "SELECT queue, name, attempt, worker_pid, wait_event_type, wait_event, blocked_by,
            backend_state, statement, running_duration >= '0', cancel_requested_at IS NOT NULL,
            pid IN (SELECT a.pid FROM pg_stat_activity a WHERE a.datname = current_database()
                AND a.application_name ~ ('^pgmill reader [12] worker ' || left(worker_id::text, 8) || '$'))
        FROM mill.running WHERE id = $1";
    // The server shows no event for a moment while a waiting session looks for a deadlock.
    let waiting = async |id: i64| {
        let mut rows = Vec::new();
        eventually("the session waits", async || {
            rows = database.rows(sql, &[&id]).await;
            rows[0].get::<_, Option<&str>>(5).is_some()
        })
        .await;
        rows.remove(0)
    };
    let row = waiting(held).await;
    assert_eq!(
        (row.get::<_, &str>(0), row.get::<_, &str>(1), row.get::<_, i32>(2)),
        ("q", "held", 1)
    );
    assert_eq!(row.get::<_, i32>(3), worker.pid().cast_signed());
    assert_eq!((row.get::<_, &str>(4), row.get::<_, &str>(5)), ("Lock", "advisory"));
    assert_eq!(row.get::<_, Vec<i32>>(6), [own_pid(&database).await]);
    assert_eq!(
        (row.get::<_, &str>(7), row.get::<_, &str>(8)),
        ("active", "SELECT pg_advisory_xact_lock(1)")
    );
    assert_eq!((row.get(9), row.get(10), row.get(11)), (true, false, true));
    let row = waiting(sleeps).await;
    assert_eq!((row.get::<_, &str>(4), row.get::<_, &str>(5)), ("Timeout", "PgSleep"));
    assert!(row.get::<_, Vec<i32>>(6).is_empty());
    let others = "SELECT string_agg(DISTINCT split_part(a.application_name, ' ', 2), ',')
        FROM pg_stat_activity a JOIN mill.workers w
            ON a.application_name LIKE 'pgmill % worker ' || left(w.id::text, 8)
        WHERE a.datname = current_database()";
    eventually("every session names its worker", async || {
        let roles: String = database.value(others).await;
        ["claimer", "control", "listener", "reader"].iter().all(|role| roles.contains(role))
    })
    .await;
    // A frozen worker does not process the request.
    worker.signal(Signal::STOP);
    database.execute(&format!("SELECT mill.cancel({sleeps})")).await;
    assert!(database.rows(sql, &[&sleeps]).await[0].get::<_, bool>(10));
}

#[tokio::test]
async fn queue_status_counts_the_tasks_of_each_queue_by_state() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[3]), queue => 'a');
             SELECT mill.enqueue('SELECT 1', queue => 'a', due_at => now() + interval '1 day');
             SELECT mill.enqueue('SELECT 1', queue => 'b');
             SELECT mill.set_max_running('queue', 'b', 0);
             UPDATE mill.tasks SET due_at = now() - interval '1 hour' WHERE id = 2;
             UPDATE mill.tasks SET state = 'running', attempt = 1, token = gen_random_uuid(),
                claimed_by = gen_random_uuid(), claimed_at = now() - interval '2 hours',
                session_pid = 1, session_started_at = now() WHERE id = 3;
             SELECT mill.pause('c')",
        )
        .await;
    let rows = database
        .rows(
            "SELECT format('%s: %s %s %s %s %s', queue, paused, pending, running, scheduled, blocked),
                oldest_pending_age BETWEEN '1 hour' AND '61 minutes',
                longest_running BETWEEN '2 hours' AND '121 minutes'
             FROM mill.queue_status ORDER BY queue",
            &[],
        )
        .await;
    let lines: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(lines, ["a: f 2 1 1 0", "b: f 0 0 0 1", "c: t 0 0 0 0"]);
    let ages = |n: usize| -> (Option<bool>, Option<bool>) { (rows[n].get(1), rows[n].get(2)) };
    assert_eq!((ages(0), ages(1)), ((Some(true), Some(true)), (None, None)));
}

#[tokio::test(flavor = "multi_thread")]
async fn history_shows_every_attempt_with_how_long_it_waited_and_ran() {
    let database = Database::new().await;
    let id =
        database.enqueue("SELECT pg_sleep(0.2)", ", due_at => now() - interval '1 hour'").await;
    let worker = Worker::start(&database, &["--readers", "1"]);
    assert_eq!(database.outcome(id).await, "succeeded");
    let twice = ", max_attempts => 2, retry_interval => '0', name => 'twice'";
    assert_eq!(database.run("SELECT 1 / 0", twice).await.outcome, "failed");
    let sql = format!(
        "SELECT wait_duration BETWEEN '1 hour' AND '2 hours' AND duration BETWEEN '0.2 s' AND '1 hour'
            AND attempt = 1 AND final AND rows = 1 AND worker_pid = {}
         FROM mill.history WHERE task_id = {id}",
        worker.pid()
    );
    assert!(database.value::<bool>(&sql).await);
    let attempts: String = database
        .value(
            "SELECT string_agg(concat_ws(' ', attempt, outcome, final, sqlstate, wait_duration >= '0',
                duration >= '0', statement), '; ' ORDER BY attempt)
             FROM mill.history WHERE name = 'twice'",
        )
        .await;
    assert_eq!(attempts, "1 failed f 22012 t t SELECT 1 / 0; 2 failed t 22012 t t SELECT 1 / 0");
    // A task that was never claimed has a wait time and no run time when it has ended.
    let waited = database.enqueue("SELECT 1", ", queue => 'q', due_at => now() + interval '1 day'");
    let waited = waited.await;
    database.execute(&format!("SELECT mill.cancel({waited})")).await;
    let sql = format!(
        "SELECT duration IS NULL AND started_at IS NULL AND final FROM mill.history
        WHERE task_id = {waited}"
    );
    assert!(database.value::<bool>(&sql).await);
}

#[tokio::test]
async fn a_worker_that_cannot_record_an_end_reports_the_error_until_it_can() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE 'no space for history'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON mill.attempts FOR EACH ROW
                WHEN (NEW.name = 'stuck') EXECUTE FUNCTION refuse()",
        )
        .await;
    let _worker = Worker::start(&database, &["--readers", "1", "--heartbeat-interval", "200ms"]);
    let id = database.enqueue("SELECT 1/0", ", max_attempts => 1, name => 'stuck'").await;
    let error = format!("recording the end of task {id}: no space for history");
    until_why(&database, id, &["fails again and again", &error]).await;
    let status = async || Program::pgmill(&database, &["status"]).succeeds().await;
    database.execute("UPDATE mill.workers SET error_since = now() - interval '1 minute'").await;
    eventually("the error is a problem", async || status().await.contains(&error)).await;
    database.refuse_no_more().await;
    assert_eq!(database.outcome(id).await, "failed");
    let reported =
        "SELECT count(*) FROM mill.workers WHERE error IS NOT NULL OR error_since IS NOT NULL";
    eventually("the report has ended", async || database.value::<i64>(reported).await == 0).await;
    assert!(status().await.contains("1 task failed"));
}

#[tokio::test]
async fn why_names_the_error_that_keeps_a_task_from_a_permit() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE 'no space for permits'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON mill.permits FOR EACH ROW
                EXECUTE FUNCTION refuse()",
        )
        .await;
    let _worker = Worker::start(&database, &["--readers", "1", "--heartbeat-interval", "200ms"]);
    database.execute("SELECT mill.set_max_running('key', 'k', 1)").await;
    let id = database.enqueue("SELECT 1", ", concurrency_key => 'k'").await;
    let error = "but a worker reports the error grant_permits: no space for permits";
    until_why(&database, id, &["it is about to get a permit of", error]).await;
    database.refuse_no_more().await;
    assert_eq!(database.outcome(id).await, "succeeded");
}

#[tokio::test]
async fn a_running_task_is_shown_with_its_run_its_login_and_its_query() {
    let database = Database::new().await;
    let tasks = serde_json::json!([{"name": "a", "statement": "SELECT pg_advisory_xact_lock(9)"}]);
    crate::runs::run::job(&database, "j", tasks).await;
    database.execute("SELECT pg_advisory_lock(9)").await;
    let _worker = Worker::start(&database, &["--readers", "1"]);
    let run = crate::runs::run::start(&database, "j").await;
    let id: i64 = database.value("SELECT task_id FROM mill.run_tasks").await;
    database.until_waiting_for_lock(id).await;
    let shown =
        "SELECT (run_id, login = 'mill_test_tasks', query LIKE '%pg_advisory_xact_lock(9)%')::text
        FROM mill.running";
    assert_eq!(database.value::<String>(shown).await, format!("({run},t,t)"));
    let running = queue::task_queries::running(database.client(), None).await.unwrap();
    assert_eq!(running[0].run_id, Some(run));
}

#[tokio::test]
async fn an_operator_sees_the_transactions_of_all_sessions_but_not_their_statements() {
    let database = Database::new().await;
    let other = database.connect().await;
    other.batch_execute("BEGIN; SELECT pg_current_xact_id(), 'a secret'").await.unwrap();
    let pid: i32 = other.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let login = Login::new(&database, "operator", "mill_operator").await;
    let client = login.connect().await;
    let holders = queue::doctor::horizon(&client).await.unwrap();
    let holder = holders.iter().find(|it| it.name == pid.to_string()).unwrap();
    assert!(holder.age_seconds.is_some() && holder.query.is_none(), "{holder:?}");
    assert_eq!(queue::doctor::hidden_sessions(&client).await.unwrap(), 0);
    let connections = queue::insight::storage::connections(&client).await.unwrap();
    let open = connections.iter().find(|it| it.state.as_deref() == Some("idle in transaction"));
    assert!(open.is_some_and(|it| it.transaction_seconds.is_some()), "{connections:?}");
    let blockers = queue::insight::problems::blockers(&client, &[pid]).await.unwrap();
    assert_eq!(blockers[0].state.as_deref(), Some("idle in transaction"));
    // Without the right to see them, the check says so instead of "ok".
    drop(client);
    database.execute("REVOKE EXECUTE ON FUNCTION mill.sessions FROM mill_viewer").await;
    let client = login.connect().await;
    assert!(queue::doctor::hidden_sessions(&client).await.unwrap() > 0);
    let doctor = Program::pgmill(&database, &["doctor"]).at(&login.url()).run().await.1;
    assert!(doctor.contains("not visible to this login"), "{doctor}");
    drop((client, other));
    login.drop().await;
}
