//! Details of a schedule on the command line and in the console, and the commands on its runs.

use serde_json::{Value, json};

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker, eventually};
use crate::runs::apply::Folder;
use crate::runs::run::{end, job};
use crate::runs::run_cli::json_of;
use crate::schedules::schedule::{FLAGS, schedule};
use crate::schedules::schedule_cli::{annotated, output_of};

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_shown_with_its_statement_and_its_declared_options() {
    let database = Database::new().await;
    let options = r#", task => '{"params": [7], "queue": "etl", "mode": "autocommit", "max_attempts": 4,
        "retry_interval": "90 s", "backoff": "fixed", "timeout": "1 hour"}',
        description => 'Old rows', category => 'Ops'"#;
    schedule(&database, "s", "manual", "SELECT $1::int", options).await;
    let lines = [
        "\ndescription Old rows\n",
        "\ncategory Ops\n",
        "\nstatement SELECT $1::int\n",
        "\nparams [7]\n",
        "\ndeclared mode autocommit, queue etl, max attempts 4, retry interval 1m 30s fixed, timeout 1h 0m\n",
    ];
    let shown = output_of(&database, &["schedule", "show", "s"]).await;
    for line in lines {
        assert!(shown.contains(line), "{line} in\n{shown}");
    }
    let shown = json_of(&database, &["schedule", "show", "s"]).await;
    assert_eq!(shown["jobs"][0]["task"]["statement"], "SELECT $1::int");
    let console = Console::start(&database, &[]).await;
    let page = console.get("/schedules/detail?name=s").await.body;
    for text in ["Old rows", "Ops", "SELECT $1::int", "[7]", "mode autocommit, queue etl"] {
        assert!(page.contains(text), "{text} in {page}");
    }
    database.execute("UPDATE mill.settings SET hide_statements = true").await;
    let viewer = Login::new(&database, "details_viewer", "mill_viewer").await;
    let url = viewer.url();
    let arguments = ["schedule", "show", "s", "--database-url", &url];
    let hidden = Program::pgmill(&database, &arguments).succeeds().await;
    assert!(hidden.contains("\nstatement (hidden)\n"), "{hidden}");
    assert!(!hidden.contains("SELECT") && !hidden.contains("[7]"), "{hidden}");
    viewer.drop().await;
    // A schedule of jobs has the descriptions of its jobs, and the parameters of its runs.
    job(
        &database,
        "daily",
        json!([{"name": "a", "statement": "SELECT $1::int",
        "params": [{"$param": "n"}]}]),
    )
    .await;
    database
        .execute(
            r#"UPDATE mill.jobs SET description = 'Loads' WHERE name = 'daily';
               SELECT mill.set_schedule('j', 'manual', jobs => '{daily}', params => '{"n": 3}')"#,
        )
        .await;
    let shown = output_of(&database, &["schedule", "show", "j"]).await;
    for line in ["\njob daily: description Loads\n", "\nparams {\"n\":3}\n"] {
        assert!(shown.contains(line), "{line} in\n{shown}");
    }
}

#[tokio::test]
async fn the_text_of_a_comment_is_shown_with_title_and_category() {
    let database = Database::new().await;
    let comment =
        "Removes old rows. @daily(03:15)\n@job(\"Cleanup\", category: \"Ops\") Keeps a year.";
    annotated(&database, "nightly", comment).await;
    output_of(&database, &["schedule", "sync"]).await;
    let shown = output_of(&database, &["schedule", "show", "public.nightly/daily_03_15"]).await;
    let lines = "\ndescription Cleanup: Removes old rows. Keeps a year.\ncategory Ops\n\
                 statement CALL public.nightly()\n";
    assert!(shown.contains(lines), "{shown}");
    annotated(&database, "nightly", "@daily(03:15)").await;
    output_of(&database, &["schedule", "sync"]).await;
    let shown = output_of(&database, &["schedule", "show", "public.nightly/daily_03_15"]).await;
    assert!(!shown.contains("description"), "{shown}");
}

#[tokio::test]
async fn the_last_evaluation_of_a_trigger_is_shown() {
    let database = Database::new().await;
    database.execute("CREATE TABLE inbox AS SELECT 1 AS n").await;
    schedule(&database, "s", "trigger(table: inbox, rows: 500, every: 1s)", "SELECT 1", "").await;
    let _worker = Worker::start(&database, &FLAGS);
    let checked = async |result: &str| {
        eventually(result, async || {
            let shown = json_of(&database, &["schedule", "show", "s"]).await;
            shown["schedule"]["trigger_result"] == result
        })
        .await;
        let shown = output_of(&database, &["schedule", "show", "s"]).await;
        assert!(shown.contains("\ntrigger checked ") && shown.contains(result), "{shown}");
    };
    checked("no trigger condition is met: pending rows 1 < 500").await;
    database.execute("DROP TABLE inbox").await;
    let sql = "SELECT coalesce(trigger_result, '') LIKE 'relation \"inbox\" does not exist%' FROM mill.schedules";
    eventually("the error of the probe", async || database.value(sql).await).await;
}

#[tokio::test]
async fn the_runs_of_a_schedule_are_cancelled_and_those_of_others_are_not() {
    let database = Database::new().await;
    let hold = "SELECT pg_advisory_lock(7)";
    for name in ["s", "other"] {
        schedule(&database, name, "manual", hold, ", overlap => 'allow'").await;
    }
    database.execute("SELECT pg_advisory_lock(7)").await;
    for name in ["s", "s", "other"] {
        output_of(&database, &["schedule", "run-now", name]).await;
    }
    let _worker = Worker::start(&database, &FLAGS);
    let running = "SELECT count(*) = 3 FROM mill.tasks WHERE state = 'running'";
    eventually("the tasks run", async || database.value(running).await).await;
    let would = output_of(&database, &["schedule", "cancel", "s", "--dry-run"]).await;
    assert_eq!(would.lines().count(), 2, "{would}");
    let cancelled = json_of(&database, &["schedule", "cancel", "s", "--kill"]).await;
    assert_eq!(cancelled["runs"].as_array().unwrap().len(), 2, "{cancelled}");
    for run in [1, 2] {
        assert_eq!(end(&database, run).await, "cancelled");
    }
    let other = "SELECT state::text FROM mill.runs WHERE id = 3";
    assert_eq!(database.value::<String>(other).await, "running");
    let again = output_of(&database, &["schedule", "cancel", "s"]).await;
    assert_eq!(again, "no run is in progress\n");
    let (code, ..) = Program::pgmill(&database, &["schedule", "cancel", "gone"]).run().await;
    assert_eq!(code, 4);
    output_of(&database, &["schedule", "cancel", "other", "--kill"]).await;
}

#[tokio::test]
async fn history_is_filtered_by_job_and_the_log_by_time() {
    let database = Database::new().await;
    annotated(&database, "nightly", "@manual() @once(2100-01-01 00:00)").await;
    output_of(&database, &["schedule", "sync"]).await;
    schedule(&database, "other", "manual", "SELECT 1", "").await;
    for name in ["public.nightly/manual", "other", "public.nightly/once_2100_01_01_00_00"] {
        output_of(&database, &["schedule", "run-now", name]).await;
    }
    let runs = json_of(&database, &["schedule", "history", "--job", "PUBLIC.nightly"]).await;
    let runs: Vec<&Value> = runs.as_array().unwrap().iter().map(|it| &it["run_id"]).collect();
    assert_eq!(runs, [3, 1]);
    database
        .execute(
            "UPDATE mill.schedule_log SET logged_at = logged_at - interval '3 days' WHERE id < 3",
        )
        .await;
    for (bounds, events) in [
        (&["--since", "1 day"][..], 1),
        (&["--from", "yesterday"], 1),
        (&["--to", "yesterday"], 2),
        (&["--since", "5 days", "other"], 1),
    ] {
        let found = json_of(&database, &[&["schedule", "log"], bounds].concat()).await;
        assert_eq!(found.as_array().unwrap().len(), events, "{bounds:?}");
    }
    let viewer = Login::new(&database, "log_viewer", "mill_viewer").await;
    let client = viewer.connect().await;
    let sql = "SELECT schedule FROM mill.visible_schedule_log WHERE id = 2";
    assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, String>(0), "other");
    drop(client);
    viewer.drop().await;
}

/// Returns a zone in the format TZif whose clock is always 9 hours ahead of UTC.
fn nine_hours_ahead() -> Vec<u8> {
    let mut zone = b"TZif".to_vec();
    zone.resize(20, 0);
    for count in [0_u32, 0, 0, 0, 1, 4] {
        zone.extend(count.to_be_bytes());
    }
    zone.extend((9 * 3600_i32).to_be_bytes());
    zone.extend(b"\0\0JST\0");
    zone
}

#[tokio::test]
async fn newer_zone_data_of_the_machine_are_used_and_their_release_is_shown() {
    let database = Database::new().await;
    let next = ["schedule", "next", "--count", "1", "--from", "2026-01-01T00:00:00Z", "--json"];
    let next = [&next[..], &["--timing", "daily(03:15, zone: Europe/Berlin)"]].concat();
    let folder = Folder::new(&[("tzdata.zi", "# version 2099a\n")]);
    std::fs::create_dir(format!("{}/Europe", folder.path())).unwrap();
    std::fs::write(format!("{}/Europe/Berlin", folder.path()), nine_hours_ahead()).unwrap();
    for (directory, release, fire) in
        [(folder.path(), "2099a", "2026-01-01T18:15:00Z"), ("/nowhere", "", "2026-01-01T02:15:00Z")]
    {
        let with_directory = async |arguments: &[&str]| {
            let mut command = Program::pgmill(&database, arguments).into_command();
            let output = command.env("TZDIR", directory).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let printed: Value = serde_json::from_str(&with_directory(&next).await).unwrap();
        assert_eq!(printed["fires"], json!([fire]));
        let found = printed["zone_data"]["release"].as_str().unwrap();
        assert!(found.starts_with(release), "{printed}");
        let doctor = with_directory(&["doctor"]).await;
        assert!(doctor.contains(&format!("release {found}")), "{doctor}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_changes_at_the_same_time_none_is_lost() {
    let database = Database::new().await;
    schedule(&database, "s", "manual", "SELECT 1", "").await;
    let holder = database.connect().await;
    holder.batch_execute("BEGIN; SELECT FROM mill.schedules FOR UPDATE").await.unwrap();
    let set = |option: &'static str, value: &'static str| {
        Program::pgmill(&database, &["schedule", "set", "s", option, value]).succeeds()
    };
    let released = async {
        let wait = "SELECT count(*) = 2 FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        eventually("both changes wait", async || database.value(wait).await).await;
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let (catch_up, overlap) = (set("--catch-up", "7"), set("--overlap", "allow"));
    let (first, second, ()) = tokio::join!(catch_up, overlap, released);
    assert_eq!((first.as_str(), second.as_str()), ("schedule s changed\n", "schedule s changed\n"));
    let now: Value = database.value("SELECT s.definition FROM mill.schedules s").await;
    assert_eq!((&now["catch_up"], &now["overlap"]), (&json!(7), &json!("allow")), "{now}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_keeps_what_a_call_has_set_meanwhile() {
    let database = Database::new().await;
    schedule(&database, "s", "manual", "SELECT 1", "").await;
    let caller = database.connect().await;
    let call = "BEGIN; SELECT mill.set_schedule('s', 'manual', 'SELECT 1', overlap => 'allow')";
    caller.batch_execute(call).await.unwrap();
    let set = Program::pgmill(&database, &["schedule", "set", "s", "--catch-up", "7"]).succeeds();
    let released = async {
        database.until_a_session_waits_or("false").await;
        caller.batch_execute("COMMIT").await.unwrap();
    };
    let (done, ()) = tokio::join!(set, released);
    assert_eq!(done, "schedule s changed\n");
    let now: Value = database.value("SELECT s.definition FROM mill.schedules s").await;
    assert_eq!((&now["catch_up"], &now["overlap"]), (&json!(7), &json!("allow")), "{now}");
}
