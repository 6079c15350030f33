//! The schedule commands: their effects, the reasons of their refusals, and their dry runs.

use serde_json::{Value, json};

use crate::harness::{Database, Program, Worker, amount};
use crate::runs::run::{end, job};
use crate::runs::run_cli::json_of;
use crate::schedules::schedule::{FLAGS, events, schedule, until_events};

/// Returns all cases; in the short form every second one.
fn cases<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    all.into_iter().step_by(amount(2, 1))
}

/// Returns both variants of the case with this number; in the short form one of them, in turn.
fn variants<T>(n: usize, both: [T; 2]) -> impl Iterator<Item = T> {
    both.into_iter().skip(amount(n % 2, 0)).take(amount(1, 2))
}

/// Returns everything stored about schedules and their jobs.
pub(crate) async fn kept(database: &Database) -> String {
    database
        .value(
            "SELECT jsonb_build_array(
                (SELECT jsonb_agg(s ORDER BY s.id) FROM mill.schedules s),
                (SELECT jsonb_agg(l ORDER BY l.id) FROM mill.schedule_log l),
                (SELECT jsonb_agg(m ORDER BY m) FROM mill.schedule_declaration_errors m),
                (SELECT jsonb_agg(j ORDER BY j.name) FROM mill.jobs j),
                (SELECT jsonb_agg(t ORDER BY t.job, t.name) FROM mill.job_tasks t),
                (SELECT jsonb_agg(r ORDER BY r.id) FROM mill.runs r))::text",
        )
        .await
}

/// Creates a procedure with a comment.
pub(crate) async fn annotated(database: &Database, name: &str, comment: &str) {
    database
        .execute(&format!(
            "CREATE OR REPLACE PROCEDURE {name}() LANGUAGE sql AS 'SELECT 1';
             COMMENT ON PROCEDURE {name}() IS '{comment}'"
        ))
        .await;
}

pub(crate) async fn output_of(database: &Database, arguments: &[&str]) -> String {
    Program::pgmill(database, arguments).succeeds().await
}

/// Asserts that the command exits with this code and prints all these texts on standard error, also
/// with `--json`, and that it changes nothing.
pub(crate) async fn refused(database: &Database, arguments: &[&str], code: i32, fragment: &[&str]) {
    let before = kept(database).await;
    for flags in variants(arguments.concat().len(), [&[][..], &["--json"]]) {
        let arguments = [arguments, flags].concat();
        let (given, stdout, stderr) = Program::pgmill(database, &arguments).run().await;
        assert!(
            given == code && stdout.is_empty() && fragment.iter().all(|it| stderr.contains(it)),
            "{arguments:?}: {given} {stdout}{stderr}"
        );
    }
    assert_eq!(kept(database).await, before, "{arguments:?}");
}

/// Returns `name status` of every schedule.
async fn states(database: &Database) -> String {
    let sql =
        "SELECT string_agg(name || ' ' || status, ', ' ORDER BY name) FROM mill.schedule_status";
    database.value(sql).await
}

async fn run_now(database: &Database, name: &str) -> i64 {
    database.value(&format!("SELECT mill.run_now('{name}')")).await
}

/// Returns attempts and retry interval of the tasks of a run.
async fn attempts(database: &Database, run: i64) -> String {
    let sql = "SELECT string_agg(DISTINCT o.max_attempts || ' ' || o.retry_interval, ', ')
        FROM mill.run_tasks, mill.effective(options) AS o WHERE run_id = ";
    database.value(&format!("{sql}{run}")).await
}

#[tokio::test]
async fn every_verb_reports_an_unknown_schedule_and_suggests_the_list() {
    let database = Database::new().await;
    for verb in [
        &["schedule", "show"][..],
        &["schedule", "next"],
        &["schedule", "test"],
        &["schedule", "history"],
        &["schedule", "log"],
        &["schedule", "enable"],
        &["schedule", "disable", "--dry-run"],
        &["schedule", "remove"],
        &["schedule", "run-now"],
        &["schedule", "run-now", "--dry-run"],
        &["schedule", "set", "--max-attempts", "3"],
        &["why"],
    ] {
        let hint = "hint: pgmill schedule list";
        refused(&database, &[verb, &["gone"]].concat(), 4, &["no schedule \"gone\"", hint]).await;
    }
    for set in [&["--overlap", "queue"], &["--timing", "manual"], &["--statement", "SELECT 1"]] {
        let how = "hint: To define a schedule, give --timing, and --statement or --job.";
        let set = [&["schedule", "set", "gone"], &set[..]].concat();
        refused(&database, &set, 4, &["no schedule \"gone\"", how]).await;
    }
}

#[tokio::test]
async fn an_unparsable_argument_is_refused_with_a_caret_at_its_place() {
    let database = Database::new().await;
    schedule(&database, "s", "manual", "SELECT 1", "").await;
    for (n, (timing, at, words)) in (0..).zip([
        ("daily(25:00)", 6, "\"25:00\" is not a time of day"),
        ("weekly(mön, tue, 09:00)", 7, "mön"),
        ("daly(03:15)", 0, "hint: did you mean daily?"),
        ("daily(03:15, zone: Mars/Olympus)", 19, "Mars/Olympus"),
        ("monthly(31, months: feb, 06:00)", 0, "never"),
    ]) {
        let caret = format!("\n{timing}\n{}^\n", " ".repeat(at));
        let set = ["schedule", "set", "s", "--timing", timing];
        let next = ["schedule", "next", "--timing", timing];
        for (command, prefix) in variants(n, [(&set[..], "error: timing: "), (&next[..], "")]) {
            refused(&database, command, 2, &[prefix, &caret, words]).await;
        }
    }
    for (wrong, words) in cases([
        (&["set", "s"][..], "required"),
        (&["set", "s", "--max-attempts", "0"], "from 1 to 10000, or \"declared\""),
        (&["set", "s", "--max-attempts", "-1"], ""),
        (&["set", "s", "--retry-interval", "soon"], "not a duration"),
        (&["set", "s", "--jitter", "1 month"], "vary in length"),
        (&["set", "s", "--jitter", "25 hours"], "must be at most 1 day"),
        (&["set", "s", "--overlap", "never"], "skip"),
        (&["set", "s", "--catch-up", "1001"], "1000"),
        (&["set", "s", "--statement", "SELECT 1", "--job", "j"], "cannot be used with"),
        (&["next"], "required"),
        (&["next", "s"], "this timing does not fire at fixed times"),
        (&["next", "s", "--timing", "manual"], "cannot be used with"),
        (&["next", "--timing", "daily(03:15)", "--count", "0"], "1..=1000"),
        (&["history", "--state", "late"], "succeeded"),
        (&["history", "--since", "1h", "--from", "2026-01-01T00:00:00Z"], "cannot be used with"),
        (&["history", "--limit", "0"], ""),
        (&["log", "--event", "burnt"], "skipped"),
        (&["log", "--before", "x"], ""),
    ]) {
        refused(&database, &[&["schedule"], wrong].concat(), 2, &[words]).await;
    }
}

#[tokio::test]
async fn a_dry_run_of_every_verb_shows_its_effect_and_changes_nothing() {
    let database = Database::new().await;
    schedule(&database, "s", "daily(03:15)", "SELECT 1", "").await;
    annotated(&database, "nightly", "@daily(03:15)").await;
    let before = kept(&database).await;
    for (n, (arguments, would)) in (0..).zip([
        (&["schedule", "enable", "s"][..], "would enable schedule s\n"),
        (&["schedule", "disable", "s"], "would disable schedule s\n"),
        (&["schedule", "set", "s", "--max-attempts", "3"], "would change schedule s\n"),
        (&["schedule", "set", "s", "--timing", "manual"], "would change schedule s\n"),
        (&["schedule", "set", "s", "--timing", "DAILY( 03:15 )"], "would not change schedule s\n"),
        (
            &["schedule", "set", "t", "--timing", "manual", "--statement", "SELECT 1"],
            "would declare schedule t\n",
        ),
        (&["schedule", "remove", "s"], "would remove schedule s\n"),
        (&["schedule", "run-now", "s"], "would start a run of schedule s\n"),
        (
            &["schedule", "sync"],
            "+ schedule public.nightly/daily_03_15\n1 change would be made, 0 unchanged, 0 errors\n",
        ),
    ]) {
        let arguments = [arguments, &["--dry-run"]].concat();
        assert_eq!(output_of(&database, &arguments).await, would);
        // The short form reads the documents of some verbs.
        if n % amount(4, 1) == 0 {
            assert_eq!(json_of(&database, &arguments).await["dry_run"], true, "{arguments:?}");
        }
        assert_eq!(kept(&database).await, before, "{arguments:?}");
    }
}

#[tokio::test]
async fn a_schedule_is_declared_changed_and_removed_and_its_history_stays() {
    let database = Database::new().await;
    let set = async |arguments: &[&str]| {
        output_of(&database, &[&["schedule", "set", "purge"], arguments].concat()).await
    };
    let declare = ["--timing", "daily(03:15)", "--statement", "SELECT 1"];
    assert_eq!(set(&declare).await, "schedule purge declared\n");
    assert_eq!(set(&declare).await, "schedule purge unchanged\n");
    let version = "SELECT version FROM mill.schedules";
    assert_eq!(database.value::<i32>(version).await, 1);
    assert_eq!(set(&["--overlap", "queue", "--catch-up", "0"]).await, "schedule purge changed\n");
    assert_eq!(
        set(&["--max-lateness", "30m", "--description", "Old rows"]).await,
        "schedule purge changed\n"
    );
    assert_eq!(set(&["--timing", "Every( 15 minutes )"]).await, "schedule purge changed\n");
    let known = "SELECT s.definition - 'task' FROM mill.schedules s";
    assert_eq!(
        database.value::<Value>(known).await,
        json!({"name": "purge", "timing": "every(15 minutes)", "statement": "SELECT 1", "overlap": "queue",
               "catch_up": 0, "max_lateness": "1800 seconds", "description": "Old rows"})
    );
    let run = run_now(&database, "purge").await;
    let changed = json_of(&database, &["schedule", "remove", "purge"]).await;
    assert_eq!(changed, json!({"schedule": "purge", "removed": true, "dry_run": false}));
    assert_eq!(states(&database).await, "purge removed");
    refused(&database, &["schedule", "remove", "purge"], 4, &["no schedule \"purge\""]).await;
    assert_eq!(json_of(&database, &["schedule", "history", "purge"]).await[0]["run_id"], run);
    let gone = output_of(&database, &["why", "purge"]).await;
    assert!(gone.starts_with("its declaration was removed at "), "{gone}");
    refused(&database, &["schedule", "enable", "purge"], 5, &["was removed at"]).await;
    let own = "SELECT disabled_at IS NULL FROM mill.jobs WHERE name = 'purge'";
    assert!(!database.value::<bool>(own).await);
    assert_eq!(set(&declare).await, "schedule purge changed\n");
    assert!(database.value::<bool>(own).await, "its job comes back with it");
    database.execute("SELECT mill.cancel_run(1)").await;
    assert_eq!(
        json_of(&database, &["schedule", "show", "purge"]).await["schedule"]["enabled"],
        true
    );
}

#[tokio::test]
async fn setting_one_option_keeps_the_others() {
    let database = Database::new().await;
    job(&database, "j", json!([{"name": "t", "statement": "SELECT 1"}])).await;
    schedule(
        &database,
        "s",
        "daily(03:15)",
        "SELECT $1::text",
        ", task => '{\"queue\": \"etl\", \"timeout\": \"1h\", \"params\": [{\"$param\": \"reason\"}]}', category => 'Ops'",
    )
    .await;
    output_of(&database, &["schedule", "set", "s", "--statement", "SELECT $1::text, 2"]).await;
    let known = async || database.value::<Value>("SELECT s.definition FROM mill.schedules s").await;
    let now = known().await;
    assert_eq!((&now["task"]["queue"], &now["category"]), (&json!("etl"), &json!("Ops")), "{now}");
    assert_eq!(now["task"]["params"], json!([{"$param": "reason"}]));
    let gone = ["schedule", "set", "s", "--job", "gone"];
    refused(&database, &gone, 5, &["no job \"gone\"", "pgmill job list"]).await;
    let described = ["schedule", "set", "s", "--job", "j", "--description", "d"];
    refused(&database, &described, 2, &["so it cannot have a description"]).await;
    output_of(&database, &["schedule", "set", "s", "--job", "j", "--overlap", "allow"]).await;
    let now = known().await;
    assert_eq!(
        now,
        json!({"name": "s", "timing": "daily(03:15)", "jobs": ["j"], "overlap": "allow", "catch_up": 1})
    );
    output_of(&database, &["schedule", "set", "s", "--statement", "SELECT 3"]).await;
    assert_eq!(known().await["statement"], "SELECT 3");
    run_now(&database, "s").await;
}

#[tokio::test]
async fn a_schedule_declared_elsewhere_is_refused_with_the_place_to_change_it() {
    let database = Database::new().await;
    annotated(&database, "nightly", "@daily(03:15)").await;
    output_of(&database, &["schedule", "sync"]).await;
    database
        .execute("SELECT mill.put_schedule('{\"name\": \"filed\", \"timing\": \"manual\", \"statement\": \"SELECT 1\"}', 'file')")
        .await;
    let places =
        [("public.nightly/daily_03_15", "the comment of public.nightly"), ("filed", "a file")];
    for (n, field) in (0..).zip([
        ["--timing", "daily(04:00)"],
        ["--statement", "SELECT 2"],
        ["--overlap", "allow"],
        ["--catch-up", "3"],
        ["--max-lateness", "1h"],
        ["--description", "x"],
    ]) {
        for (name, place) in variants(n, places) {
            let set = [&["schedule", "set", name, "--max-attempts", "9"], &field[..]].concat();
            let where_to = format!("schedule \"{name}\" is declared in {place}");
            refused(&database, &set, 5, &[&where_to, "hint: Change it there"]).await;
        }
    }
    for (name, _) in places {
        for verb in ["disable", "enable"] {
            assert_eq!(
                output_of(&database, &["schedule", verb, name]).await,
                format!("schedule {name} {verb}d\n")
            );
        }
    }
    let remove = ["schedule", "remove", "public.nightly/daily_03_15"];
    let words = ["is declared in a comment", "pgmill schedule sync", "pgmill schedule disable"];
    refused(&database, &remove, 5, &words).await;
}

#[tokio::test]
async fn run_now_is_refused_during_a_run_unless_forced() {
    let database = Database::new().await;
    schedule(&database, "s", "daily(03:15)", "SELECT 1", "").await;
    assert_eq!(
        output_of(&database, &["schedule", "run-now", "s"]).await,
        "schedule s started run 1\n"
    );
    for flags in [&[][..], &["--dry-run"]] {
        let run_now = [&["schedule", "run-now", "s"], flags].concat();
        refused(
            &database,
            &run_now,
            5,
            &["run 1 of schedule \"s\" is still running", "pgmill run cancel", "--force"],
        )
        .await;
    }
    let forced = json_of(&database, &["schedule", "run-now", "s", "--force"]).await;
    assert_eq!(forced, json!({"schedule": "s", "run_id": forced["run_id"], "dry_run": false}));
    let _worker = Worker::start(&database, &FLAGS);
    until_events(&database, "s", "fired 2, completed 2").await;
    let run = run_now(&database, "s").await;
    assert_eq!(end(&database, run).await, "succeeded");
}

#[tokio::test]
async fn an_operators_settings_reach_the_tasks_and_survive_every_declaration() {
    let database = Database::new().await;
    let comment = "@retry(max_attempts: 3, interval: 60s) @fire(jitter: 30s, overlap: allow)";
    annotated(&database, "nightly", &format!("@daily(03:15) {comment}")).await;
    let name = "public.nightly/daily_03_15";
    let schedule_sync = async || json_of(&database, &["schedule", "sync"]).await["changes"].clone();
    assert_eq!(schedule_sync().await["new"], json!([name]));
    let first = run_now(&database, name).await;
    assert_eq!(attempts(&database, first).await, "3 00:01:00");
    let set = ["schedule", "set", name];
    let own = ["--max-attempts", "7", "--retry-interval", "5s", "--jitter", "10s"];
    assert_eq!(
        output_of(&database, &[&set[..], &own].concat()).await,
        format!("schedule {name} changed\n")
    );
    output_of(&database, &["schedule", "disable", name]).await;
    let settings = "SELECT (enabled, max_attempts, retry_interval, jitter, declared_jitter)::text FROM mill.schedules";
    let kept: String = database.value(settings).await;
    assert_eq!(kept, "(f,7,00:00:05,00:00:10,00:00:30)");
    assert_eq!(schedule_sync().await["unchanged"], 1);
    annotated(
        &database,
        "nightly",
        &format!("@daily(03:15, days: weekdays) @job(\"N\") {comment}"),
    )
    .await;
    assert_eq!(schedule_sync().await["changed"], json!([name]));
    annotated(&database, "nightly", "nothing").await;
    assert_eq!(schedule_sync().await["removed"], json!([name]));
    annotated(&database, "nightly", &format!("@daily(03:15) {comment}")).await;
    assert_eq!(schedule_sync().await["changed"], json!([name]));
    assert_eq!(database.value::<String>(settings).await, kept);
    let second = run_now(&database, name).await;
    assert_eq!(attempts(&database, second).await, "7 00:00:05");
    let shown = json_of(&database, &["schedule", "show", name]).await["schedule"].clone();
    assert_eq!(
        (&shown["max_attempts"], &shown["jitter_seconds"]),
        (&json!(7), &json!(10.0)),
        "{shown}"
    );
    let declared =
        ["--max-attempts", "declared", "--retry-interval", "declared", "--jitter", "declared"];
    output_of(&database, &[&set[..], &declared].concat()).await;
    let third = run_now(&database, name).await;
    assert_eq!(attempts(&database, third).await, "3 00:01:00");
    let shown = json_of(&database, &["schedule", "show", name]).await["schedule"].clone();
    assert_eq!(
        (&shown["max_attempts"], &shown["jitter_seconds"]),
        (&json!(null), &json!(30.0)),
        "{shown}"
    );
}

/// Returns the values of `key` on all pages, from the newest to the oldest. A page has three rows.
async fn pages(database: &Database, verb: &[&str], key: &str) -> Vec<i64> {
    let mut seen: Vec<i64> = Vec::new();
    loop {
        let before = seen.last().map_or(i64::MAX, |last| *last).to_string();
        let page = [verb, &["--limit", "3", "--before", &before]].concat();
        let page = json_of(database, &page).await;
        let page = page.as_array().unwrap();
        seen.extend(page.iter().map(|it| it[key].as_i64().unwrap()));
        if page.len() < 3 {
            return seen;
        }
    }
}

#[tokio::test]
async fn paging_returns_every_row_once_and_filters_return_matching_rows() {
    let database = Database::new().await;
    for name in ["a", "b"] {
        schedule(&database, name, "manual", "SELECT 1", ", overlap => 'allow'").await;
    }
    for _ in 0..4 {
        run_now(&database, "a").await;
        run_now(&database, "b").await;
    }
    let history = ["schedule", "history"];
    assert_eq!(pages(&database, &history, "run_id").await, [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(pages(&database, &["schedule", "history", "a"], "run_id").await, [7, 5, 3, 1]);
    assert_eq!(pages(&database, &["schedule", "log"], "id").await, [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(pages(&database, &["schedule", "log", "b"], "id").await, [8, 6, 4, 2]);
    // When new rows arrive between two pages, no row is repeated.
    assert_eq!(json_of(&database, &["schedule", "log", "--limit", "2"]).await[1]["id"], 7);
    run_now(&database, "a").await;
    assert_eq!(
        json_of(&database, &["schedule", "log", "--limit", "2", "--before", "7"]).await[0]["id"],
        6
    );
    database
        .execute(
            "UPDATE mill.runs SET started_at = '2026-01-01Z'::timestamptz + id * interval '1 hour' WHERE id < 8;
             UPDATE mill.runs SET fire_at = '2025-12-24 03:00Z' WHERE id IN (5, 6);
             UPDATE mill.runs SET state = 'failed', finished_at = now(), failed = 1, open = 0 WHERE id IN (3, 8);
             INSERT INTO mill.schedule_log (schedule_id, event, message)
                 SELECT 1, unnest(enum_range(NULL::mill.schedule_event)), 'm'",
        )
        .await;
    // Each option is in a filter of the short form.
    for (filter, runs) in cases([
        (&["--state", "failed"][..], &[8, 3][..]),
        (&["--state", "failed", "a"], &[3]),
        (&["--since", "1 day"], &[9, 8]),
        (&["--state", "succeeded"], &[]),
        (&["--from", "2026-01-01T03:00:00Z", "--to", "2026-01-01T05:00:00Z"], &[4, 3]),
        (&["--to", "2026-01-01T02:00:00Z"], &[1]),
        (&["--at", "2025-12-24T03:00:00Z"], &[6, 5]),
        (&["--at", "2025-12-24T03:00:00Z", "a"], &[5]),
        (&["--from", "2026-01-01T07:00:00Z", "a"], &[9, 7]),
    ]) {
        let found = json_of(&database, &[&history, filter].concat()).await;
        let found: Vec<i64> =
            found.as_array().unwrap().iter().map(|it| it["run_id"].as_i64().unwrap()).collect();
        assert_eq!(found, runs, "{filter:?}");
    }
    for (event, count) in cases([
        ("fired", 10),
        ("skipped", 1),
        ("completed", 1),
        ("error", 1),
        ("missed", 1),
        ("reclaimed", 1),
    ]) {
        let found = json_of(&database, &["schedule", "log", "--event", event]).await;
        let found = found.as_array().unwrap();
        assert!(
            found.len() == count && found.iter().all(|it| it["event"] == event),
            "{event}: {found:?}"
        );
    }
    assert_eq!(json_of(&database, &["schedule", "log", "b", "--event", "error"]).await, json!([]));
    for (list, cell) in [("history", "manual"), ("log", "reclaimed")] {
        let page = Program::pgmill(&database, &["schedule", list, "--limit", "1"]);
        let (_, text, note) = page.run().await;
        assert!(text.contains(cell) && text.lines().count() == 2, "{text}");
        assert_eq!(note, "1 row shown, more exist; use --limit\n");
    }
    let (code, nothing, reported) =
        Program::pgmill(&database, &["schedule", "log", "b", "--event", "error"]).run().await;
    assert_eq!((code, nothing.as_str(), reported.as_str()), (0, "", "no matching event\n"));
}

#[tokio::test]
async fn schedule_sync_reports_what_it_created_and_each_error_with_its_location() {
    let database = Database::new().await;
    let schedule_sync = async || Program::pgmill(&database, &["schedule", "sync"]).run().await;
    assert_eq!(schedule_sync().await.1, "0 changes made, 0 unchanged, 0 errors\n");
    annotated(&database, "nightly", "Cleans up.\n  @daily(03:15) @weekly(sun, 02:00)").await;
    let (code, made, _) = schedule_sync().await;
    assert_eq!(
        (code, made.as_str()),
        (
            0,
            "+ schedule public.nightly/daily_03_15\n+ schedule public.nightly/weekly_sun_02_00\n\
             2 changes made, 0 unchanged, 0 errors\n"
        )
    );
    assert_eq!(schedule_sync().await.1, "0 changes made, 2 unchanged, 0 errors\n");
    let mistaken = "Cleans up.\n  @daily(03:15, zone: Europe/Berlin) @weekly(sun, 26:00)";
    annotated(&database, "nightly", mistaken).await;
    let (code, made, reported) = schedule_sync().await;
    assert_eq!(
        (code, made.as_str()),
        (1, "~ schedule public.nightly/daily_03_15\n1 change made, 0 unchanged, 1 error\n")
    );
    assert!(reported.starts_with("error in the comment of public.nightly, 2:51: "), "{reported}");
    let (code, document, _) =
        Program::pgmill(&database, &["schedule", "sync", "--json", "--dry-run"]).run().await;
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!((code, &document["changes"]["declaration_errors"][0]["place"]), (1, &json!("2:51")));
    assert_eq!(
        states(&database).await,
        "public.nightly/daily_03_15 waiting, public.nightly/weekly_sun_02_00 waiting"
    );
    assert_eq!(events(&database, "public.nightly/daily_03_15").await, "");
}
