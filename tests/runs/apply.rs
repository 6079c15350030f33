//! Jobs from files. Either all files are applied or none, a repetition changes nothing, and every
//! error has its position.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::harness::{Database, Program, Worker};
use crate::runs::run::{end, start, states};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A folder of job files, removed on drop.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("pgmill-jobs-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let folder = Self(folder);
        for (name, text) in files {
            folder.write(name, text);
        }
        folder
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const DAILY: &str = r#"
[job.daily]
description = "Loads"
priority = "high"

[job.daily.task.raw]
statement = "SELECT 7 AS n"
retry_interval = "30s"
timeout = "1h"

[job.daily.task.vault]
statement = "SELECT $1::int"
params = [{ result = "raw", column = "n" }]
after = ["raw"]

[job.daily.task.report]
statement = "SELECT 1"
after = [{ task = "vault", expected = "finished" }]
"#;

const WEEKLY: &str = r#"
[job.weekly.task.mart]
statement_file = "mart.sql"

[[dependency]]
child = "mart"
parent = "vault"
"#;

fn folder() -> Folder {
    Folder::new(&[("daily.toml", DAILY), ("weekly.toml", WEEKLY), ("mart.sql", "SELECT 'mart'\n")])
}

pub(crate) async fn apply(database: &Database, path: &str, flags: &[&str]) -> String {
    Program::pgmill(database, &[&["apply", path], flags].concat()).succeeds().await
}

/// Returns everything stored about jobs.
async fn kept(database: &Database) -> String {
    database
        .value(
            "SELECT jsonb_build_array(
                (SELECT jsonb_agg(j ORDER BY j.name) FROM mill.jobs j),
                (SELECT jsonb_agg(t ORDER BY t.job, t.name) FROM mill.job_tasks t),
                (SELECT jsonb_agg(e ORDER BY e.job, e.child, e.parent) FROM mill.job_edges e),
                (SELECT jsonb_agg(d ORDER BY d.child, d.parent) FROM mill.dependencies d))::text",
        )
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_twice_changes_nothing() {
    let (database, folder) = (Database::new().await, folder());
    let first = apply(&database, folder.path(), &[]).await;
    assert_eq!(
        first,
        "+ job daily (3 tasks)\n+ job weekly (1 task)\n+ dependency mart < vault\n\
         applied 3 changes from 2 files\n"
    );
    let before = kept(&database).await;
    assert_eq!(apply(&database, folder.path(), &[]).await, "no changes\n");
    assert_eq!(kept(&database).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_prints_the_same_and_changes_nothing() {
    let (database, folder) = (Database::new().await, folder());
    let script =
        "SELECT mill.set_job('scripted', '[{\"name\": \"a\", \"statement\": \"SELECT 1\"}]')";
    folder.write("script.sql", script);
    let before = kept(&database).await;
    let dry = apply(&database, folder.path(), &["--dry-run"]).await;
    assert!(dry.contains("+ job scripted (1 task)\n"), "{dry}");
    assert!(dry.ends_with("would apply 4 changes from 3 files\n"), "{dry}");
    assert_eq!(kept(&database).await, before);
    let wet = apply(&database, folder.path(), &["--json"]).await;
    let wet: Value = serde_json::from_str(&wet).unwrap();
    assert_eq!((&wet["changed"], &wet["dry_run"]), (&Value::Bool(true), &Value::Bool(false)));
    let lines = wet["plan"]["jobs"].as_array().unwrap().len();
    assert_eq!(lines, 3, "{wet}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_removed_from_a_file_is_disabled_and_not_deleted() {
    let (database, folder) = (Database::new().await, folder());
    apply(&database, folder.path(), &[]).await;
    let without = DAILY
        .replace("[job.daily.task.report]", "[job.daily.task.other]")
        .replace("SELECT $1::int", "SELECT $1::bigint")
        .replace("expected = \"finished\"", "expected = \"failed\"");
    folder.write("daily.toml", &without);
    let plan = apply(&database, folder.path(), &[]).await;
    assert_eq!(
        plan,
        "~ job daily: + task other, - task report, ~ task vault (statement), \
         + edge vault > other (failed), - edge vault > report (finished)\n\
         applied 1 change from 2 files\n"
    );
    let left: i64 = database
        .value(
            "SELECT count(*) FROM mill.job_tasks WHERE name = 'report' AND disabled_at IS NOT NULL",
        )
        .await;
    assert_eq!(left, 1);
    let back = Folder::new(&[("daily.toml", DAILY)]);
    assert!(apply(&database, back.path(), &[]).await.contains("+ task report"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mistake_is_refused_with_its_place_and_changes_nothing_at_all() {
    let database = Database::new().await;
    let before = kept(&database).await;
    let task = "[job.bad.task.a]\nstatement = \"SELECT 1\"\n";
    let other = "[job.bad.task.b]\nstatement = \"SELECT 1\"\n";
    for (name, text, exit, place, words) in [
        ("z.toml", "[job.bad", 2, "z.toml:1:9: ", ""),
        ("z.toml", "[job.bad.task.a]\nafter = []\n", 2, "z.toml:1:1: ", "missing statement"),
        ("z.toml", &format!("{task}queues = 1"), 2, "z.toml:3:1: ", "unknown key \"queues\""),
        ("z.toml", &format!("{task}after = [\"b\"]"), 2, "z.toml:3:10: ", "not a task of this job"),
        ("z.toml", &format!("{task}after = [\"a\"]"), 2, "z.toml:1:1: ", "a > a"),
        ("z.toml", &format!("{task}{task}"), 2, "z.toml:3:", "duplicate key"),
        ("z.toml", "[job.Daily.task.a]\nstatement = \"SELECT 1\"", 2, "z.toml:1:1: ", "already"),
        (
            "z.toml",
            &format!("{other}{task}group = \"gone\""),
            5,
            "z.toml:3:1: ",
            "no group \"gone\"",
        ),
        (
            "z.toml",
            &format!("{other}{task}params = [{{ result = \"b\", column = \"n\" }}]"),
            5,
            "z.toml:3:1: ",
            "does not wait",
        ),
        ("z.sql", "SELECT 1;\n COMMIT;", 2, "z.sql:2:2: ", "COMMIT is not allowed"),
        ("z.sql", "SELECT 1;\nSELECT x\n  FROM gone;", 5, "z.sql:3:8: ", "42P01"),
        ("z.sql", "SELECT mill.set_job('b', '7')", 5, "z.sql: ", "must be a JSON array"),
        ("z.sql", "DO $$ BEGIN COMMIT; END $$", 5, "z.sql", "2D000"),
    ] {
        // The invalid file is the last of several.
        let folder = folder();
        folder.write(name, text);
        let (code, stdout, stderr) =
            Program::pgmill(&database, &["apply", folder.path()]).run().await;
        assert_eq!(code, exit, "{text}\n{stdout}{stderr}");
        let place = Path::new(folder.path()).join(place);
        let place = format!("error: {}", place.display());
        assert!(stderr.starts_with(&place) && stderr.contains(words), "{stderr}\n  {place}");
        assert_eq!(stdout, "");
        assert_eq!(kept(&database).await, before, "{text}");
    }
    let (code, ..) = Program::pgmill(&database, &["apply", "/nowhere.toml"]).run().await;
    assert_eq!(code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dependency_that_closes_a_cycle_with_existing_ones_is_refused_with_its_place() {
    let (database, folder) = (Database::new().await, folder());
    apply(&database, folder.path(), &[]).await;
    let before = kept(&database).await;
    let other = "# x\n[[dependency]]\nchild = \"vault\"\nparent = \"mart\"\n";
    let other = Folder::new(&[("other.toml", other)]);
    let (code, _, stderr) = Program::pgmill(&database, &["apply", other.path()]).run().await;
    assert_eq!(code, 5, "{stderr}");
    assert!(stderr.contains("other.toml:2:1: ") && stderr.contains("mart > vault"), "{stderr}");
    assert_eq!(kept(&database).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_disables_what_no_file_declares_and_is_refused_with_scripts() {
    let (database, folder) = (Database::new().await, folder());
    apply(&database, folder.path(), &[]).await;
    let fewer = Folder::new(&[("daily.toml", DAILY)]);
    assert_eq!(apply(&database, fewer.path(), &[]).await, "no changes\n");
    let plan = apply(&database, fewer.path(), &["--prune"]).await;
    assert_eq!(plan, "- job weekly (disabled)\napplied 1 change from 1 file\n");
    assert_eq!(apply(&database, fewer.path(), &["--prune"]).await, "no changes\n");
    let kept: i64 =
        database.value("SELECT count(*) FROM mill.job_tasks WHERE job = 'weekly'").await;
    assert_eq!(kept, 1);
    let plan = apply(&database, folder.path(), &["--prune"]).await;
    assert!(plan.starts_with("+ job weekly (enabled)\n"), "{plan}");
    // A job that an operator has disabled stays disabled. Only with --prune, which declares the
    // files complete, apply enables it.
    Program::pgmill(&database, &["job", "disable", "weekly"]).succeeds().await;
    assert_eq!(apply(&database, folder.path(), &[]).await, "no changes\n");
    fewer.write("a.sql", "SELECT 1");
    let (code, _, stderr) =
        Program::pgmill(&database, &["apply", fewer.path(), "--prune"]).run().await;
    assert!(code == 2 && stderr.contains("a.sql"), "{code} {stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_shown_merged_and_enabled_and_disabled() {
    let (database, folder) = (Database::new().await, folder());
    apply(&database, folder.path(), &[]).await;
    let shown = Program::pgmill(&database, &["job", "show", "Daily,weekly"]).succeeds().await;
    for edge in ["[raw] >>> [vault]", "[vault] >>> [report]  finished", "[vault] >>> [mart]"] {
        assert!(shown.contains(edge), "{shown}");
    }
    let alone = Program::pgmill(&database, &["job", "show", "weekly", "--json"]).succeeds().await;
    let alone: Value = serde_json::from_str(&alone).unwrap();
    assert_eq!(alone["dropped"][0], "vault > mart", "{alone}");
    let dry = ["job", "disable", "DAILY", "--dry-run"];
    assert_eq!(Program::pgmill(&database, &dry).succeeds().await, "job daily would be disabled\n");
    let (code, ..) = Program::pgmill(&database, &["job", "enable", "gone"]).run().await;
    assert_eq!(code, 4);
    for (verb, output) in [
        ("disable", "job daily is now disabled\n"),
        ("disable", "job daily is already disabled\n"),
        ("enable", "job daily is now enabled\n"),
    ] {
        let message_text = Program::pgmill(&database, &["job", verb, "daily"]).succeeds().await;
        assert_eq!(message_text, output);
    }
    let list = Program::pgmill(&database, &["job", "list", "--json"]).succeeds().await;
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((list[0]["name"].as_str(), list[0]["tasks"].as_i64()), (Some("daily"), Some(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn new_runs_omit_a_disabled_task_and_an_apply_keeps_it_disabled() {
    let (database, folder) = (Database::new().await, folder());
    let with_param = DAILY.replace(r#"column = "n" }]"#, r#"column = "n" }, { param = "day" }]"#);
    folder.write("daily.toml", &with_param);
    apply(&database, folder.path(), &[]).await;
    let job = async |arguments: &[&str]| {
        Program::pgmill(&database, &[&["job"], arguments].concat()).run().await
    };
    let (code, _, refused) = job(&["disable", "daily", "raw"]).await;
    let reason = "task \"vault\" uses a result of \"raw\", which would be disabled";
    assert!(code == 5 && refused.contains(reason), "{code} {refused}");
    assert_eq!(job(&["disable", "daily", "gone"]).await.0, 4);
    let enabled = "SELECT enabled FROM mill.job_tasks WHERE job = 'daily' AND name = 'vault'";
    for (arguments, output, now) in [
        (&["disable", "daily", "vault", "--dry-run"][..], "would be disabled", true),
        (&["disable", "Daily", "vault"], "is now disabled", false),
        (&["disable", "daily", "vault"], "is already disabled", false),
    ] {
        let (code, text, note) = job(arguments).await;
        assert_eq!((code, text), (0, format!("task vault of job daily {output}\n")));
        assert!(note.contains("wait neither for it nor for the tasks before it: report"), "{note}");
        assert_eq!(database.value::<bool>(enabled).await, now);
    }
    assert_eq!(apply(&database, folder.path(), &[]).await, "no changes\n");
    assert!(!database.value::<bool>(enabled).await, "an apply keeps the setting of the operator");
    let (_, shown, _) = job(&["show", "daily"]).await;
    assert!(shown.contains("disabled tasks: vault (daily)"), "{shown}");
    assert!(
        shown.contains("dropped edges from tasks outside of the run: vault > report"),
        "{shown}"
    );
    // The parameter of a disabled task stays permitted.
    let started =
        "SELECT array_to_string(dropped, ',') FROM mill.start_run('{daily}', '{\"day\": 1}')";
    assert_eq!(database.value::<String>(started).await, "vault > report");
    let tasks = "SELECT string_agg(name || ' ' || state, ', ' ORDER BY name) FROM mill.run_tasks";
    assert_eq!(database.value::<String>(tasks).await, "raw released, report released");
    assert_eq!(
        job(&["enable", "daily", "vault"]).await.1,
        "task vault of job daily is now enabled\n"
    );
    folder.write(
        "daily.toml",
        &with_param.replace("after = [\"raw\"]", "after = [\"raw\"]\nenabled = false"),
    );
    let plan = apply(&database, folder.path(), &[]).await;
    assert!(plan.starts_with("~ job daily: ~ task vault (enabled)\n"), "{plan}");
    assert!(!database.value::<bool>(enabled).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn lineage_follows_jobs_and_dependencies_in_both_directions() {
    let (database, folder) = (Database::new().await, folder());
    apply(&database, folder.path(), &[]).await;
    let lineage = |flags: &'static [&'static str]| {
        Program::pgmill(&database, &[&["lineage", "vault"], flags].concat()).succeeds()
    };
    assert_eq!(
        lineage(&[]).await,
        "vault\n  upstream:\n    raw  [daily]\n  downstream:\n    mart  [every job]\n    \
         report finished  [daily]\n"
    );
    assert!(!lineage(&["--upstream"]).await.contains("mart"));
    assert!(lineage(&["--format", "mermaid"]).await.starts_with("flowchart LR\n"));
    assert!(lineage(&["--downstream", "--format", "dot"]).await.starts_with("digraph {\n"));
    let document: Value = serde_json::from_str(&lineage(&["--json"]).await).unwrap();
    assert_eq!(document["edges"].as_array().unwrap().len(), 3);
    let (code, ..) = Program::pgmill(&database, &["lineage", "gone"]).run().await;
    assert_eq!(code, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn dependencies_are_added_listed_and_removed() {
    let database = Database::new().await;
    let run = async |arguments: &[&str]| {
        Program::pgmill(&database, &[&["dependency"], arguments].concat()).run().await
    };
    let (code, dry, note) = run(&["add", "b", "a", "--dry-run"]).await;
    assert!(note.contains("no job has a task \"b\" yet"), "{note}");
    assert_eq!(
        (code, dry.as_str()),
        (0, "b would wait for a (succeeded) in every job that has both\n")
    );
    let (_, none, _) = run(&["list"]).await;
    assert_eq!(none, "");
    assert_eq!(run(&["add", "b", "a", "--expected", "failed"]).await.0, 0);
    assert_eq!(run(&["add", "c", "b"]).await.0, 0);
    let (code, _, circle) = run(&["add", "a", "c"]).await;
    assert!(code == 5 && circle.contains("dependency cycle"), "{code} {circle}");
    let (_, list, _) = run(&["list", "--json"]).await;
    assert!(list.contains("\"failed\""), "{list}");
    assert_eq!(run(&["remove", "b", "a", "--dry-run"]).await.0, 0);
    assert_eq!(run(&["remove", "b", "a"]).await.0, 0);
    assert_eq!(run(&["remove", "b", "a"]).await.0, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_of_two_jobs_runs_on_an_empty_database_again_and_again() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "4", "--poll-interval", "50ms"]);
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples/daily_sunday");
    apply(&database, sample.to_str().unwrap(), &[]).await;
    for jobs in ["sunday,daily", "daily,sunday"] {
        let run = start(&database, jobs).await;
        let ended = end(&database, run).await;
        assert_eq!(ended, "succeeded", "{}", states(&database, run).await);
        let tables: i64 = database
            .value(&format!(
                "SELECT count(*) FROM mill.run_tasks WHERE run_id = {run} AND name = 'sample_tables'"
            ))
            .await;
        assert_eq!(tables, 1);
    }
    let customers: i64 =
        database.value("SELECT count(DISTINCT customer) FROM sample_mart_orders").await;
    assert_eq!(customers, 10);
    let noted: i64 = database.value("SELECT sum(raw_rows)::bigint FROM sample_loads").await;
    assert_eq!(noted, 2000);
}

#[tokio::test]
async fn lineage_follows_the_graph_to_its_ends() {
    let database = Database::new().await;
    database
        .execute(
            "INSERT INTO mill.dependencies (child, parent)
                 SELECT 't' || n, 't' || n - 1 FROM generate_series(1, 3000) AS n;
             -- Two jobs with dependencies in both directions, and a shortcut.
             INSERT INTO mill.jobs (name) VALUES ('a');
             INSERT INTO mill.job_edges (job, child, parent) VALUES ('a', 't0', 't3000'), ('a', 't2000', 't10')",
        )
        .await;
    for (sql, expected) in [
        ("SELECT count(*) FROM mill.upstream('t3000')", 3000),
        ("SELECT distance::bigint FROM mill.upstream('t3000') WHERE task = 't10'", 1001),
        ("SELECT distance::bigint FROM mill.downstream('t3000') WHERE task = 't2000'", 12),
        ("SELECT count(*) FROM mill.upstream('nobody')", 0),
    ] {
        assert_eq!(database.value::<i64>(sql).await, expected, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_mistakes_of_all_files_are_reported_and_nothing_is_applied() {
    let (database, folder) = (Database::new().await, folder());
    let before = kept(&database).await;
    folder.write(
        "x.toml",
        "[job.a]\npriorty = \"low\"\nenabled = 7\n[job.a.task.one]\nqueue = 1\ntimeout = \"soon\"\n\
         [job.b.task.two]\nstatement = \"COMMIT\"\n[schedule.s]\ntiming = \"daly(03:15)\"\njitter = 2\n",
    );
    folder.write("y.toml", "[job.c");
    folder.write(
        "z.toml",
        "[[dependency]]\nchild = 1\nother = 2\n[job.daily.task.a]\nstatement = \"SELECT 1\"",
    );
    let (code, stdout, stderr) = Program::pgmill(&database, &["apply", folder.path()]).run().await;
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    let errors: Vec<&str> =
        stderr.lines().filter_map(|line| line.strip_prefix("error: ")).collect();
    let expected = [
        ("x.toml:2:1: ", "unknown key \"priorty\""),
        ("x.toml:3:11: ", "enabled is an integer"),
        ("x.toml:4:1: ", "missing statement"),
        ("x.toml:5:9: ", "queue is an integer"),
        ("x.toml:6:11: ", "timeout"),
        ("x.toml:8:13: ", "COMMIT is not allowed"),
        ("x.toml:9:1: ", "missing statement"),
        ("x.toml:10:11: ", "unknown timing \"daly\""),
        ("x.toml:11:10: ", "jitter is an integer"),
        ("y.toml:1:7: ", ""),
        ("z.toml:1:1: ", "missing parent"),
        ("z.toml:2:9: ", "child is an integer"),
        ("z.toml:3:1: ", "unknown key \"other\""),
    ];
    assert_eq!(errors.len(), expected.len(), "{stderr}");
    for (error, (place, words)) in errors.iter().zip(expected) {
        let place = Path::new(folder.path()).join(place);
        assert!(error.starts_with(place.to_str().unwrap()) && error.contains(words), "{error}");
    }
    // The files are correct, but the database refuses some of their declarations.
    let known = Folder::new(&[(
        "a.toml",
        "[job.a.task.x]\nstatement = \"SELECT 1\"\ngroup = \"gone\"\n\
         [job.b.task.y]\nstatement = \"SELECT 1\"\n\
         [job.c.task.z]\nstatement = \"SELECT 1\"\ngroup = \"away\"\n\
         [schedule.s]\ntiming = \"manual\"\njob = \"a\"\n",
    )]);
    let (code, _, stderr) = Program::pgmill(&database, &["apply", known.path()]).run().await;
    assert_eq!((code, stderr.matches("error: ").count()), (5, 2), "{stderr}");
    for words in ["a.toml:1:1: ", "group \"gone\"", "a.toml:6:1: ", "group \"away\""] {
        assert!(stderr.contains(words), "{stderr}");
    }
    assert_eq!(kept(&database).await, before);
}
