//! A timing that is set in SQL replaces the timing in force only after a worker has accepted it.

use serde_json::json;

use crate::harness::{Database, Program, Worker, amount, eventually};
use crate::runs::run_cli::json_of;
use crate::schedules::schedule::{FLAGS, planned, schedule, until_events};
use crate::schedules::schedule_cli::output_of;

const NEXT: &str = "SELECT concat_ws(' ', timing, next_fire_at) FROM mill.schedules";

/// Waits until a worker has accepted or rejected the new timing.
async fn checked(database: &Database) {
    let left = "SELECT NOT EXISTS (SELECT FROM mill.schedules
        WHERE new_timing IS NOT NULL AND new_timing_error IS NULL)";
    eventually("the new timing is checked", async || database.value(left).await).await;
}

async fn problems(database: &Database) -> String {
    json_of(database, &["status"]).await["problems"].to_string()
}

#[tokio::test]
async fn a_rejected_timing_is_reported_and_the_former_one_keeps_firing() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    schedule(&database, "s", "daily(03:15)", "SELECT 1", "").await;
    planned(&database, "s").await;
    let before: String = database.value(NEXT).await;
    for (n, wrong, problem) in [
        (0, "daily(3:15)", "\"3:15\" is not a time of day"),
        (1, "trigger(table: t)", "trigger needs a condition"),
        (2, "once(2020-01-01 09:00)", "it has no time in the future"),
    ] {
        schedule(&database, "s", wrong, "SELECT 2", "").await;
        checked(&database).await;
        assert_eq!(database.value::<String>(NEXT).await, before, "{wrong}");
        let shown = json_of(&database, &["schedule", "show", "s"]).await;
        assert_eq!(shown["schedule"]["status"], "error");
        assert_eq!(shown["schedule"]["new_timing"], wrong);
        let error = shown["schedule"]["new_timing_error"].as_str().unwrap();
        assert!(error.contains(problem), "{error}");
        let reported = problems(&database).await;
        let message = "the new timing of schedule s is not in force";
        assert!(reported.contains(message) && reported.contains(wrong), "{reported}");
        // In the short form, the other outputs are read for one of the timings.
        if amount(n > 0, false) {
            continue;
        }
        let why = output_of(&database, &["why", "s"]).await;
        assert!(why.starts_with("the next fire is due at") && why.contains(wrong), "{why}");
        let shown = output_of(&database, &["schedule", "show", "s"]).await;
        let line = format!("\nnew timing {wrong} is not in force: {error}\n");
        assert!(shown.contains(&line), "{shown}");
        assert!(output_of(&database, &["schedule", "list"]).await.contains("error"));
    }
    until_events(&database, "s", "error 3").await;
    // The rest of the declaration is in force, and the schedule fires as before.
    database.execute("UPDATE mill.schedules SET next_fire_at = now(), next_tick_at = now()").await;
    until_events(&database, "s", "fired 1, completed 1, error 3").await;
    let statement = "SELECT statement FROM mill.run_tasks";
    assert_eq!(database.value::<String>(statement).await, "SELECT 2");
    assert!(problems(&database).await.contains("not in force"), "a fire does not hide the error");
    schedule(&database, "s", "daily(04:30)", "SELECT 2", "").await;
    checked(&database).await;
    let after: String = database.value(NEXT).await;
    assert!(after.starts_with("daily(04:30) ") && after.contains("04:30:00"), "{after}");
    assert_eq!(problems(&database).await, "[]");
}

#[tokio::test]
async fn the_timing_of_a_trigger_stays_in_force_as_well() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    database.execute("CREATE TABLE inbox (n integer)").await;
    let trigger = "trigger(table: inbox, rows: 1, every: 1s)";
    schedule(&database, "s", trigger, "SELECT 1", "").await;
    planned(&database, "s").await;
    schedule(&database, "s", "trigger(table: inbox, rows: many)", "SELECT 1", "").await;
    checked(&database).await;
    database.execute("INSERT INTO inbox VALUES (1)").await;
    let fired = "SELECT count(*) > 0 FROM mill.schedule_log WHERE event = 'fired'";
    eventually("the trigger fires", async || database.value(fired).await).await;
    schedule(&database, "s", "manual", "SELECT 1", "").await;
    checked(&database).await;
    let now = "SELECT concat_ws(' ', mode, timing, trigger, next_tick_at) FROM mill.schedules";
    eventually("the schedule is manual", async || {
        database.value::<String>(now).await == "manual manual"
    })
    .await;
}

#[tokio::test]
async fn a_new_timing_counts_from_the_time_at_which_it_was_set() {
    let database = Database::new().await;
    {
        let _worker = Worker::start(&database, &FLAGS);
        schedule(&database, "s", "monthly(1, 00:00)", "SELECT 1", "").await;
        planned(&database, "s").await;
    }
    let options = ", catch_up => 10";
    schedule(&database, "s", "every(1 hour)", "SELECT 1", options).await;
    let why = output_of(&database, &["why", "s"]).await;
    assert!(why.contains("the new timing every(1 hour) is not in force: no worker has"), "{why}");
    // No worker has ticked for two hours since the change, in which the former timing was due too.
    database
        .execute(
            "UPDATE mill.schedules SET new_timing_at = date_trunc('hour', now()) - interval '1 hour 30 minutes',
                 next_fire_at = now() - interval '90 minutes'",
        )
        .await;
    let _worker = Worker::start(&database, &FLAGS);
    until_events(&database, "s", "fired 2, completed 2").await;
    let hours = "SELECT count(*) FROM mill.runs WHERE fire_at = date_trunc('hour', fire_at)";
    assert_eq!(database.value::<i64>(hours).await, 2);
}

#[tokio::test]
async fn a_schedule_whose_first_timing_is_wrong_takes_the_next_one() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    schedule(&database, "s", "daily(25:00)", "SELECT 1", "").await;
    planned(&database, "s").await;
    for wrong in ["daily(26:00)", "daily(27:00)"] {
        schedule(&database, "s", wrong, "SELECT 1", "").await;
        planned(&database, "s").await;
        let reported = problems(&database).await;
        assert!(
            reported.contains(&format!("schedule s does not fire: \\\"{}", &wrong[6..11])),
            "{reported}"
        );
    }
    schedule(&database, "s", "daily(03:15)", "SELECT 1", "").await;
    let found = "SELECT coalesce(next_fire_at::text LIKE '% 03:15:00%', false) FROM mill.schedules";
    eventually("the timing is in force", async || database.value(found).await).await;
    assert_eq!(problems(&database).await, "[]");
}

#[tokio::test]
async fn a_disabled_or_removed_schedule_keeps_its_timing_too() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    schedule(&database, "s", "daily(03:15)", "SELECT 1", "").await;
    planned(&database, "s").await;
    output_of(&database, &["schedule", "disable", "s"]).await;
    schedule(&database, "s", "daily(25:00)", "SELECT 1", "").await;
    output_of(&database, &["schedule", "enable", "s"]).await;
    checked(&database).await;
    planned(&database, "s").await;
    assert!(database.value::<String>(NEXT).await.starts_with("daily(03:15) "));
    // A program parses the timing itself, so the timing is in force at once.
    let set = ["schedule", "set", "s", "--timing", "daily(05:00)"];
    output_of(&database, &set).await;
    let timings =
        "SELECT jsonb_build_array(timing, new_timing, new_timing_error) FROM mill.schedules";
    let found: serde_json::Value = database.value(timings).await;
    assert_eq!(found, json!(["daily(05:00)", null, null]));
    schedule(&database, "s", "daily(25:00)", "SELECT 1", "").await;
    output_of(&database, &["schedule", "remove", "s"]).await;
    // After a removal, nothing is left to stay in force.
    schedule(&database, "s", "daily(26:00)", "SELECT 1", "").await;
    planned(&database, "s").await;
    let (_, _, reported) = Program::pgmill(&database, &["schedule", "next", "s"]).run().await;
    assert!(reported.contains("\"26:00\" is not a time of day"), "{reported}");
}
