//! Schedules from files. Either all files are applied or none, a repetition changes nothing, and
//! every error has its position.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Database, Program, amount};
use crate::runs::apply::{Folder, apply};
use crate::runs::run_cli::json_of;
use crate::schedules::schedule::schedule;
use crate::schedules::schedule_cli::{annotated, kept, output_of};

const JOBS: &str = r#"
[job.daily.task.load]
statement = "SELECT $1::text"
params = [{ param = "day" }]

[job.sunday.task.mart]
statement = "SELECT 1"
"#;

const SCHEDULES: &str = r#"
[schedule.purge]
timing = "every(15 minutes, between: 06:00-22:00)"
statement = "SELECT $1::text, $2::text"
params = ["x", { param = "reason" }]
description = "Old rows"
category = "Ops"
queue = "etl"
priority = "high"
group = "loads"
concurrency_key = "log"
max_attempts = 5
retry_interval = "7s"
backoff = "fixed"
timeout = "1h"
mode = "transaction"
overlap = "queue"
catch_up = 3
max_lateness = "30 min"
jitter = "1 min"
enabled = false

[schedule.vacuum]
timing = "manual"
statement_file = "vacuum.sql"
mode = "autocommit"
at_most_once = true
external = true

[schedule.vault]
timing = "daily(05:30, zone: Europe/Berlin)"
jobs = ["daily", "sunday"]
params = { day = "2026-12-01" }

[schedule.mart]
timing = "weekly(sun, 02:00)"
job = "sunday"
"#;

const VACUUM: (&str, &str) = ("vacuum.sql", "VACUUM pg_catalog.pg_class\n");

async fn folder(database: &Database) -> Folder {
    database.execute("SELECT mill.set_group('loads')").await;
    Folder::new(&[("jobs.toml", JOBS), ("schedules.toml", SCHEDULES), VACUUM])
}

/// Writes the same jobs without schedules.
fn without_schedules(folder: &Folder) {
    folder.write("schedules.toml", "");
    std::fs::remove_file(Path::new(folder.path()).join(VACUUM.0)).unwrap();
}

/// Returns the declared definition.
async fn definition(database: &Database, name: &str) -> Value {
    let sql = format!("SELECT s.definition FROM mill.schedules s WHERE name = '{name}'");
    database.value(&sql).await
}

async fn status(database: &Database, name: &str) -> Value {
    json_of(database, &["schedule", "show", name]).await["schedule"].clone()
}

async fn own_job_is_enabled(database: &Database, job: &str) -> bool {
    let sql = format!("SELECT disabled_at IS NULL FROM mill.jobs WHERE name = '{job}'");
    database.value(&sql).await
}

#[tokio::test]
async fn every_option_of_a_file_reaches_the_schedule_and_the_tasks_of_its_runs() {
    let database = Database::new().await;
    let folder = folder(&database).await;
    assert_eq!(
        apply(&database, folder.path(), &[]).await,
        "+ job daily (1 task)\n+ job sunday (1 task)\n+ schedule mart (weekly(sun, 02:00))\n\
         + schedule purge (every(15 minutes, between: 06:00-22:00))\n+ schedule vacuum (manual)\n\
         + schedule vault (daily(05:30, zone: Europe/Berlin))\napplied 6 changes from 2 files\n"
    );
    let mut purge = definition(&database, "purge").await;
    let task = purge.as_object_mut().unwrap().remove("task").unwrap();
    assert_eq!(
        purge,
        json!({"name": "purge", "timing": "every(15 minutes, between: 06:00-22:00)",
            "statement": "SELECT $1::text, $2::text", "description": "Old rows", "category": "Ops",
            "overlap": "queue", "catch_up": 3, "max_lateness": "1800.000000 seconds", "jitter": "60.000000 seconds"})
    );
    for (key, value) in [
        ("params", json!(["x", {"$param": "reason"}])),
        ("queue", json!("etl")),
        ("priority", json!("high")),
        ("group", json!("loads")),
        ("concurrency_key", json!("log")),
        ("max_attempts", json!(5)),
        ("backoff", json!("fixed")),
    ] {
        assert_eq!(task[key], value, "{key} in {task}");
    }
    assert_eq!(status(&database, "purge").await["enabled"], false);
    let vault = definition(&database, "vault").await;
    assert_eq!(
        (&vault["jobs"], &vault["params"]),
        (&json!(["daily", "sunday"]), &json!({"day": "2026-12-01"}))
    );
    for name in ["purge", "vacuum", "vault", "mart"] {
        output_of(&database, &["schedule", "run-now", name]).await;
    }
    let tasks: String = database
        .value(
            "SELECT string_agg(concat_ws(' ', run_id, name, params, queue, priority, group_name, concurrency_key,
                 max_attempts, retry_interval, backoff, (options).timeout, mode, at_most_once, external), E'\\n'
                 ORDER BY run_id, name)
             FROM mill.run_tasks, mill.effective(options)",
        )
        .await;
    let output: Vec<&str> = tasks.lines().collect();
    assert_eq!(
        output[0],
        "1 purge [\"x\", \"manual\"] etl high loads log 5 00:00:07 fixed 01:00:00 transaction f f"
    );
    assert!(
        output[1].starts_with("2 vacuum ") && output[1].ends_with(" autocommit t t"),
        "{}",
        output[1]
    );
    assert!(output[2].starts_with("3 load [\"2026-12-01\"] "), "{}", output[2]);
    assert!(output[3].starts_with("3 mart ") && output[4].starts_with("4 mart "), "{tasks}");
}

#[tokio::test]
async fn schedules_of_files_are_reapplied_changed_and_disabled_when_removed() {
    let database = Database::new().await;
    let folder = folder(&database).await;
    let before = kept(&database).await;
    let dry = apply(&database, folder.path(), &["--dry-run"]).await;
    assert!(dry.contains("+ schedule mart (") && dry.contains("would apply 6 changes"), "{dry}");
    assert_eq!(kept(&database).await, before);
    apply(&database, folder.path(), &[]).await;
    let before = kept(&database).await;
    for flags in [&[][..], &["--prune"]] {
        assert_eq!(apply(&database, folder.path(), flags).await, "no changes\n");
        assert_eq!(kept(&database).await, before);
    }
    let changed = SCHEDULES
        .replace("every(15 minutes", "every(30 minutes")
        .replace("SELECT $1::text, $2", "SELECT $2::text, $1")
        .replace("max_attempts = 5", "max_attempts = 6")
        .replace("enabled = false", "")
        .replace("job = \"sunday\"", "job = \"sunday\"\noverlap = \"allow\"");
    folder.write("schedules.toml", &changed);
    assert_eq!(
        apply(&database, folder.path(), &[]).await,
        "~ schedule mart: overlap\n~ schedule purge: statement, task, timing\napplied 2 changes from 2 files\n"
    );
    assert_eq!(status(&database, "purge").await["enabled"], false, "unchanged");
    output_of(&database, &["schedule", "enable", "purge"]).await;
    output_of(&database, &["schedule", "set", "purge", "--max-attempts", "9"]).await;
    output_of(&database, &["schedule", "disable", "mart"]).await;
    assert_eq!(apply(&database, folder.path(), &["--prune"]).await, "no changes\n");
    output_of(&database, &["schedule", "run-now", "purge"]).await;

    without_schedules(&folder);
    assert_eq!(apply(&database, folder.path(), &[]).await, "no changes\n");
    let gone = "- schedule mart (weekly(sun, 02:00))\n\
        - schedule purge (every(30 minutes, between: 06:00-22:00))\n- schedule vacuum (manual)\n\
        - schedule vault (daily(05:30, zone: Europe/Berlin))\n";
    let plan = apply(&database, folder.path(), &["--prune"]).await;
    assert_eq!(plan, format!("{gone}applied 4 changes from 2 files\n"));
    assert_eq!(apply(&database, folder.path(), &["--prune"]).await, "no changes\n");
    assert_eq!(status(&database, "purge").await["status"], "removed");
    assert!(!own_job_is_enabled(&database, "purge").await);
    let history = json_of(&database, &["schedule", "history", "purge"]).await;
    assert_eq!(history.as_array().unwrap().len(), 1);

    folder.write(VACUUM.0, VACUUM.1);
    folder.write("schedules.toml", &changed);
    let plan = apply(&database, folder.path(), &[]).await;
    assert!(plan.contains("+ schedule purge (every(30 minutes"), "{plan}");
    let purge = status(&database, "purge").await;
    assert_eq!((&purge["enabled"], &purge["max_attempts"]), (&json!(true), &json!(9)), "{purge}");
    assert_eq!(status(&database, "mart").await["enabled"], false, "as set by an operator");
    assert!(own_job_is_enabled(&database, "purge").await);
    let planned = "SELECT next_tick_at IS NOT NULL FROM mill.schedules WHERE name = 'purge'";
    assert!(database.value::<bool>(planned).await, "the schedule fires again");
}

#[tokio::test]
async fn prune_leaves_schedules_of_calls_and_comments_and_their_jobs_alone() {
    let database = Database::new().await;
    let folder = folder(&database).await;
    schedule(&database, "called", "daily(03:15)", "SELECT 1", "").await;
    annotated(&database, "nightly", "@daily(03:15)").await;
    output_of(&database, &["schedule", "sync"]).await;
    apply(&database, folder.path(), &[]).await;
    let before = kept(&database).await;
    assert_eq!(apply(&database, folder.path(), &["--prune"]).await, "no changes\n");
    assert_eq!(kept(&database).await, before);
    without_schedules(&folder);
    let plan = apply(&database, folder.path(), &["--prune"]).await;
    assert!(plan.ends_with("applied 4 changes from 2 files\n"), "{plan}");
    for (name, job) in [("called", "called"), ("public.nightly/daily_03_15", "public.nightly")] {
        assert_eq!(status(&database, name).await["status"], "waiting");
        assert!(own_job_is_enabled(&database, job).await);
    }
}

/// Content of a file, exit code, position, and a part of the message.
type Wrong = (String, i32, &'static str, &'static str);

/// Mistakes in timings and jobs.
fn wrong_timings_and_jobs() -> Vec<Wrong> {
    let x = "[schedule.x]\ntiming = \"manual\"\n";
    let statement = "statement = \"SELECT 1\"\n";
    let daily = "job = \"daily\"\n";
    vec![
        (
            format!("[schedule.x]\n{statement}timing = \"daily(25:00)\""),
            2,
            "3:17",
            "timing: \"25:00\" is not a time of day",
        ),
        (
            format!("[schedule.x]\n{statement}timing = '''\ndaily(25:00)'''"),
            2,
            "4:7",
            "timing: \"25:00\" is not a time of day",
        ),
        (
            format!("[schedule.x]\n{statement}timing = \"daly(03:15)\""),
            2,
            "3:11",
            "hint: did you mean daily?",
        ),
        (
            format!("[schedule.x]\n{statement}timing = 7"),
            2,
            "3:10",
            "timing is an integer, not a string",
        ),
        (format!("[schedule.x]\n{statement}"), 2, "1:1", "missing timing"),
        (x.to_owned(), 2, "1:1", "missing statement"),
        (format!("{x}{statement}colour = 1"), 2, "4:1", "unknown key \"colour\""),
        (
            format!("{x}{daily}{statement}"),
            2,
            "4:13",
            "statement is an option of a statement, not of jobs",
        ),
        (
            format!("{x}{daily}max_attempts = 5"),
            2,
            "4:16",
            "max_attempts is an option of a statement",
        ),
        (
            format!("{x}{daily}description = \"d\""),
            2,
            "4:15",
            "description is an option of a statement",
        ),
        (format!("{x}{daily}jobs = [\"daily\"]"), 2, "4:8", "job and jobs exclude each other"),
        (format!("{x}jobs = []"), 2, "3:8", "jobs must not be empty"),
        (format!("{x}jobs = [1]"), 2, "3:9", "jobs must be strings"),
        (format!("{x}{daily}params = [1]"), 2, "4:10", "params of a job must be a table"),
        (
            format!("{x}{statement}params = {{ a = 1 }}"),
            2,
            "4:10",
            "params is a table, not an array",
        ),
    ]
}

/// Mistakes in statements, their options, and name conflicts.
fn wrong_statements_and_names() -> Vec<Wrong> {
    let x = "[schedule.x]\ntiming = \"manual\"\n";
    let statement = "statement = \"SELECT 1\"\n";
    vec![
        (
            format!("{x}{statement}statement_file = \"vacuum.sql\""),
            2,
            "4:18",
            "statement and statement_file exclude",
        ),
        (format!("{x}statement_file = \"none.sql\""), 2, "3:18", "none.sql"),
        (format!("{x}statement = \"COMMIT\""), 2, "3:13", "COMMIT"),
        (format!("{x}{statement}overlap = \"never\""), 2, "4:11", "overlap"),
        (format!("{x}{statement}catch_up = -1"), 2, "4:12", "catch_up must be from 0 to 1000"),
        (format!("{x}{statement}jitter = \"2 days\""), 2, "4:10", "must be at most 1 day"),
        (format!("{x}{statement}max_lateness = \"soon\""), 2, "4:16", "not a duration"),
        (format!("{x}{statement}at_most_once = true"), 2, "4:16", "requires mode"),
        (format!("{x}{statement}{x}{statement}"), 2, "4:", "duplicate key"),
        (
            format!("\n[schedule.purge]\ntiming = \"manual\"\n{statement}"),
            2,
            "2:1",
            "is already declared at",
        ),
        (
            format!("[schedule.Daily]\ntiming = \"manual\"\n{statement}"),
            2,
            "1:1",
            "a job has the same name at",
        ),
        (format!("\n{x}job = \"gone\""), 5, "2:1", "there is no job \"gone\""),
        (format!("{x}{statement}group = \"gone\""), 5, "1:1", "no group \"gone\""),
        (
            format!("[schedule.called]\ntiming = \"manual\"\n{statement}"),
            5,
            "1:1",
            "schedule \"called\" is declared in a call of mill.set_schedule",
        ),
    ]
}

#[tokio::test]
async fn each_mistake_is_refused_with_its_place_and_changes_nothing_at_all() {
    let database = Database::new().await;
    let folder = folder(&database).await;
    schedule(&database, "called", "daily(03:15)", "SELECT 1", "").await;
    let before = kept(&database).await;
    let wrong = [wrong_timings_and_jobs(), wrong_statements_and_names()].concat();
    let (found_in_files, found_by_server): (Vec<_>, Vec<_>) =
        wrong.into_iter().partition(|(_, exit, ..)| *exit == 2);
    // In the short form, all mistakes that are found without the server are made at once.
    let at_once = amount(found_in_files.len(), 1);
    for wrong in found_in_files.chunks(at_once).chain(found_by_server.chunks(1)) {
        let files: Vec<_> = (0..wrong.len())
            .map(|n| Path::new(folder.path()).join(format!("z{n:02}.toml")))
            .collect();
        for (file, (text, ..)) in files.iter().zip(wrong) {
            std::fs::write(file, text).unwrap();
        }
        let (code, stdout, stderr) =
            Program::pgmill(&database, &["apply", folder.path()]).run().await;
        assert!(stdout.is_empty() && stderr.starts_with("error: "), "{code} {stdout}{stderr}");
        for (file, (text, exit, place, words)) in files.iter().zip(wrong) {
            let file_name = format!("{}:", file.display());
            let of_file = stderr.split("error: ").filter(|it| it.starts_with(&file_name));
            let errors: Vec<&str> = of_file.collect();
            let place = format!("{file_name}{place}");
            assert!(
                code == *exit
                    && errors.first().is_some_and(|it| it.starts_with(&place))
                    && errors.concat().contains(words),
                "{text}\n{code} {stdout}{stderr}\n{exit} {place}: {words}"
            );
            std::fs::remove_file(file).unwrap();
        }
        assert_eq!(kept(&database).await, before, "{wrong:?}");
    }
}
