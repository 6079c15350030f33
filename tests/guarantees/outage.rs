//! No failure of the database or the network loses a task, duplicates one or ends a worker.

use cluster::Mode;
use futures_util::future::join_all;
use proxy::{Cut, FaultAction, MessageMatch, Proxy};

use crate::harness::login::Login;
use crate::harness::{Database, PrivateDatabase, Worker, amount, eventually};
use crate::schedules::schedule::{planned, schedule};

const LEAVES_A_MARK: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";
const FLAGS: [&str; 4] = ["--readers", "4", "--poll-interval", "50ms"];

async fn effects(database: &Database, id: i64) -> i64 {
    database.value(&format!("SELECT count(*) FROM effect WHERE task = {id}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_outlive_restarts_and_a_crash_of_the_server() {
    let tasks: i64 = amount(150, 400);
    let mut private = PrivateDatabase::new(&[]).await;
    private.database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
    // Outages must not use up an attempt. If one did, a task would fail.
    private
        .database
        .execute(&format!(
            "SELECT mill.enqueue_many(max_attempts => 1, statements => array_fill(
                 $${LEAVES_A_MARK}; SELECT pg_sleep(0.05)$$::text, ARRAY[{tasks}]))"
        ))
        .await;
    let mut workers = [(); 2].map(|()| Worker::start(&private.database, &FLAGS));
    for (round, way) in ["fast", "immediate", "crash", "fast"].into_iter().enumerate() {
        let next = tasks * (i64::try_from(round).unwrap() + 1) / 6;
        eventually("the drain continues", async || {
            let done = "SELECT count(*) FROM mill.attempts WHERE final";
            private.database.value::<i64>(done).await >= next
        })
        .await;
        // The outage hits this task, and releases its lock.
        private.database.execute("SELECT pg_advisory_lock(1)").await;
        let held = "SELECT pg_advisory_xact_lock_shared(1)";
        let options = ", max_attempts => 1, priority => 'high'";
        let held = private.database.enqueue(held, options).await;
        private.database.until_waiting_for_lock(held).await;
        match way {
            "fast" => private.cluster.restart(Mode::Fast).unwrap(),
            "immediate" => private.cluster.restart(Mode::Immediate).unwrap(),
            _ => {
                private.cluster.crash().unwrap();
                private.cluster.start_again().unwrap();
            }
        }
        private.database.reconnect().await;
    }
    let database = &private.database;
    database.until_empty().await;
    let failed = "SELECT task_id || ': ' || outcome || ' ' || coalesce(sqlstate, '') || ' ' || coalesce(message, '')
                  FROM mill.attempts WHERE final AND outcome <> 'succeeded'";
    let failed = database.rows(failed, &[]).await;
    let failed: Vec<String> = failed.iter().map(|row| row.get(0)).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let row = &database.rows("SELECT count(*), count(DISTINCT task) FROM effect", &[]).await[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (tasks, tasks));
    let outcomes = "SELECT count(*) FILTER (WHERE outcome = 'succeeded'),
                        count(*) FILTER (WHERE outcome <> 'succeeded'), bool_or(final AND outcome <> 'succeeded')
                    FROM mill.attempts";
    let row = &database.rows(outcomes, &[]).await[0];
    println!("{} attempts interrupted by 4 outages", row.get::<_, i64>(1));
    assert_eq!((row.get::<_, i64>(0), row.get(2)), (tasks + 4, false));
    // One worker reconnects first. It does not reclaim the tasks of the other worker, which is
    // still reconnecting.
    let lost = "SELECT count(*) FROM mill.attempts WHERE outcome = 'lost'";
    assert_eq!(database.value::<i64>(lost).await, 0);
    assert!(row.get::<_, i64>(1) > 0, "no outage hit a running task: the test proves nothing");
    eventually("both workers are registered", async || {
        database.value::<i64>("SELECT count(*) FROM mill.workers").await == 2
    })
    .await;
    for worker in &mut workers {
        assert!(worker.terminate().await.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_drains_drains_until_an_operator_ends_it_also_after_a_crash_of_the_server() {
    let mut private = PrivateDatabase::new(&[]).await;
    let flags = [&FLAGS[..], &["--heartbeat-interval", "500ms"]].concat();
    let worker = Worker::start(&private.database, &flags);
    worker.until_logged("ready").await;
    private.database.execute("SELECT mill.drain(id) FROM mill.workers").await;
    worker.until_logged("an operator has started the drain").await;
    // A crash empties the table of the workers. The other workers do the same to one that was cut off.
    private.cluster.crash().unwrap();
    private.cluster.start_again().unwrap();
    private.database.reconnect().await;
    let database = &private.database;
    for cause in ["a crash", "the absence"] {
        eventually("the worker is registered", async || {
            database.value::<i64>("SELECT count(*) FROM mill.workers").await == 1
        })
        .await;
        let drains = "SELECT draining FROM mill.workers";
        assert!(database.value::<bool>(drains).await, "after {cause}");
        database.execute("DELETE FROM mill.workers").await;
    }
    eventually("the worker is registered again", async || {
        let drained = "SELECT count(mill.drain(id, false)) FROM mill.workers";
        database.value::<i64>(drained).await == 1
    })
    .await;
    worker.until_logged("an operator has ended the drain").await;
    let id = database.enqueue("SELECT 1", "").await;
    assert_eq!(database.outcome(id).await, "succeeded");
}

/// Terminates every session of this name except the test's own.
async fn end_sessions(database: &Database, name: &str) {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()
                   AND application_name LIKE $1";
    assert!(!database.rows(sql, &[&name]).await.is_empty(), "no session \"{name}\"");
}

#[tokio::test]
async fn a_worker_outlives_the_end_of_any_of_its_sessions() {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
    let worker = Worker::start(&database, &FLAGS);
    worker.until_logged("ready").await;
    let names = "SELECT DISTINCT application_name FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()
                     AND application_name <> '' ORDER BY 1";
    let mut sessions = Vec::new();
    // The sessions are those of the claimer, the listener, control, a pool, and four readers.
    eventually("every kind of session exists", async || {
        let rows = database.rows(names, &[]).await;
        sessions = rows.iter().map(|row| row.get::<_, String>(0)).collect();
        sessions.len() == 8
    })
    .await;
    for expected in ["pgmill control", "pgmill claimer", "pgmill listener", "pgmill reader 4"] {
        assert!(
            sessions.iter().any(|name| name.starts_with(&format!("{expected} worker "))),
            "{sessions:?}"
        );
    }
    let mut ends = sessions.clone();
    ends.push("%".to_owned());
    for name in ends {
        database.execute("SELECT pg_advisory_lock(1)").await;
        let held = format!("{LEAVES_A_MARK}; SELECT pg_advisory_xact_lock_shared(1)");
        // The end of its own session counts as its failure.
        let twice = ", max_attempts => 2, retry_interval => '0'";
        let held = database.enqueue(&held, twice).await;
        database.until_waiting_for_lock(held).await;
        end_sessions(&database, &name).await;
        let quick = database.enqueue(LEAVES_A_MARK, ", max_attempts => 1").await;
        assert_eq!(database.outcome(quick).await, "succeeded", "after the end of \"{name}\"");
        database.execute("SELECT pg_advisory_unlock(1)").await;
        assert_eq!(database.outcome(held).await, "succeeded", "after the end of \"{name}\"");
        for id in [held, quick] {
            assert_eq!(effects(&database, id).await, 1, "after the end of \"{name}\"");
        }
        eventually(&format!("\"{name}\" and the others are connected again"), async || {
            let rows = database.rows(names, &[]).await;
            sessions.iter().all(|name| rows.iter().any(|row| row.get::<_, &str>(0) == name))
        })
        .await;
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.workers").await, 1);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.worker_starts").await, 1);
}

#[tokio::test]
async fn a_worker_waits_while_there_are_too_many_connections() {
    let database = Database::new().await;
    let (name, effect) = (database.name(), "CREATE TABLE effect (task bigint NOT NULL)");
    database
        .execute(&format!(
            "{effect}; CREATE ROLE {name} LOGIN PASSWORD 'secret' IN ROLE mill_worker;
             GRANT INSERT ON effect TO {name}"
        ))
        .await;
    let limit = async |max_connections: i32| {
        database
            .execute(&format!("ALTER DATABASE {name} CONNECTION LIMIT {max_connections}"))
            .await;
    };
    // These are enough connections to start, but too few for control, claimer, listener, pool and
    // four readers.
    limit(5).await;
    let mut worker = Worker::start_at(&database.url_as(name, "secret"), &FLAGS);
    worker.until_logged("too many connections").await;
    worker.until_logged("ready").await;
    let first = database.enqueue(LEAVES_A_MARK, ", max_attempts => 1").await;
    limit(-1).await;
    assert_eq!(database.outcome(first).await, "succeeded");
    limit(0).await;
    let refused = worker.log().matches("too many connections").count();
    end_sessions(&database, "%").await;
    let second = database.enqueue(LEAVES_A_MARK, ", max_attempts => 1").await;
    eventually("the worker retries and is refused", async || {
        worker.log().matches("too many connections").count() > refused + 5
    })
    .await;
    limit(-1).await;
    assert_eq!(database.outcome(second).await, "succeeded");
    assert_eq!(database.attempts(second).await, "succeeded");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM effect").await, 2);
    assert!(worker.terminate().await.success());
}

/// Runs one task after another on one reader. The session of the n-th task is cut at its n-th
/// message. Stops after the first task that sent fewer messages. Returns the number of attempts and
/// of effects of each task.
async fn sweep(mode: &str, cut: Cut) -> Vec<(i64, i64)> {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
    let proxy = Proxy::start(&database.url()).await.unwrap();
    let through = proxy.url(&database.task_url());
    let flags = ["--readers", "1", "--poll-interval", "20ms", "--task-url", &through];
    let _worker = Worker::start(&database, &flags);
    let idle = "SELECT count(*) = 1 AND bool_and(state = 'idle'
                    AND query ~ 'worker[.](reset_session|commit|identity)')
                FROM pg_stat_activity
                WHERE datname = current_database() AND application_name LIKE 'pgmill reader 1 %'";
    let until_idle = async || {
        eventually("the reader is idle", async || {
            database.value::<Option<bool>>(idle).await == Some(true)
        })
        .await;
    };
    let mut counts = Vec::new();
    for n in 1.. {
        until_idle().await;
        proxy.arm(MessageMatch::Message(n), FaultAction::Cut(cut));
        let options = format!(", max_attempts => 1, mode => '{mode}'");
        let id = database.enqueue(LEAVES_A_MARK, &options).await;
        let what = format!("{mode}, {cut:?} message {n}");
        assert_eq!(database.outcome(id).await, "succeeded", "{what}");
        if cut != Cut::Unseen {
            until_idle().await;
        }
        let attempts: i64 = database
            .value(&format!("SELECT count(*) FROM mill.attempts WHERE task_id = {id}"))
            .await;
        counts.push((attempts, effects(&database, id).await));
        if !proxy.disarm() {
            break;
        }
    }
    println!("{mode}, {cut:?}: attempts and effects {counts:?}");
    // A task sends two messages in transaction mode, and more in autocommit mode. The last task is not
    // cut.
    let min_count = if mode == "transaction" { 3 } else { 5 };
    assert!(counts.len() >= min_count, "few messages were cut: too few for a meaningful test");
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_task_has_one_effect_wherever_its_session_is_cut() {
    let cuts = [Cut::Before, Cut::After, Cut::Unseen];
    for counts in join_all(cuts.map(|cut| sweep("transaction", cut))).await {
        assert!(counts.iter().all(|(_, effects)| *effects == 1), "{counts:?}");
        assert!(counts.iter().any(|(attempts, _)| *attempts > 1), "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_autocommit_task_has_an_effect_for_some_of_its_starts_wherever_its_session_is_cut() {
    let cuts = [Cut::Before, Cut::After, Cut::Unseen];
    for counts in join_all(cuts.map(|cut| sweep("autocommit", cut))).await {
        assert!(
            counts.iter().all(|(attempts, effects)| (1..=*attempts).contains(effects)),
            "{counts:?}"
        );
        assert!(counts.iter().any(|(attempts, _)| *attempts > 1), "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_statement_of_a_cut_session_has_ended_before_its_task_runs_again() {
    for mode in ["transaction", "autocommit"] {
        let database = Database::new().await;
        let holder = database.connect().await;
        holder.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();
        let proxy = Proxy::start(&database.url()).await.unwrap();
        let through = proxy.url(&database.task_url());
        let flags = ["--readers", "2", "--poll-interval", "20ms", "--task-url", &through];
        let _worker = Worker::start(&database, &flags);
        // The server does not notice that the session is cut, so its backend keeps waiting for the lock.
        let statement = "SELECT pg_advisory_xact_lock(1)";
        proxy.arm(MessageMatch::Text(statement.to_owned()), FaultAction::Cut(Cut::Unseen));
        let id = database.enqueue(statement, &format!(", mode => '{mode}'")).await;
        let waiting =
            "SELECT count(*) FROM pg_locks l WHERE l.locktype = 'advisory' AND NOT l.granted
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let again = format!("SELECT ({waiting}) > 0 AND attempt > 1 FROM mill.tasks");
        eventually("the second attempt waits for the lock", async || {
            database.value::<bool>(&again).await
        })
        .await;
        assert_eq!(database.value::<i64>(waiting).await, 1, "{mode}");
        holder.batch_execute("SELECT pg_advisory_unlock(1)").await.unwrap();
        assert_eq!(database.outcome(id).await, "succeeded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_completion_of_an_autocommit_task_is_tried_again_and_its_statement_is_not() {
    for refused in [true, false] {
        let database = Database::new().await;
        database
            .execute(
                "CREATE TABLE effect (task bigint NOT NULL);
                 CREATE SEQUENCE tries; GRANT USAGE ON SEQUENCE tries TO PUBLIC;
                 CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     IF nextval('public.tries') < 3 THEN RAISE EXCEPTION 'disk full'; END IF;
                     RETURN NEW;
                 END $$",
            )
            .await;
        let proxy = Proxy::start(&database.url()).await.unwrap();
        let through = proxy.url(&database.worker_url());
        let flags = ["--readers", "1", "--poll-interval", "20ms"];
        let _worker = Worker::start_through(&through, &database, &flags);
        if refused {
            let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON mill.attempts
                FOR EACH ROW EXECUTE FUNCTION refuse()";
            database.execute(trigger).await;
        } else {
            let completion = MessageMatch::Text("queue.complete".to_owned());
            proxy.arm(completion, FaultAction::Cut(Cut::Before));
        }
        let id = database.enqueue(LEAVES_A_MARK, ", mode => 'autocommit'").await;
        assert_eq!(database.outcome(id).await, "succeeded");
        assert_eq!(database.attempts(id).await, "succeeded");
        assert_eq!(effects(&database, id).await, 1, "refused: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_connection_is_cut_while_it_starts_reports_an_unreachable_database() {
    let database = Database::new().await;
    let proxy = Proxy::start(&database.url()).await.unwrap();
    let through = proxy.url(&database.url());
    let mut cuts = 0;
    for n in (1..).step_by(amount(3, 1)) {
        proxy.arm(MessageMatch::Message(n), FaultAction::Cut(Cut::After));
        let mut worker = Worker::start_at(&through, &["--readers", "1"]);
        let mut ended = None;
        eventually("the worker is ready, or has ended", async || {
            ended = worker.ended_already();
            ended.is_some() || worker.log().contains("ready")
        })
        .await;
        let Some(status) = ended else { break };
        assert_eq!(status.code(), Some(75), "cut at message {n}: {}", worker.log());
        assert!(proxy.disarm());
        cuts += 1;
    }
    assert!(cuts > amount(1, 5), "{cuts} cuts");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_at_most_once_task_that_was_never_sent_runs_in_another_session() {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
    let proxy = Proxy::start(&database.url()).await.unwrap();
    let through = proxy.url(&database.task_url());
    let flags = ["--readers", "1", "--poll-interval", "20ms", "--task-url", &through];
    let _worker = Worker::start(&database, &flags);
    for cut in [Cut::Before, Cut::After, Cut::Unseen] {
        let settings = MessageMatch::Text("worker.set_task_settings".to_owned());
        proxy.arm(settings, FaultAction::Cut(cut));
        let options = ", mode => 'autocommit', at_most_once => true";
        let id = database.enqueue(LEAVES_A_MARK, options).await;
        proxy.fired().await;
        assert_eq!(database.outcome(id).await, "succeeded", "{cut:?}");
        assert_eq!(database.attempts(id).await, "succeeded", "{cut:?}");
        assert_eq!(effects(&database, id).await, 1, "{cut:?}");
        proxy.disarm();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_an_administrator_ends_before_the_task_has_begun_is_no_failure_of_the_task()
{
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
    let proxy = Proxy::start(&database.url()).await.unwrap();
    let through = proxy.url(&database.task_url());
    let flags = ["--readers", "1", "--poll-interval", "20ms", "--task-url", &through];
    let _worker = Worker::start(&database, &flags);
    let with_param = format!("{LEAVES_A_MARK} + $1::bigint");
    for (message, statement, options) in [
        ("INSERT INTO effect", LEAVES_A_MARK, ""),
        ("BEGIN", &with_param, ", params => '[0]'"),
        ("worker.set_task_settings", LEAVES_A_MARK, ", mode => 'autocommit'"),
    ] {
        proxy.arm(MessageMatch::Text(message.to_owned()), FaultAction::Hold);
        let id = database.enqueue(statement, &format!(", max_attempts => 1{options}")).await;
        proxy.fired().await;
        end_sessions(&database, "pgmill reader 1 worker %").await;
        assert_eq!(database.outcome(id).await, "succeeded", "{message}");
        assert_eq!(effects(&database, id).await, 1, "{message}");
        proxy.release(false);
        proxy.disarm();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_polls_are_slow_promotes_and_fires() {
    let database = Database::new().await;
    // One of the functions that a poll calls.
    database
        .execute(
            "CREATE OR REPLACE FUNCTION mill.conditions_due() RETURNS boolean LANGUAGE sql VOLATILE
             AS 'SELECT false FROM pg_sleep(3)'",
        )
        .await;
    let _worker = Worker::start(&database, &["--poll-interval", "100ms"]);
    // Only polls tell the worker when the schedule and the task are due.
    schedule(&database, "daily", "daily(09:00)", "SELECT 1", "").await;
    let id = database.enqueue("SELECT 1", ", due_at => now() + interval '1 second'").await;
    planned(&database, "daily").await;
    assert_eq!(database.outcome(id).await, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lasting_lack_of_connections_is_logged_when_it_begins_and_when_it_ends() {
    let database = Database::new().await;
    let login = Login::new(&database, "short", "mill_worker").await;
    let mut worker = Worker::start_at(&login.url(), &["--readers", "2", "--poll-interval", "50ms"]);
    worker.until_logged("ready").await;
    assert_eq!(database.run("SELECT 1", "").await.outcome, "succeeded");
    // In a transaction of its own: a session that is terminated before could connect again.
    database.execute(&format!("ALTER ROLE {} CONNECTION LIMIT 0", login.name)).await;
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}'
            AND application_name ~ '^pgmill (claimer|listener)'",
        login.name
    );
    database.execute(&end).await;
    for again in ["claiming failed again", "still not listening for notifications"] {
        eventually(again, async || worker.log().matches(again).count() > 2).await;
    }
    let counts = |texts: [&str; 4]| texts.map(|text| worker.log().matches(text).count());
    let lines = [
        "claiming failed, trying again",
        "not listening for notifications, polling continues",
        "claiming works again",
        "listening for notifications again",
    ];
    assert_eq!(counts(lines), [1, 1, 0, 0]);
    database.execute(&format!("ALTER ROLE {} CONNECTION LIMIT -1", login.name)).await;
    database.enqueue("SELECT 1", "").await;
    eventually("both work", async || counts(lines) == [1, 1, 1, 1]).await;
    assert!(worker.terminate().await.success());
    login.gone().await;
}
