//! A maintenance window pauses the whole fleet at once, and ends by the database's clock.

use jiff::Timestamp;
use queue::claim::{ClaimSession, Lane, LaneRange, SessionIdentity};
use queue::{Priority, WorkerId};
use serde_json::Value;

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker, eventually};
use crate::schedules::schedule::{daily_in_half_a_day, events, planned, schedule, until_events};

const FLAGS: [&str; 4] = ["--readers", "2", "--poll-interval", "50ms"];

async fn pending(database: &Database) -> i64 {
    database.value("SELECT count(*) FROM mill.tasks WHERE state = 'pending'").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_starts_after_the_commit_of_a_pause_returns_nothing() {
    let database = Database::new().await;
    database.enqueue_many(20, "SELECT 1").await;
    let claimer =
        ClaimSession::new(database.connect().await, WorkerId::random(), None).await.unwrap();
    let (queue, run_as) = ("default".to_owned(), String::new());
    let lanes = [LaneRange::whole(Lane { queue, priority: Priority::Normal, run_as })];
    let sessions = [SessionIdentity { pid: 1, started_at: Timestamp::UNIX_EPOCH }];
    let claimed = async || claimer.claim(&lanes, &sessions).await.unwrap().len();
    assert_eq!(claimed().await, 1);
    for end in ["NULL", "now() + interval '1 hour'"] {
        database.execute(&format!("SELECT mill.pause_fleet({end})")).await;
        assert_eq!(claimed().await, 0, "{end}");
        assert_eq!(database.value::<i32>("SELECT mill.resume_fleet()").await, 1);
        assert_eq!(claimed().await, 1, "{end}");
    }
    // The test moves the times in the row instead of the clock, which has the same effect.
    database
        .execute(
            "SELECT mill.pause_fleet();
             UPDATE mill.maintenance_windows SET starts_at = starts_at + interval '1 hour',
                 created_at = created_at + interval '1 hour'",
        )
        .await;
    assert_eq!(claimed().await, 0, "the clock was set back");
    let shown = Program::pgmill(&database, &["status"]).run().await.1;
    assert!(shown.contains("the fleet is paused"), "{shown}");
    assert_eq!(database.value::<i32>("SELECT mill.resume_fleet()").await, 1);
    // Neither a planned window nor one that has ended has an effect.
    database
        .execute(
            "SELECT mill.pause_fleet(starts_at => now() + interval '1 hour');
             INSERT INTO mill.maintenance_windows (starts_at, ends_at) VALUES (now() - interval '1 hour', now())",
        )
        .await;
    assert_eq!(claimed().await, 1);
    assert_eq!(database.value::<i32>("SELECT mill.resume_fleet()").await, 0);
    assert_eq!(database.value::<i32>("SELECT mill.resume_fleet(planned => true)").await, 1);
}

/// A server that is busy starts a transaction, and takes the snapshot of its statement later.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_takes_effect_in_transactions_that_began_before_it() {
    let database = Database::new().await;
    database.enqueue("SELECT 1", "").await;
    let (claims, ticks) = (database.connect().await, database.connect().await);
    for earlier in [&claims, &ticks] {
        earlier.batch_execute("BEGIN").await.unwrap();
    }
    let claimer = ClaimSession::new(claims, WorkerId::random(), None).await.unwrap();
    database.execute("SELECT mill.pause_fleet(reason => 'disks')").await;
    let (queue, run_as) = ("default".to_owned(), String::new());
    let lanes = [LaneRange::whole(Lane { queue, priority: Priority::Normal, run_as })];
    let sessions = [SessionIdentity { pid: 1, started_at: Timestamp::UNIX_EPOCH }];
    assert_eq!(claimer.claim(&lanes, &sessions).await.unwrap().len(), 0);
    let paused =
        "SELECT mill.fleet_paused() AND mill.describe_fleet_pause() = 'the fleet is paused: disks'
        AND mill.resume_fleet() = 1";
    assert!(ticks.query_one(paused, &[]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_fleet_is_paused_running_tasks_finish_and_the_others_wait_until_the_end() {
    let database = Database::new().await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    let _worker = Worker::start(&database, &FLAGS);
    let running = database.enqueue("SELECT pg_advisory_xact_lock(1)", "").await;
    database.until_waiting_for_lock(running).await;
    database.execute("SELECT mill.pause_fleet(reason => 'disks')").await;
    let waiting = database.enqueue("SELECT 1", "").await;
    let later = database.enqueue("SELECT 1", ", due_at => now() + interval '1 day'").await;
    let why = async |id: i64| database.value::<String>(&format!("SELECT mill.why({id})")).await;
    assert_eq!(why(waiting).await, "the fleet is paused: disks");
    assert!(why(later).await.contains("it is due at"));
    assert!(why(running).await.contains("it is running on"));
    // Only the running task keeps a worker busy.
    assert_eq!(database.value::<i64>("SELECT mill.scale_hint()").await, 1);
    database.execute("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(database.outcome(running).await, "succeeded");
    assert_eq!(pending(&database).await, 1);
    // A pause that begins now replaces the one in force. It ends by itself.
    database.execute("SELECT mill.pause_fleet(now() + interval '1 second')").await;
    let end: String = database.value("SELECT ends_at::text FROM mill.maintenance_windows").await;
    assert_eq!(database.outcome(waiting).await, "succeeded");
    let after_the_end = format!(
        "SELECT started_at >= '{end}'::timestamptz FROM mill.attempts WHERE task_id = {waiting}"
    );
    assert!(database.value::<bool>(&after_the_end).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_do_not_fire_during_a_pause_and_catch_up_afterwards() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &FLAGS);
    let timing = daily_in_half_a_day(&database).await;
    schedule(&database, "s", &timing, "SELECT 1", ", catch_up => 1").await;
    planned(&database, "s").await;
    database
        .execute(
            "SELECT mill.pause_fleet(now() + interval '1 hour', 'disks');
             UPDATE mill.schedules SET next_fire_at = date_trunc('minute', now() - interval '2 hours'),
                 next_tick_at = now() - interval '2 hours'",
        )
        .await;
    let status = "SELECT status FROM mill.schedule_status";
    assert_eq!(database.value::<String>(status).await, "waiting");
    let reason: String = database.value("SELECT reason FROM mill.schedule_test('s')").await;
    assert!(reason.starts_with("the fleet is paused until 2"), "{reason}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.lock_due_schedules(10)").await, 0);
    assert_eq!(events(&database, "s").await, "");
    database.execute("SELECT mill.resume_fleet()").await;
    until_events(&database, "s", "fired 1, completed 1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_programs_pause_the_fleet_and_show_the_pause_first() {
    let database = Database::new().await;
    let operator = Login::new(&database, "operator", "mill_operator").await;
    let pgmill = async |arguments: &[&str]| {
        Program::pgmill(&database, arguments).at(&operator.url()).run().await
    };
    let id = database.enqueue("SELECT 1", ", queue => 'etl'").await;
    let (code, stdout, _) = pgmill(&["pause", "--dry-run"]).await;
    assert_eq!((code, stdout.trim()), (0, "the fleet would be paused until pgmill resume"));
    let (code, _, stderr) = pgmill(&["resume"]).await;
    assert_eq!(code, 4, "{stderr}");
    let (code, _, stderr) = pgmill(&["pause", "--until", "2020-01-01"]).await;
    assert_eq!(code, 5, "{stderr}");
    assert!(stderr.contains("which is not after its start"), "{stderr}");

    let (code, stdout, _) = pgmill(&["pause", "--for", "2h", "--reason", "new <disks>"]).await;
    assert!(code == 0 && stdout.contains("(in 2h"), "{stdout}");
    let from = ["pause", "--from", "tomorrow 02:00", "--for", "90m", "--reason", "upgrade"];
    assert_eq!(pgmill(&from).await.0, 0);
    let (_, status, _) = pgmill(&["status"]).await;
    let first = status.lines().nth(1).unwrap_or_default();
    assert!(first.contains("the fleet is paused for another") && first.contains("new <disks>"));
    assert!(first.contains("pgmill resume") && status.contains("pause planned from"), "{status}");
    let (_, status, _) = pgmill(&["status", "--json"]).await;
    let status: Value = serde_json::from_str(&status).unwrap();
    let windows = status["maintenance_windows"].as_array().unwrap();
    let is_active: Vec<&Value> = windows.iter().map(|window| &window["is_active"]).collect();
    assert_eq!(is_active, [true, false]);
    for subject in [id.to_string(), "etl".to_owned()] {
        let (_, why, _) = pgmill(&["why", &subject]).await;
        assert!(why.starts_with("the fleet is paused until"), "{why}");
    }

    let console = Console::start_at(&database, &operator.url(), &[]).await;
    for path in ["/", "/tasks", "/runs", "/audit"] {
        let page = console.get(path).await.body;
        assert!(
            page.contains("class=\"banner\"") && page.contains("new &#60;disks&#62;"),
            "{path}"
        );
        assert!(page.contains("action=\"/fleet/resume\""), "{path}");
    }
    assert!(console.get("/queues").await.body.contains("The fleet will be paused from"));
    console.post("/fleet/resume", "").await;
    assert!(!console.get("/").await.body.contains("class=\"banner\""));
    console.post("/fleet/pause", "length=30&reason=again").await;
    assert!(console.get("/").await.body.contains(": again"));
    let (code, stdout, _) = pgmill(&["resume", "--planned"]).await;
    assert_eq!((code, stdout.trim()), (0, "2 pauses ended; 0 planned"));
    let audit = "SELECT string_agg(action, ' ' ORDER BY id) FROM mill.audit";
    assert_eq!(
        database.value::<String>(audit).await,
        "pause_fleet pause_fleet resume_fleet pause_fleet resume_fleet"
    );
    drop(console);
    operator.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_metrics_have_the_pause() {
    let database = Database::new().await;
    let address = crate::harness::http::free_address();
    let flags = ["--http", &address, "--fleet-metrics-interval", "100ms"];
    let _worker = Worker::start(&database, &flags);
    for (sql, value) in [("pause_fleet", 1), ("resume_fleet", 0)] {
        database.execute(&format!("SELECT mill.{sql}()")).await;
        eventually(&format!("pgmill_fleet_paused is {value}"), async || {
            let page = crate::harness::http::get(&address, "/metrics").await;
            page.is_some_and(|page| page.body.contains(&format!("\npgmill_fleet_paused {value}\n")))
        })
        .await;
    }
}
