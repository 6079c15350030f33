//! Fires that a change of the schedule drops are recorded; a fire that waits starts before later ones,
//! and is not recorded as missed; a lock that another session holds drops no fire.

use schedule::backfill;
use schedule::tick::{tick_due, tick_next};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::guarantees::checker_mutants::plant;
use crate::harness::Database;
use crate::schedules::schedule::{daily_in_half_a_day, events, schedule};

pub(crate) async fn tick(database: &Database) {
    tick_due(&mut database.connect().await).await.unwrap();
}

/// Ends the oldest run of the schedule without a worker.
pub(crate) async fn end_oldest_run(database: &Database) {
    database
        .execute(
            "WITH oldest AS (SELECT id FROM mill.runs WHERE state = 'running' ORDER BY id LIMIT 1)
             SELECT mill.cancel_run(id) FROM oldest",
        )
        .await;
}

/// The instants of all fires in the order of their runs, as minutes before now.
async fn fired(database: &Database) -> String {
    let minutes = "round(extract(epoch FROM now() - fire_at) / 60)";
    database
        .value(&format!(
            "SELECT coalesce(string_agg({minutes}::text, ', ' ORDER BY id), '') FROM mill.runs
             WHERE reason <> 'manual'"
        ))
        .await
}

#[tokio::test]
async fn fires_that_a_change_of_the_schedule_drops_are_recorded() {
    let disable = "SELECT mill.enable_schedule('s', false)";
    let remove = "SELECT mill.remove_schedules('{s}')";
    let retime = "SELECT mill.set_schedule('s', 'every(1 hour)', statement => 'SELECT 1')";
    for (change, function, from) in [
        (disable, "mill.replan_schedule", "mill.log_dropped_fires(s, now())"),
        (remove, "mill.remove_schedules", "mill.log_dropped_fires(l.schedule, now())"),
        (
            retime,
            "mill.accept_timing",
            "mill.log_dropped_fires(l.schedule, (l.schedule).new_timing_at)",
        ),
    ] {
        for planted in [false, true] {
            let database = Database::new().await;
            if planted {
                plant(&database, function, (from, "pg_catalog.now()")).await;
            }
            let daily = daily_in_half_a_day(&database).await;
            schedule(&database, "s", &daily, "SELECT 1", "").await;
            tick(&database).await;
            database
                .execute(
                    "UPDATE mill.schedules SET next_fire_at = now() - interval '1 minute',
                         queued_fire_at = now() - interval '1 day'",
                )
                .await;
            database.execute(change).await;
            tick(&database).await;
            let expected = if planted { "" } else { "skipped 1, missed 1" };
            assert_eq!(events(&database, "s").await, expected, "{change}");
        }
    }
}

#[tokio::test]
async fn a_fire_that_waits_starts_before_a_later_one() {
    for planted in [false, true] {
        let database = Database::new().await;
        if planted {
            let (from, to) = ("EXIT WHEN s.queued_fire_at IS NULL OR", "EXIT WHEN true OR");
            plant(&database, "mill.fire_queued", (from, to)).await;
        }
        let daily = daily_in_half_a_day(&database).await;
        schedule(&database, "s", &daily, "SELECT 1", ", overlap => 'queue'").await;
        tick(&database).await;
        let due = |minutes: u32| {
            format!(
                "UPDATE mill.schedules SET next_fire_at = now() - interval '{minutes} minutes', next_tick_at = now()"
            )
        };
        for minutes in [30, 20] {
            database.execute(&due(minutes)).await;
            tick(&database).await;
        }
        end_oldest_run(&database).await;
        database.execute(&due(10)).await;
        tick(&database).await;
        let expected = if planted { "30, 10" } else { "30, 20" };
        assert_eq!(fired(&database).await, expected);
    }
}

#[tokio::test]
async fn the_last_fire_of_a_schedule_that_waits_is_not_recorded_as_missed() {
    for planted in [false, true] {
        let database = Database::new().await;
        if planted {
            let from = "CASE WHEN next_fire_at IS NULL AND error IS NULL THEN now()";
            let to = "CASE WHEN false THEN now()";
            plant(&database, "mill.set_next_fire", (from, to)).await;
        }
        let timing: String = database
            .value("SELECT to_char(now() AT TIME ZONE 'UTC' - interval '2 s', '\"once(\"YYYY-MM-DD HH24:MI:SS\")\"')")
            .await;
        schedule(&database, "s", &timing, "SELECT 1", ", overlap => 'queue'").await;
        database.execute("SELECT mill.run_now('s')").await;
        database.execute("UPDATE mill.schedules SET planned_from = now() - interval '1 day'").await;
        tick(&database).await;
        // As if a minute had passed since.
        database
            .execute(
                "UPDATE mill.schedules SET queued_fire_at = queued_fire_at - interval '1 minute', catch_up = 0, timing =
                     to_char(queued_fire_at AT TIME ZONE 'UTC' - interval '1 minute',
                         '\"once(\"YYYY-MM-DD HH24:MI:SS\")\"')",
            )
            .await;
        end_oldest_run(&database).await;
        tick(&database).await;
        let expected =
            if planted { "fired 2, completed 1, missed 1" } else { "fired 2, completed 1" };
        assert_eq!(events(&database, "s").await, expected);
    }
}

#[tokio::test]
async fn a_fire_that_waits_while_another_run_takes_its_instant_is_recorded_as_skipped() {
    for reason in ["manual", "backfill"] {
        let database = Database::new().await;
        let daily = daily_in_half_a_day(&database).await;
        schedule(&database, "s", &daily, "SELECT 1", ", overlap => 'queue'").await;
        tick(&database).await;
        for minutes in [30, 20] {
            let due = format!(
                "UPDATE mill.schedules SET next_fire_at = now() - interval '{minutes} minutes', next_tick_at = now()"
            );
            database.execute(&due).await;
            tick(&database).await;
        }
        let run = "SELECT mill.run_now('s', true, jsonb_build_object('fire_at', queued_fire_at))
            FROM mill.schedules";
        let run: i64 = database.value(run).await;
        database
            .execute(&format!("UPDATE mill.runs SET reason = '{reason}' WHERE id = {run}"))
            .await;
        for _ in 0..2 {
            end_oldest_run(&database).await;
        }
        tick(&database).await;
        assert_eq!(events(&database, "s").await, "fired 2, skipped 1, completed 2");
        let skipped = "SELECT concat_ws(' ', l.run_id, l.fire_at = r.fire_at, l.message) FROM mill.schedule_log l
            JOIN mill.runs r ON r.id = l.run_id WHERE l.event = 'skipped'";
        let wanted = format!("{run} t run {run} was started for this instant ({reason})");
        assert_eq!(database.value::<String>(skipped).await, wanted);
        let waits = "SELECT queued_fire_at IS NOT NULL FROM mill.schedules";
        assert!(!database.value::<bool>(waits).await);
    }
}

/// Returns a session that gives up the wait for a lock at once.
async fn impatient(database: &Database) -> Client {
    let client = database.connect().await;
    client.batch_execute("SET lock_timeout = '1ms'").await.unwrap();
    client
}

/// Lets a session insert a run of schedule `s` for this instant, so that other sessions wait for it.
async fn block(session: &Client, fire_at: &str) {
    let sql = format!(
        "BEGIN; INSERT INTO mill.runs (jobs, params, schedule_id, fire_at, reason)
             SELECT s.jobs, '{{}}', s.id, {fire_at}, 'test' FROM mill.schedules s WHERE s.name = 's'"
    );
    session.batch_execute(&sql).await.unwrap();
}

#[tokio::test]
async fn a_fire_that_needs_a_lock_starts_later_and_delays_no_other_schedule() {
    for planted in [false, true] {
        let database = Database::new().await;
        if planted {
            plant(&database, "mill.fire", ("mill.is_temporary(SQLSTATE)", "false")).await;
        }
        let daily = daily_in_half_a_day(&database).await;
        for name in ["s", "other"] {
            schedule(&database, name, &daily, "SELECT 1", "").await;
        }
        tick(&database).await;
        database
            .execute(
                "UPDATE mill.schedules SET next_fire_at = now() - interval '1 minute',
                     next_tick_at = now() - make_interval(secs => (name = 's')::integer)",
            )
            .await;
        let session = database.connect().await;
        block(&session, "s.next_fire_at").await;
        let mut worker = impatient(&database).await;
        match tick_due(&mut worker).await {
            Ok(ticked) => assert!(planted, "{ticked:?}"),
            Err(error) => assert_eq!(error.sqlstate(), Some(&SqlState::LOCK_NOT_AVAILABLE)),
        }
        if !planted {
            let first = tick_next(&mut worker).await.unwrap();
            let second = tick_next(&mut worker).await.unwrap();
            assert_eq!((first.fired, first.delays.len(), first.postponed), (0, 0, 1));
            assert_eq!((second.fired, second.delays.len(), second.postponed), (1, 1, 0));
            assert_eq!(tick_next(&mut worker).await.unwrap().taken, 0);
            let error = "SELECT error FROM mill.schedules WHERE name = 's'";
            let error: String = database.value(error).await;
            assert!(error.contains("lock timeout"), "{error}");
        }
        assert_eq!(events(&database, "other").await, "fired 1");
        session.batch_execute("ROLLBACK").await.unwrap();
        database.execute("UPDATE mill.schedules SET next_tick_at = now() WHERE name = 's'").await;
        tick(&database).await;
        let expected = if planted { "error 1" } else { "fired 1" };
        assert_eq!(events(&database, "s").await, expected);
        assert_eq!(events(&database, "other").await, "fired 1");
    }
}

#[tokio::test]
async fn a_backfill_that_needs_a_lock_continues_later() {
    for planted in [false, true] {
        let database = Database::new().await;
        if planted {
            let function = "mill.advance_backfill";
            plant(&database, function, ("mill.is_temporary(SQLSTATE)", "false")).await;
        }
        schedule(&database, "s", "daily(03:00)", "SELECT 1", "").await;
        tick(&database).await;
        database
            .execute("SELECT mill.backfill_schedule('s', '2026-01-01', '2026-01-02', '{}')")
            .await;
        let session = database.connect().await;
        session.batch_execute("BEGIN; LOCK TABLE mill.run_tasks IN SHARE MODE").await.unwrap();
        let advanced = backfill::advance(&mut impatient(&database).await).await;
        assert_eq!(advanced.unwrap().failed.is_some(), !planted);
        session.batch_execute("ROLLBACK").await.unwrap();
        backfill::advance(&mut database.connect().await).await.unwrap();
        let state = "SELECT concat_ws(' ', state, fired) FROM mill.backfills";
        let expected = if planted { "paused 0" } else { "running 1" };
        assert_eq!(database.value::<String>(state).await, expected);
    }
}
