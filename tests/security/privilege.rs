//! Task SQL cannot access the queue, and every role may do only its own work.

use cluster::{Cluster, Options};

use crate::harness::login::{Login, PASSWORD, assert_answers};
use crate::harness::private::server;
use crate::harness::{Database, Worker, amount, eventually, open_url};

#[tokio::test(flavor = "multi_thread")]
async fn a_task_needs_no_rights_in_the_queue() {
    let database = Database::new().await;
    let login = Login::new(&database, "tasks", "").await;
    let flags = ["--readers", "1", "--task-url", &login.url()];
    let mut worker = Worker::start(&database, &flags);
    let held = database.enqueue("SELECT pg_advisory_xact_lock(1)", ", queue => 'held'").await;
    // It needs no privilege to complete.
    assert_eq!(database.outcome(held).await, "succeeded");
    assert_eq!(database.run("SELECT current_user::text", "").await.row(0), [login.name.as_str()]);
    assert!(!worker.log().contains("could change or drop the queue"));
    assert!(worker.terminate().await.success());
    login.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_only_its_role_does_everything_and_reclaims_dead_workers() {
    let database = Database::new().await;
    let control = Login::new(&database, "worker", "mill_worker").await;
    let tasks = Login::new(&database, "other", "").await;
    let task_url = tasks.url();
    let timing = ["--heartbeat-interval", "300ms", "--orphan-timeout", "2s", "--readers", "1"];
    let flags = [&timing[..], &["--task-url", &task_url, "--queues", "default,doomed"]].concat();
    let mut first = Worker::start_at(&control.url(), &flags);
    assert_eq!(database.run("SELECT 1", ", external => true").await.outcome, "succeeded");
    assert_eq!(database.run("SELECT 1 / 0", ", max_attempts => 1").await.sqlstate, "22012");
    let soon = ", due_at => now() + interval '50 ms', mode => 'autocommit', key => 'once'";
    assert_eq!(database.run("SELECT 1", soon).await.outcome, "succeeded");
    let cancelled = database.enqueue("SELECT pg_sleep(3600)", "").await;
    database.until_state(cancelled, "running").await;
    database.execute(&format!("SELECT mill.cancel({cancelled})")).await;
    assert_eq!(database.outcome(cancelled).await, "cancelled");

    // The SQL of a worker that was killed continues with its own login.
    database.execute("SELECT pg_advisory_lock(7)").await;
    let doomed = database.enqueue("SELECT pg_advisory_xact_lock(7)", ", queue => 'doomed'").await;
    database.until_state(doomed, "running").await;
    let waits = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event = 'advisory'";
    eventually("the task waits", async || database.value::<i64>(waits).await == 1).await;
    first.kill();
    let mut second = Worker::start_at(&control.url(), &flags);
    let lost = "SELECT count(*) FROM mill.attempts WHERE outcome = 'lost'";
    eventually("it is reclaimed", async || database.value::<i64>(lost).await == 1).await;
    database.execute("SELECT pg_advisory_unlock(7)").await;
    assert_eq!(database.outcome(doomed).await, "succeeded");
    assert!(!second.log().contains("could not terminate the backends"), "{}", second.log());
    assert!(second.terminate().await.success());
    control.drop().await;
    tasks.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_may_not_be_terminated_is_retried_once_per_poll() {
    let database = Database::new().await;
    let control = Login::new(&database, "worker", "mill_worker").await;
    // Only a superuser may terminate a superuser's backend.
    let task_url = database.url();
    let flags = [
        "--heartbeat-interval",
        "100ms",
        "--orphan-timeout",
        "2s",
        "--readers",
        "1",
        "--allow-superuser",
    ];
    let flags = [&flags[..], &["--task-url", &task_url]].concat();
    let mut first = Worker::start_at(&control.url(), &flags);
    database.execute("SELECT pg_advisory_lock(7)").await;
    let task = database.enqueue("SELECT pg_advisory_xact_lock(7)", "").await;
    database.until_waiting_for_lock(task).await;
    first.kill();
    let mut second = Worker::start_at(&control.url(), &flags);
    let asked =
        || second.log().matches("could not terminate the backends of a dead worker").count();
    let reported = || second.log().matches("its tasks wait until the backends are gone").count();
    eventually("the initial attempts are over", async || asked() >= 20).await;
    let now = "SELECT extract(epoch FROM clock_timestamp())::float8";
    let begun: f64 = database.value(now).await;
    let before = asked();
    let heartbeat = "SELECT max(heartbeat) FROM mill.workers";
    let then: i64 = database.value(heartbeat).await;
    eventually("the worker keeps sending heartbeats", async || {
        database.value::<i64>(heartbeat).await > then + amount(20, 50)
    })
    .await;
    let later = u32::try_from(asked() - before).unwrap();
    let seconds = database.value::<f64>(now).await - begun;
    // Polls are at least 95 % of 1.3 s apart. One can begin before this time and be logged in it.
    let polls = seconds / (1.3 * 0.95) + 2.0;
    assert!(f64::from(later) <= polls, "{later} attempts in {seconds} s, {polls} polls");
    assert_eq!(reported(), 1, "a state is logged when it begins");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.attempts").await, 0);
    database.execute("SELECT pg_advisory_unlock(7)").await;
    assert_eq!(database.outcome(task).await, "succeeded");
    assert!(second.terminate().await.success());
    control.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_everything_but_the_tokens_and_changes_nothing() {
    let database = Database::new().await;
    database.enqueue("SELECT 1", "").await;
    let login = Login::new(&database, "viewer", "mill_viewer").await;
    let client = login.connect().await;
    // The list of the readable columns of mill.attempts does not apply to its partitions.
    let relations = "SELECT format('SELECT count(*) FROM mill.%I', relname),
            CASE WHEN relispartition THEN '42501' ELSE 'ok' END FROM pg_class
        WHERE relnamespace = 'mill'::regnamespace AND relkind IN ('r', 'p', 'v')";
    for row in database.rows(relations, &[]).await {
        assert_answers(&client, row.get(1), &[row.get(0)]).await;
    }
    let every_column_but_the_token: String = database
        .value(
            "SELECT format('SELECT %s FROM mill.visible_tasks', string_agg(attname, ', ')) FROM pg_attribute
             WHERE attrelid = 'mill.tasks'::regclass AND attnum > 0 AND attname NOT IN ('token', 'receipt')
                AND NOT attisdropped",
        )
        .await;
    let allowed = [
        "SELECT * FROM mill.running",
        "SELECT * FROM mill.queue_status",
        "SELECT * FROM mill.history",
        "SELECT mill.why(1)",
        &every_column_but_the_token,
    ];
    assert_answers(&client, "ok", &allowed).await;
    let denied = [
        // With the token of a running task, anyone could complete it.
        "SELECT token FROM mill.tasks",
        "SELECT receipt FROM mill.tasks",
        "SELECT receipt FROM mill.attempts",
        "SELECT * FROM mill.tasks",
        "SELECT t FROM mill.tasks t",
        "COPY mill.tasks TO STDOUT",
        "DELETE FROM mill.tasks",
        "UPDATE mill.queues SET paused = true",
        "SELECT mill.enqueue('SELECT 1')",
        "SELECT mill.cancel(1)",
        "SELECT mill.pause('default')",
        "SELECT mill.drain(gen_random_uuid())",
        "UPDATE mill.settings SET max_crashes = 1",
    ];
    assert_answers(&client, "42501", &denied).await;
    drop(client);
    login.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_decides_about_tasks_queues_and_workers() {
    let database = Database::new().await;
    let id = database.enqueue("SELECT 1", "").await;
    let login = Login::new(&database, "operator", "mill_operator").await;
    let client = login.connect().await;
    let allowed = [
        "SELECT mill.pause('default')",
        "SELECT mill.resume('default')",
        &format!("SELECT mill.cancel({id})"),
        &format!("SELECT mill.retry({id})"),
        "SELECT mill.drain(gen_random_uuid())",
        "SELECT mill.enqueue('SELECT 1')",
        "SELECT * FROM mill.history",
        "UPDATE mill.settings SET max_crashes = 7",
    ];
    assert_answers(&client, "ok", &allowed).await;
    let message: String =
        database.value("SELECT message FROM mill.attempts WHERE outcome = 'cancelled'").await;
    assert_eq!(message, format!("cancelled by {} before it was claimed", login.name));
    drop(client);
    login.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_tasks_could_drop_the_queue_warns_with_a_remedy() {
    let database = Database::new().await;
    let owner = Login::new(&database, "owner", "mill_owner").await;
    let control = Login::new(&database, "control", "mill_worker").await;
    let powers = [
        (None, "runs as a superuser"),
        (Some(owner.url()), "runs as the owner of the queue"),
        (Some(control.url()), "runs as a login that may write the queue's tables"),
    ];
    for (url, power) in powers {
        let mut flags = vec!["--readers", "1"];
        if let Some(url) = &url {
            flags.extend(["--task-url", url]);
        }
        let mut worker =
            Worker::start_as_superuser(&database, "the warning is the subject", &flags);
        worker.until_logged("ready").await;
        let log = worker.log();
        for text in [power, "CREATE ROLE mill_tasks LOGIN", "GRANT … ON", "worker --task-url"] {
            assert!(log.contains(text), "\"{text}\" in {log}");
        }
        assert!(!log.contains(PASSWORD), "a password in the log");
        assert!(worker.terminate().await.success());
    }
    owner.drop().await;
    control.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_without_access_to_the_queue_is_refused_with_the_missing_grant() {
    let database = Database::new().await;
    for (what, grants) in [("nobody", ""), ("looks", "mill_viewer")] {
        let login = Login::new(&database, what, grants).await;
        let mut worker = Worker::start_at(&login.url(), &["--readers", "1"]);
        assert_eq!(worker.ended().await.code(), Some(i32::from(cli::exit::REFUSED)));
        let hint = format!("hint: GRANT mill_worker TO \"{}\";", login.name);
        assert!(worker.log().contains(&hint), "{}", worker.log());
        login.drop().await;
    }
}

#[tokio::test]
async fn functions_are_closed_to_public_and_safe_from_the_callers_search_path() {
    let database = Database::new().await;
    let open = "SELECT proname::text FROM pg_proc p WHERE pronamespace = 'mill'::regnamespace
        AND EXISTS (SELECT FROM aclexplode(coalesce(proacl, acldefault('f', proowner))) a
            WHERE a.grantee = 0) ORDER BY 1";
    let open: Vec<String> = database.rows(open, &[]).await.iter().map(|row| row.get(0)).collect();
    assert_eq!(open, ["complete", "complete_with_proof"]);
    // Setting search_path has a cost, and a function that sets it is not inlined. The functions
    // without this setting run with the caller's rights. enqueue only calls a function that sets
    // search_path, profile reads a view, and target calls profile. A procedure that
    // commits, such as wait, cannot have the setting. The others are called by functions and
    // sessions that set search_path.
    let loose = "SELECT proname::text FROM pg_proc WHERE pronamespace = 'mill'::regnamespace
        AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)
        AND (prosecdef OR proname NOT IN ('enqueue', 'profile', 'target', 'check_statement', 'initial_state', 'evaluate_join',
            'satisfies', 'is_failure', 'is_short', 'effective', 'read_options', 'read_task', 'attempt_row',
            'wait', 'wait_run', 'lane_bit', 'is_watched', 'set_watched', 'wake_workers', 'free_places', 'pick_blocked',
            'give_permits'))";
    let loose: Vec<String> = database.rows(loose, &[]).await.iter().map(|row| row.get(0)).collect();
    assert_eq!(loose, [""; 0], "functions without their own search_path");
    let foreign: i64 = database
        .value(
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'mill'::regnamespace
                AND relowner <> 'mill_owner'::regrole",
        )
        .await;
    assert_eq!(foreign, 0, "tables that mill_owner does not own");
    let shared: i64 = database
        .value(
            "SELECT count(*) FROM pg_class, aclexplode(relacl) AS a
             WHERE relnamespace = 'mill'::regnamespace AND a.grantee = 0",
        )
        .await;
    assert_eq!(shared, 0, "tables that are open to PUBLIC");
}

#[tokio::test]
async fn everything_in_the_schema_has_a_comment() {
    let database = Database::new().await;
    let silent = "
        SELECT relname::text FROM pg_class
        WHERE relnamespace = 'mill'::regnamespace AND relkind IN ('r', 'p', 'v')
            AND NOT relispartition AND obj_description(oid, 'pg_class') IS NULL
        UNION ALL SELECT proname FROM pg_proc
        WHERE pronamespace = 'mill'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL
        UNION ALL SELECT typname FROM pg_type
        WHERE typnamespace = 'mill'::regnamespace AND typtype IN ('e', 'd')
            AND obj_description(oid, 'pg_type') IS NULL
        UNION ALL SELECT nspname FROM pg_namespace
        WHERE nspname = 'mill' AND obj_description(oid, 'pg_namespace') IS NULL
        -- Columns whose name is not self-explanatory.
        UNION ALL SELECT format('%s.%s', attrelid::regclass, attname) FROM pg_attribute
        WHERE (attrelid, attname) IN (SELECT format('mill.%s', name)::regclass::oid, \"column\"
            FROM (VALUES ('tasks', 'due_at'), ('tasks', 'token'), ('tasks', 'claimed_by'),
                ('tasks', 'session_pid'), ('tasks', 'session_started_at'), ('tasks', 'attempt'),
                ('tasks', 'max_attempts'), ('tasks', 'failures'), ('tasks', 'transient_failures'),
                ('tasks', 'crashes'), ('tasks', 'jitter'), ('tasks', 'at_most_once'),
                ('tasks', 'external'), ('tasks', 'key'), ('tasks', 'params'),
                ('attempts', 'final'), ('attempts', 'started_at'), ('attempts', 'rows'),
                ('attempts', 'position'), ('attempts', 'notices'), ('attempts', 'result'),
                ('workers', 'session_pid'), ('workers', 'draining'), ('workers', 'queues'),
                ('settings', 'statement_limit_bytes'), ('settings', 'history_retention'),
                ('settings', 'max_crashes'), ('queues', 'paused')) AS named (name, \"column\"))
            AND col_description(attrelid, attnum) IS NULL";
    let silent: Vec<String> =
        database.rows(silent, &[]).await.iter().map(|row| row.get(0)).collect();
    assert!(silent.is_empty(), "without a COMMENT: {silent:?}");
}

#[tokio::test]
async fn a_role_that_makes_roles_and_owns_the_database_may_apply_the_schema() {
    // Use a separate cluster, because roles belong to the whole cluster, and must not exist yet.
    let cluster = Cluster::start(Options::new(server())).unwrap();
    let superuser = open_url(&cluster.url("postgres")).await;
    for sql in ["CREATE ROLE app LOGIN CREATEROLE PASSWORD 'x'", "CREATE DATABASE app OWNER app"] {
        superuser.batch_execute(sql).await.unwrap();
    }
    let url = cluster.url("app");
    let (_, place) = url.rsplit_once('@').unwrap();
    let app = open_url(&format!("postgres://app:x@{place}")).await;
    queue::schema::init(&app).await.unwrap();
    queue::schema::init(&app).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_holds_no_statement_no_parameter_and_no_message() {
    let database = Database::new().await;
    let worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "100ms"]);
    let raises = "DO $$ BEGIN RAISE NOTICE 'hush1'; RAISE EXCEPTION 'hush2 %', 'hush3'; END $$";
    let failed = database.enqueue(raises, ", max_attempts => 1").await;
    let bound = database.enqueue("SELECT $1::text", ", params => '[\"hush4\"]'").await;
    let misfit = database.enqueue("SELECT $1::int", ", params => '[\"hush5\"]'").await;
    assert_eq!(database.outcome(failed).await, "failed");
    assert_eq!(database.outcome(bound).await, "succeeded");
    assert_eq!(database.outcome(misfit).await, "failed");
    worker.until_logged("sqlstate=\"P0001\"").await;
    assert!(!worker.log().contains("hush"), "{}", worker.log());
}
