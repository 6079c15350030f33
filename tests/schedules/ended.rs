//! Schedules whose timing has no further fire, and schedules that are declared again.

use tokio_postgres::error::SqlState;

use crate::harness::Database;
use crate::runs::run::job;
use crate::schedules::dropped_fires::{end_oldest_run, tick};
use crate::schedules::schedule::{events, schedule, test};
use crate::schedules::schedule_cli::output_of;

/// Returns `once(…)` for a time this long from now.
async fn once(database: &Database, from_now: &str) -> String {
    let form = "'\"once(\"YYYY-MM-DD HH24:MI:SS\")\"'";
    let time = format!("now() AT TIME ZONE 'UTC' + interval '{from_now}'");
    database.value(&format!("SELECT to_char({time}, {form})")).await
}

/// Ticks as if the schedule had been declared two days ago, and ends the run that this fires.
async fn fire(database: &Database) {
    database
        .execute(
            "UPDATE mill.schedules SET planned_from = now() - interval '2 days',
                 new_timing_at = CASE WHEN new_timing IS NOT NULL THEN now() - interval '2 days' END",
        )
        .await;
    tick(database).await;
    end_oldest_run(database).await;
}

#[tokio::test]
async fn a_schedule_that_has_ended_fires_at_a_new_time() {
    let database = Database::new().await;
    let set = async |from_now: &str| {
        let timing = once(&database, from_now).await;
        schedule(&database, "s", &timing, "SELECT 1", "").await;
        timing
    };
    let ended = "SELECT NOT enabled AND timing_finished_at IS NOT NULL FROM mill.schedules";
    let mut last = String::new();
    for (runs, time) in ["-6 hours", "-5 hours", "-4 hours"].into_iter().enumerate() {
        last = set(time).await;
        fire(&database).await;
        assert_eq!(events(&database, "s").await, format!("fired {0}, completed {0}", runs + 1));
        assert!(database.value::<bool>(ended).await);
        if runs == 1 {
            output_of(&database, &["schedule", "remove", "s"]).await;
        }
    }
    // Another change does not make an instant pass again.
    schedule(&database, "s", &last, "SELECT 2", "").await;
    assert!(database.value::<bool>(ended).await);
    let over = (false, "it has fired and does not fire again".to_owned());
    assert_eq!(test(&database, "s").await, over);
    // From now on, the schedule is disabled because an operator wants it.
    output_of(&database, &["schedule", "disable", "s"]).await;
    set("1 day").await;
    assert!(database.value::<bool>("SELECT NOT enabled FROM mill.schedules").await);
    output_of(&database, &["schedule", "enable", "s"]).await;
    tick(&database).await;
    assert!(database.value::<bool>("SELECT next_fire_at > now() FROM mill.schedules").await);
}

#[tokio::test]
async fn why_tells_that_a_timing_has_ended() {
    let database = Database::new().await;
    schedule(&database, "s", "daily(03:15, until: 2020-01-01)", "SELECT 1", "").await;
    database.execute("UPDATE mill.schedules SET last_fire_at = '2020-01-01 03:15+00'").await;
    tick(&database).await;
    assert_eq!(test(&database, "s").await, (false, "it has no more fires".to_owned()));
}

#[tokio::test]
async fn the_last_fire_waits_until_the_schedule_is_disabled() {
    let database = Database::new().await;
    let timing = once(&database, "-6 hours").await;
    schedule(&database, "s", &timing, "SELECT 1", ", overlap => 'queue'").await;
    database.execute("SELECT mill.run_now('s')").await;
    let planned = "UPDATE mill.schedules SET planned_from = now() - interval '2 days'";
    database.execute(planned).await;
    tick(&database).await;
    let (fires, reason) = test(&database, "s").await;
    assert!(!fires && reason.starts_with("its last fire, of 20"), "{reason}");
    output_of(&database, &["schedule", "disable", "s"]).await;
    assert_eq!(test(&database, "s").await.1, "it is disabled");
    end_oldest_run(&database).await;
    tick(&database).await;
    assert_eq!(events(&database, "s").await, "fired 1, skipped 1, completed 1");
}

#[tokio::test]
async fn a_schedule_that_is_declared_again_runs_its_job_again() {
    let database = Database::new().await;
    let enabled = "SELECT disabled_at IS NULL FROM mill.jobs WHERE name = 'public.nightly'";
    database.execute("CREATE PROCEDURE nightly() LANGUAGE sql AS 'SELECT 1'").await;
    let sync = async |comment: &str| {
        database.execute(&format!("COMMENT ON PROCEDURE nightly() IS '{comment}'")).await;
        output_of(&database, &["schedule", "sync"]).await;
        database.value::<bool>(enabled).await
    };
    assert!(sync("@daily(03:15)").await);
    assert!(!sync("no schedule").await);
    assert!(sync("@daily(04:15)").await);
    // An operator has disabled the job: another schedule of the same job leaves it disabled.
    database.execute("SELECT mill.enable_job('public.nightly', false)").await;
    assert!(!sync("@daily(04:15) @daily(05:15)").await);
    // The job of a removed schedule becomes an ordinary job.
    schedule(&database, "purge", "daily(03:15)", "SELECT 1", "").await;
    output_of(&database, &["schedule", "remove", "purge"]).await;
    let tasks = serde_json::json!([{"name": "t", "statement": "SELECT 1"}]);
    job(&database, "purge", tasks).await;
    database.execute("SELECT mill.start_run('{purge}')").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_schedule_keeps_its_own_run_waiting_and_no_other() {
    let database = Database::new().await;
    schedule(&database, "s", "manual", "SELECT 1", "").await;
    output_of(&database, &["schedule", "run-now", "s"]).await;
    database.run_as_worker("true").await;
    let succeed = "SELECT mill.complete(ARRAY[id], ARRAY[token]::uuid[], pg_current_xact_id(), NULL, ARRAY[0]::bigint[], ARRAY[NULL]::jsonb[]) FROM mill.tasks";
    database.execute(succeed).await;
    let holder = database.connect().await;
    holder.batch_execute("BEGIN; SELECT FROM mill.schedules FOR UPDATE").await.unwrap();
    let worker = database.connect().await;
    worker.batch_execute("SET lock_timeout = '1ms'").await.unwrap();
    let state = "SELECT state::text FROM mill.runs WHERE id = 1";
    // The end of the task is recorded, and a later poll ends the run.
    for _ in 0..2 {
        let row = worker.query_one("SELECT more FROM mill.advance_run(1)", &[]).await.unwrap();
        assert!(!row.get::<_, bool>(0), "the advance would be repeated without a pause");
        assert_eq!(database.value::<String>(state).await, "running");
        let ended = "SELECT state = 'succeeded' FROM mill.run_tasks";
        assert!(database.value::<bool>(ended).await);
        let events = "SELECT count(*) FROM mill.run_events";
        assert_eq!(database.value::<i64>(events).await, 1, "the event for a later poll");
    }
    let refused = worker.batch_execute("SELECT mill.enable_schedule('s', false)").await;
    assert_eq!(refused.unwrap_err().code(), Some(&SqlState::LOCK_NOT_AVAILABLE));
    holder.batch_execute("ROLLBACK").await.unwrap();
    worker.batch_execute("SELECT mill.advance_run(1)").await.unwrap();
    assert_eq!(database.value::<String>(state).await, "succeeded");
    assert_eq!(events(&database, "s").await, "fired 1, completed 1");
}
