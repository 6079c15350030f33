//! Schedules and clocks: late fires, workers with wrong clocks, and jumps of the database clock.

use crate::harness::{Database, Worker, eventually};
use crate::schedules::schedule::{
    FLAGS, daily_in_half_a_day, events, planned, schedule, until_events,
};

#[tokio::test]
async fn a_misfire_is_caught_up_or_recorded_as_missed() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    // The next instant is in half an hour. Five instants are in the past, the last of them 23 and a
    // half hours ago.
    let timing: String = database
        .value("SELECT to_char(now() AT TIME ZONE 'UTC' + interval '30 minutes', '\"daily(\"HH24:MI\")\"')")
        .await;
    for (name, options, wanted) in [
        ("drops", ", catch_up => 0", "missed 1"),
        ("one", "", "fired 1, completed 1, missed 1"),
        ("three", ", catch_up => 3, overlap => 'allow'", "fired 3, completed 3, missed 1"),
        (
            "bounded",
            ", catch_up => 9, overlap => 'allow', max_lateness => '60 hours'",
            "fired 2, completed 2, missed 1",
        ),
    ] {
        schedule(&database, name, &timing, "SELECT 1", options).await;
        planned(&database, name).await;
        database
            .execute(&format!(
                "UPDATE mill.schedules SET next_tick_at = now(), next_fire_at = next_fire_at - interval '5 days'
                 WHERE name = '{name}'"
            ))
            .await;
        until_events(&database, name, wanted).await;
        let missed: i64 = database
            .value(&format!(
                "SELECT coalesce(sum(count), 0)::bigint + (SELECT count(*) FROM mill.runs WHERE schedule_id = s.id)
                 FROM mill.schedules s JOIN mill.schedule_log l ON l.schedule_id = s.id WHERE s.name = '{name}' GROUP BY s.id"
            ))
            .await;
        assert_eq!(missed, 5, "{name}");
        let next = format!("SELECT next_fire_at > now() FROM mill.schedules WHERE name = '{name}'");
        assert!(database.value::<bool>(&next).await);
    }
}

/// Returns a library that gives a process a wrong clock, if installed.
fn false_clock() -> Option<&'static str> {
    [
        "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
        "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    ]
    .into_iter()
    .find(|path| std::path::Path::new(path).exists())
}

#[tokio::test]
async fn workers_whose_clocks_are_hours_off_fire_when_the_database_says_so() {
    let Some(library) = false_clock() else {
        return println!("skipped: libfaketime is not installed (package faketime)");
    };
    let database = Database::new().await;
    schedule(&database, "s", "every(1 second)", "SELECT 1", ", overlap => 'allow'").await;
    let off = |by: &str| {
        let variables =
            [("LD_PRELOAD", library), ("FAKETIME", by), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
        Worker::start_with(&database.url(), &FLAGS, &variables)
    };
    let (ahead, behind) = (off("+7h"), off("-5d"));
    eventually("five fires", async || database.value("SELECT count(*) >= 5 FROM mill.runs").await)
        .await;
    let odd: String = database
        .value(
            "SELECT concat_ws(' ', count(*) FILTER (WHERE started_at < fire_at),
                 (SELECT count(*) FROM mill.schedule_log WHERE event IN ('missed', 'error')),
                 count(*) - count(DISTINCT fire_at), (SELECT count(*) FROM mill.schedules
                     WHERE next_fire_at > now() + interval '1 second')) FROM mill.runs",
        )
        .await;
    assert_eq!(odd, "0 0 0 0", "early, missed, doubled, too far ahead");
    // The workers' clocks were indeed wrong.
    let now: jiff::Timestamp = database.value("SELECT now()").await;
    for (worker, hours) in [(&ahead, 7), (&behind, -5 * 24)] {
        let log = worker.log();
        let output: jiff::Timestamp = log.split_whitespace().next().unwrap().parse().unwrap();
        let off = output.duration_since(now).as_secs_f64() / 3600.0;
        assert!((off - f64::from(hours)).abs() < 1.0, "{off} hours");
    }
}

#[tokio::test]
async fn a_jump_of_the_database_clock_doubles_no_fire() {
    let database = Database::new().await;
    let timing: String = database
        .value("SELECT to_char(now() AT TIME ZONE 'UTC' + interval '30 minutes', '\"daily(\"HH24:MI\")\"')")
        .await;
    schedule(&database, "s", &timing, "SELECT 1", "").await;
    let _worker = Worker::start(&database, &FLAGS);
    planned(&database, "s").await;
    // The test moves the times in the rows instead of the clock, which has the same effect.
    let jump = async |by: &str| {
        database
            .execute(&format!(
                "UPDATE mill.runs SET fire_at = fire_at - interval '{by}', started_at = started_at - interval '{by}',
                     finished_at = finished_at - interval '{by}';
                 UPDATE mill.schedules SET next_fire_at = next_fire_at - interval '{by}',
                     next_tick_at = next_tick_at - interval '{by}', last_fire_at = last_fire_at - interval '{by}'"
            ))
            .await;
    };
    jump("31 minutes").await;
    until_events(&database, "s", "fired 1, completed 1").await;
    let next = "SELECT next_fire_at > now() FROM mill.schedules";
    assert!(database.value::<bool>(next).await);
    // The clock jumps back by some hours. An instant that has fired does not fire again when its
    // time of day comes again.
    jump("-5 hours").await;
    let worker = Worker::start(&database, &FLAGS);
    worker.until_logged("ready").await;
    database.enqueue("SELECT 1", "").await;
    database.until_empty().await;
    assert_eq!(events(&database, "s").await, "fired 1, completed 1");
    // The clock jumps forward by days, as if no worker had ticked.
    jump("5 days").await;
    until_events(&database, "s", "fired 2, completed 2, missed 1").await;
    assert!(database.value::<bool>(next).await);
}

#[tokio::test]
async fn a_single_fire_that_no_worker_started_in_time_is_recorded() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    let timing = daily_in_half_a_day(&database).await;
    schedule(&database, "s", &timing, "SELECT 1", ", catch_up => 0").await;
    planned(&database, "s").await;
    let nobody_ticked = "UPDATE mill.schedules SET next_tick_at = now(), next_fire_at = next_fire_at - interval '1 day'";
    database.execute(nobody_ticked).await;
    eventually("the schedule is planned again", async || {
        database.value("SELECT next_fire_at > now() FROM mill.schedules").await
    })
    .await;
    let missed = "SELECT string_agg(event || ' ' || count, ', ') FROM mill.schedule_log";
    assert_eq!(database.value::<String>(missed).await, "missed 1");
}

#[tokio::test]
async fn tasks_succeed_after_a_jump_of_the_database_clock_past_the_last_partition_of_history() {
    let database = Database::new().await;
    let worker = Worker::start(&database, &["--heartbeat-interval", "1s"]);
    worker.until_logged("ready").await;
    // The test removes the partitions instead of moving the clock, which has the same effect.
    database
        .execute(
            "DO $$ DECLARE day regclass; BEGIN
                 FOR day IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'mill.attempts'::regclass LOOP
                     EXECUTE format('DROP TABLE %s', day);
                 END LOOP;
             END $$",
        )
        .await;
    let id = database.enqueue("SELECT 1", ", max_attempts => 1").await;
    assert_eq!(database.outcome(id).await, "succeeded");
}
