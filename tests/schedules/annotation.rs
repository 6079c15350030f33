//! Schedules declared in the comments of procedures: parsing, persistence, and the effect of
//! errors.

use schedule::reconcile::reconcile;
use tokio_postgres::Client;

use crate::harness::{Database, Program, Worker, eventually};
use crate::schedules::schedule::{FLAGS, planned, schedule};

async fn schedule_sync(database: &Database) -> (i32, String, String) {
    Program::pgmill(database, &["schedule", "sync"]).run().await
}

/// Returns `name enabled` of the schedules that are still declared.
async fn there(database: &Database) -> String {
    database
        .value(
            "SELECT coalesce(string_agg(name || CASE WHEN enabled THEN '' ELSE ' disabled' END, ', ' ORDER BY name), '')
             FROM mill.schedules WHERE removed_at IS NULL",
        )
        .await
}

async fn declaration_errors(database: &Database) -> String {
    database
        .value(
            "SELECT coalesce(string_agg(concat_ws(' ', declared_as, place, message), E'\\n'
                 ORDER BY declared_as, place), '') FROM mill.schedule_declaration_errors",
        )
        .await
}

#[tokio::test]
async fn a_comment_declares_a_schedule() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE TABLE effect (what text);
             CREATE PROCEDURE nightly(n int DEFAULT 1) LANGUAGE sql AS $$ INSERT INTO effect VALUES ('nightly') $$;
             COMMENT ON PROCEDURE nightly IS 'Cleans up; questions to nobody@example.org.
                 @daily(03:15, days: weekdays) @daily(17:00) @retry(max_attempts: 7, interval: 90s, backoff: fixed)
                 @job(\"Nightly cleanup\", category: \"Ops\") @task(queue: etl, priority: high, timeout: 1h)
                 @fire(overlap: queue, catch_up: 0, max_lateness: 2h, jitter: 30s) @param n is how much';
             CREATE FUNCTION \"Odd Name\"() RETURNS int LANGUAGE sql AS 'SELECT 1';
             COMMENT ON FUNCTION \"Odd Name\"() IS '@manual()';",
        )
        .await;
    // The worker reads comments at its start.
    let worker = Worker::start(&database, &FLAGS);
    eventually("the schedules are declared", async || {
        there(&database).await
            == "public.Odd Name/manual, public.nightly/daily_03_15, public.nightly/daily_17_00"
    })
    .await;
    let declared: String = database
        .value(
            "SELECT concat_ws(' ', overlap, catch_up, max_lateness, declared_jitter, t.statement, t.queue, t.priority,
                 t.max_attempts, t.retry_interval, t.backoff, t.timeout, j.description, j.category)
             FROM mill.schedules s JOIN mill.jobs j ON j.name = s.jobs[1]
                 JOIN mill.visible_job_tasks t ON t.job = j.name
             WHERE s.name = 'public.nightly/daily_03_15'",
        )
        .await;
    assert_eq!(
        declared,
        "queue 0 02:00:00 00:00:30 CALL public.nightly() etl high 7 00:01:30 fixed 01:00:00 Nightly cleanup: Cleans up; questions to nobody@example.org. @param n is how much Ops"
    );
    for name in ["public.nightly/daily_17_00", "public.Odd Name/manual"] {
        let run: i64 = database.value(&format!("SELECT mill.run_now('{name}')")).await;
        assert_eq!(crate::runs::run::end(&database, run).await, "succeeded");
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM effect").await, 1);
    drop(worker);
    assert_eq!(schedule_sync(&database).await.1, "0 changes made, 3 unchanged, 0 errors\n");
}

#[tokio::test]
async fn the_declaration_sets_the_timing_and_an_operator_the_rest() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE PROCEDURE p() LANGUAGE sql AS 'SELECT 1';
             COMMENT ON PROCEDURE p() IS '@daily(09:00, days: weekdays) @daily(17:00) @retry(max_attempts: 3)'",
        )
        .await;
    schedule_sync(&database).await;
    let worker = Worker::start(&database, &FLAGS);
    let planned = "SELECT count(next_fire_at) = 2 FROM mill.schedules";
    eventually("planned", async || database.value(planned).await).await;
    drop(worker);
    database
        .execute(
            "SELECT mill.enable_schedule('public.p/daily_17_00', false);
             SELECT mill.override_schedule('public.p/daily_09_00', '{\"max_attempts\": 9, \"retry_interval\": \"5s\", \"jitter\": \"7s\"}');
             COMMENT ON PROCEDURE p() IS '@retry(max_attempts: 4) @daily(17:00, days: weekend) and @daily(09:00, zone: Europe/Berlin)'",
        )
        .await;
    let (code, changes, _) = schedule_sync(&database).await;
    assert_eq!(code, 0);
    assert_eq!(
        changes,
        "~ schedule public.p/daily_17_00\n~ schedule public.p/daily_09_00\n2 changes made, 0 unchanged, 0 errors\n"
    );
    let kept: String = database
        .value(
            "SELECT string_agg(concat_ws(' ', name, timing, enabled, max_attempts, retry_interval, jitter), '; ' ORDER BY name)
             FROM mill.schedules",
        )
        .await;
    assert_eq!(
        kept,
        "public.p/daily_09_00 daily(09:00, zone: Europe/Berlin) t 9 00:00:05 00:00:07; \
         public.p/daily_17_00 daily(17:00, days: sat sun) f"
    );
    // The tasks of a run have the settings of the schedule.
    let run: i64 = database.value("SELECT mill.run_now('public.p/daily_09_00')").await;
    let ran: String = database
        .value(&format!(
            "SELECT (options).max_attempts || ' ' || (options).retry_interval FROM mill.run_tasks WHERE run_id = {run}"
        ))
        .await;
    assert_eq!(ran, "9 00:00:05");
    // After a change of the timing, the next tick computes the next fire again.
    let replanned = "SELECT next_fire_at IS NULL AND next_tick_at <= now() FROM mill.schedules WHERE name LIKE '%09_00'";
    assert!(database.value::<bool>(replanned).await);
    // A schedule that is no longer declared is disabled and keeps its history. When it is declared
    // again, it is unchanged.
    database.execute("COMMENT ON PROCEDURE p() IS '@daily(17:00, days: weekend)'").await;
    assert_eq!(
        schedule_sync(&database).await.1,
        "~ schedule public.p/daily_17_00\n- schedule public.p/daily_09_00\n2 changes made, 0 unchanged, 0 errors\n"
    );
    let gone = "SELECT removed_at IS NOT NULL AND next_tick_at IS NULL AND max_attempts = 9
        AND EXISTS (SELECT FROM mill.runs r WHERE r.schedule_id = s.id)
        FROM mill.schedules s WHERE name = 'public.p/daily_09_00'";
    assert!(database.value::<bool>(gone).await);
    database.execute("DROP PROCEDURE p()").await;
    schedule_sync(&database).await;
    assert_eq!(there(&database).await, "");
    assert!(database.value::<bool>("SELECT disabled_at IS NOT NULL FROM mill.jobs").await);
    database
        .execute(
            "CREATE PROCEDURE p() LANGUAGE sql AS 'SELECT 1'; COMMENT ON PROCEDURE p() IS '@daily(09:00) @daily(17:00)'",
        )
        .await;
    schedule_sync(&database).await;
    assert_eq!(there(&database).await, "public.p/daily_09_00, public.p/daily_17_00 disabled");
    assert!(database.value::<bool>("SELECT disabled_at IS NULL FROM mill.jobs").await);
}

#[tokio::test]
async fn an_error_is_reported_with_its_location_and_removes_no_schedule() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE PROCEDURE p() LANGUAGE sql AS 'SELECT 1';
             COMMENT ON PROCEDURE p() IS E'Words.\\n  @daily(09:00) @daily(17:00)';
             CREATE PROCEDURE shared() LANGUAGE sql AS 'SELECT 1';
             COMMENT ON PROCEDURE shared() IS '@daily(09:00)';
             CREATE PROCEDURE sound() LANGUAGE sql AS 'SELECT 1';
             COMMENT ON PROCEDURE sound() IS '@daily(09:00)'",
        )
        .await;
    assert_eq!(schedule_sync(&database).await.0, 0);
    database
        .execute(
            "COMMENT ON PROCEDURE p() IS E'Words.\\n  @daily(09:00) @daily(17:60)';
             COMMENT ON PROCEDURE shared() IS '@daily(09:00) @retry(max_attempts: none)';
             CREATE FUNCTION needs(n int) RETURNS int LANGUAGE sql AS 'SELECT 1';
             COMMENT ON FUNCTION needs(int) IS '@daily(09:00)';
             CREATE FUNCTION fired() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
             COMMENT ON FUNCTION fired() IS '@daily(09:00)';
             CREATE FUNCTION twice() RETURNS int LANGUAGE sql AS 'SELECT 1';
             CREATE FUNCTION twice(n int DEFAULT 1) RETURNS int LANGUAGE sql AS 'SELECT 1';
             COMMENT ON FUNCTION twice() IS '@daily(09:00)'; COMMENT ON FUNCTION twice(int) IS '@daily(10:00)';
             CREATE PROCEDURE same() LANGUAGE sql AS 'SELECT 1';
             COMMENT ON PROCEDURE same() IS '@daily(09:00) @daily(09:00, days: mon)';
             CREATE PROCEDURE odd() LANGUAGE sql AS 'SELECT 1';
             COMMENT ON PROCEDURE odd() IS '@dayly(09:00) @daily(10:00) @task(group: nobody)'",
        )
        .await;
    let (code, changes, reported) = schedule_sync(&database).await;
    assert_eq!(code, 1, "{reported}");
    assert!(!changes.contains("- schedule"), "{changes}");
    assert_eq!(
        there(&database).await,
        "public.p/daily_09_00, public.p/daily_17_00, public.same/daily_09_00, \
         public.shared/daily_09_00, public.sound/daily_09_00"
    );
    for (place, fragment) in [
        ("public.p 2:24", "\"17:60\" is not a time of day"),
        ("public.shared 1:36", "max_attempts"),
        ("public.needs 1:1", "requires arguments"),
        (
            "public.fired 1:1",
            "trigger functions, aggregates and window functions cannot be scheduled",
        ),
        ("public.twice 1:1", "another procedure of this name"),
        ("public.same 1:16", "two schedules have the key daily_09_00"),
        ("public.odd 1:2", "unknown annotation \"dayly\""),
        ("public.odd 1:1", "there is no group \"nobody\""),
    ] {
        let all = declaration_errors(&database).await;
        assert!(
            all.lines().any(|line| line.starts_with(place) && line.contains(fragment)),
            "{place}: {all}"
        );
    }
    assert!(reported.contains("unknown annotation \"dayly\"; did you mean daily?"), "{reported}");
    let (_, _, listed) = Program::pgmill(&database, &["schedule", "list"]).run().await;
    assert!(listed.contains("error in the comment of public.p, 2:24"), "{listed}");
}

#[tokio::test]
async fn only_a_trusted_owner_schedules_code_by_a_comment() {
    let database = Database::new().await;
    let role = format!("author_{}", database.name());
    database
        .execute(&format!(
            "CREATE ROLE {role}; CREATE PROCEDURE p() LANGUAGE sql AS 'SELECT 1';
             ALTER PROCEDURE p() OWNER TO {role}; COMMENT ON PROCEDURE p() IS '@daily(09:00)'"
        ))
        .await;
    let (code, _, reported) = schedule_sync(&database).await;
    assert_eq!(code, 1);
    assert!(reported.contains(&format!("owner {role} may not declare schedules")), "{reported}");
    assert!(
        reported.contains(&format!("declaring_roles = array_append(declaring_roles, '{role}')")),
        "{reported}"
    );
    assert_eq!(there(&database).await, "");
    database
        .execute(&format!(
            "UPDATE mill.settings SET declaring_roles = array_append(declaring_roles, '{role}')"
        ))
        .await;
    assert_eq!(schedule_sync(&database).await.0, 0);
    assert_eq!(there(&database).await, "public.p/daily_09_00");
    // A dropped role causes no error.
    database.execute(&format!("ALTER PROCEDURE p() OWNER TO postgres; DROP ROLE {role}")).await;
    assert_eq!(schedule_sync(&database).await.0, 0);
    // An operator may schedule procedures whose owner is an operator.
    database
        .execute(&format!(
            "UPDATE mill.settings SET declaring_roles = '{{}}'; CREATE ROLE {role} IN ROLE mill_operator;
             ALTER PROCEDURE p() OWNER TO {role}"
        ))
        .await;
    assert_eq!(schedule_sync(&database).await.0, 0);
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn workers_that_start_together_declare_everything_once() {
    let database = Database::new().await;
    for n in 0..30 {
        database
            .execute(&format!(
                "CREATE PROCEDURE p{n}() LANGUAGE sql AS 'SELECT 1';
                 COMMENT ON PROCEDURE p{n}() IS '@daily(09:00) @weekly(mon, 10:00)'"
            ))
            .await;
    }
    let workers: Vec<Worker> = (0..4).map(|_| Worker::start(&database, &FLAGS)).collect();
    eventually("all are planned", async || {
        database.value("SELECT count(next_fire_at) = 60 FROM mill.schedules").await
    })
    .await;
    for worker in &workers {
        assert!(!worker.log().contains("duty failed duty=\"sync_schedules\""), "{}", worker.log());
    }
    assert_eq!(database.value::<i64>("SELECT sum(version) FROM mill.schedules").await, 60);
}

/// Leaves the schedule of [`with_daily_procedure`] locked.
const DISABLE: &str = "BEGIN; SELECT mill.enable_schedule('public.p/daily_09_00', false)";

/// A database in which a comment declares a schedule, and the session of an operator.
async fn with_daily_procedure() -> (Database, Client) {
    let database = Database::new().await;
    database
        .execute(
            "CREATE PROCEDURE p() LANGUAGE sql AS 'SELECT 1';
             COMMENT ON PROCEDURE p() IS '@daily(09:00)'",
        )
        .await;
    schedule_sync(&database).await;
    let operator = database.connect().await;
    (database, operator)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_stops_the_sync_is_reported_and_stops_no_other_schedule() {
    let (database, operator) = with_daily_procedure().await;
    database.execute("COMMENT ON PROCEDURE p() IS '@daily(09:00) @tags(new)'").await;
    schedule(&database, "other", "daily(09:00)", "SELECT 1", "").await;
    operator.batch_execute(DISABLE).await.unwrap();
    let _worker = Worker::start(&database, &FLAGS);
    planned(&database, "other").await;
    let reported =
        "SELECT count(*) FROM mill.workers WHERE error LIKE 'sync_schedules: %lock timeout%'";
    eventually("the worker reports the lock", async || database.value::<i64>(reported).await == 1)
        .await;
    operator.batch_execute("COMMIT").await.unwrap();
    let synced = "SELECT count(*) FROM mill.schedules WHERE tags = '{new}' AND NOT enabled";
    eventually("the sync succeeds", async || database.value::<i64>(synced).await == 1).await;
    eventually("the report has ended", async || database.value::<i64>(reported).await == 0).await;
}

#[tokio::test]
async fn a_lock_on_an_unchanged_schedule_does_not_stop_the_sync() {
    let (database, operator) = with_daily_procedure().await;
    database.execute("COMMENT ON PROCEDURE p() IS '@daily(09:00) @daily(10:00)'").await;
    operator.batch_execute(DISABLE).await.unwrap();
    let mut session = database.connect().await;
    session.batch_execute("SET lock_timeout = '1ms'").await.unwrap();
    let mut sync = session.transaction().await.unwrap();
    let done = reconcile(&mut sync).await.unwrap();
    sync.commit().await.unwrap();
    assert_eq!((done.new, done.unchanged), (vec!["public.p/daily_10_00".to_owned()], 1));
    operator.batch_execute("COMMIT").await.unwrap();
    assert_eq!(there(&database).await, "public.p/daily_09_00 disabled, public.p/daily_10_00");
}
