//! The examples of the documentation work: every shell block and every sample runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::login::Login;
use crate::harness::program::PathFolder;
use crate::harness::{Database, Program, Worker, amount, eventually};
use crate::runs::apply::Folder;
use crate::targets::target::{Configuration, as_flags};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns README.md and all pages below docs/.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    let mut left = vec![root().join("docs")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    pages
}

/// Returns the blocks of a language. A block counts only if its opening line has nothing but the
/// language: "sh no-run" marks a block that a test cannot run.
pub(crate) fn blocks(page: &Path, language: &str) -> Vec<String> {
    let opening = format!("```{language}");
    let text = std::fs::read_to_string(page).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        match (&mut open, line) {
            (None, line) if line == opening => open = Some(String::new()),
            (Some(_), "```") => blocks.extend(open.take()),
            (Some(block), line) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    blocks
}

/// Asserts that the programs accept the arguments that a shell block gives them.
fn parse(page: &Path, block: &str) {
    // Functions in place of the programs print their arguments.
    let function = |name: &str| format!("{name}() {{ printf '%s\\0' {name} \"$@\" '' >&2; }}\n");
    let script = ["pgmill", "enqueue", "worker"].map(function).concat() + block;
    let output =
        Command::new("sh").args(["-eu", "-c", &script]).current_dir(root()).output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}\n{block}\n{printed}", page.display());
    for command in printed.split_terminator("\0\0") {
        let program = match command.split('\0').next() {
            Some("pgmill") => pgmill::command(),
            Some("enqueue") => enqueue::command(),
            _ => pgmill_worker::command(),
        };
        if let Err(error) = program.try_get_matches_from(command.split('\0')) {
            panic!("{}\n{block}\n{error}", page.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shell_block_of_the_documents_runs() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "2", "--poll-interval", "100ms"]);
    let programs = PathFolder::new();
    #[expect(clippy::disallowed_methods, reason = "the shell needs it too")]
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    // `tests/project/book/cookbook.rs` runs the tutorial and the recipes, each in a database of its own.
    let elsewhere = |page: &PathBuf| {
        page.ends_with("docs/tutorial.md") || page.to_string_lossy().contains("/docs/cookbook/")
    };
    let mut found = Vec::new();
    for page in pages().into_iter().filter(|page| !elsewhere(page)) {
        found.extend(blocks(&page, "sh").into_iter().map(|block| (page.clone(), block)));
    }
    // The short form runs a sample, in which each program occurs, and parses the other blocks.
    let (first, step): (usize, usize) = amount((6, 7), (0, 1));
    let mut ran = 0;
    for (n, (page, block)) in found.iter().enumerate() {
        if n % step != first {
            parse(page, block);
            continue;
        }
        let mut shell = Command::new("sh");
        shell.args(["-eu", "-c", block]).current_dir(root());
        shell.env("PATH", &path).env("DATABASE_URL", database.url());
        shell.env("PGMILL_ALLOW_SUPERUSER", "true");
        let output = tokio::task::spawn_blocking(move || shell.output()).await.unwrap().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{block}\n{printed}", page.display());
        ran += 1;
    }
    assert!(ran >= 3, "only {ran} blocks found");
}

#[tokio::test]
async fn the_job_file_of_the_front_page_is_applied() {
    let database = Database::new().await;
    let [text] = &blocks(&root().join("README.md"), "toml")[..] else { panic!("one job file") };
    let folder = Folder::new(&[("nightly.toml", text)]);
    let printed = Program::pgmill(&database, &["apply", folder.path()]).succeeds().await;
    for change in
        ["+ job nightly (2 tasks)", "+ schedule nightly (daily(03:15, zone: Europe/Berlin))"]
    {
        assert!(printed.contains(change), "{printed}");
    }
}

#[test]
fn the_page_about_the_library_shows_the_sample() {
    let shown = &blocks(&root().join("docs/library.md"), "rust")[0];
    let sample = root().join("samples/embedded_worker/main.rs");
    assert_eq!(*shown, std::fs::read_to_string(sample).unwrap());
}

/// The queries must run as they are, because an on-call engineer pastes them.
#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_the_runbooks_runs() {
    let database = Database::new().await;
    let mut ran = 0;
    for page in pages().iter().filter(|page| page.to_string_lossy().contains("/runbooks/")) {
        for block in blocks(page, "sql") {
            println!("{}", page.display());
            database.execute(&block).await;
            ran += 1;
        }
    }
    assert!(ran >= 5, "only {ran} queries found");
}

/// The tasks run as a login of their own, with the privileges that samples/README.md names.
#[tokio::test(flavor = "multi_thread")]
async fn every_sample_runs_and_its_tasks_end_as_documented() {
    let database = Database::new().await;
    let tasks = Login::new(&database, "tasks", "mill_producer").await;
    let other = Database::empty().await;
    queue::receipt::init(other.client(), &[]).await.unwrap();
    let targets = Configuration::of(&database, &[("sample_target", other.url())]);
    let (configuration, task_url) = (targets.flags(), tasks.url());
    let mut flags = as_flags(&configuration);
    flags.extend(["--task-url", &task_url]);
    let mut worker = Worker::start(&database, &flags);
    let index = std::fs::read_to_string(root().join("samples/README.md")).unwrap();
    let mut ran = 0;
    for entry in std::fs::read_dir(root().join("samples")).unwrap() {
        let sample = entry.unwrap().path();
        if sample.extension().is_none_or(|extension| extension != "sql") {
            continue;
        }
        let name = sample.file_name().unwrap().to_str().unwrap();
        assert!(index.contains(&format!("({name})")), "{name} is not in samples/README.md");
        let sql = std::fs::read_to_string(&sample).unwrap();
        database.client().batch_execute(&sql).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        ran += 1;
    }
    assert!(ran >= 9, "only {ran} samples found");
    let superuser = "SELECT count(*) FROM pg_stat_activity a JOIN pg_roles r ON r.rolname = a.usename
        WHERE a.application_name LIKE 'pgmill reader%' AND a.datname = current_database() AND r.rolsuper";
    assert_eq!(database.value::<i64>(superuser).await, 0);
    database.until_empty().await;
    let odd: String = database
        .value(
            "SELECT coalesce(string_agg(concat_ws(' ', name, outcome, message, statement), E'\n'), '')
             FROM mill.attempts WHERE final
             AND outcome <> 'succeeded' AND name NOT IN ('fatal', 'much later')
             OR final AND name IN ('fatal') AND (outcome <> 'failed' OR attempt <> 1)",
        )
        .await;
    assert_eq!(odd, "");
    let import = "SELECT string_agg(event || ' ' || reason, ', ' ORDER BY l.id) FROM mill.schedule_log l
        JOIN mill.schedules s ON s.id = l.schedule_id WHERE s.name = 'sample import' AND event = 'fired'";
    eventually("the sample is imported", async || {
        database.value::<Option<String>>(import).await.as_deref()
            == Some("fired row threshold: pending rows 500 >= 500")
    })
    .await;
    let days = "SELECT count(DISTINCT day) FROM sample_days WHERE day < '2026-01-04'";
    eventually("the sample of a backfill ends", async || database.value::<i64>(days).await == 3)
        .await;
    let public = "SELECT bool_and(is_public) FROM sample_prices";
    eventually("the approved sample runs", async || database.value::<bool>(public).await).await;
    Program::pgmill(&database, &["schedule", "sync"]).succeeds().await;
    let nightly = "SELECT string_agg(name, ' ' ORDER BY name) FROM mill.schedules WHERE declared_in = 'comment'";
    assert_eq!(
        database.value::<String>(nightly).await,
        "public.sample_nightly/daily_03_15 public.sample_nightly/monthly_last_23_30"
    );
    let second: i32 = database
        .value("SELECT attempt FROM mill.attempts WHERE final AND name = 'second attempt'")
        .await;
    assert_eq!(second, 2);
    assert_eq!(other.value::<i64>("SELECT count(*) FROM sample_orders").await, 1);
    assert!(worker.terminate().await.success());
    tasks.gone().await;
}

#[test]
fn every_link_of_the_documents_has_a_target() {
    let mut pages = pages();
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "samples/README.md"] {
        pages.push(root().join(page));
    }
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") {
                let target = page.parent().unwrap().join(file);
                assert!(target.exists(), "{} links to {link}", page.display());
            }
        }
        // Tables name tests without a link; `tests/X.rs` is a placeholder.
        let named = |word: &&str| word.starts_with("tests/") && word.ends_with(".rs");
        for test in text.split('`').filter(named).filter(|test| *test != "tests/X.rs") {
            assert!(root().join(test).exists(), "{} names {test}", page.display());
        }
    }
}

/// Returns the severity of each alert in the rules for Prometheus.
fn alert_severities() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(root().join("deploy/prometheus/rules")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let mut alert = String::new();
        for line in text.lines() {
            if let Some(name) = line.trim().strip_prefix("- alert: ") {
                name.clone_into(&mut alert);
            } else if let Some(severity) = line.trim().strip_prefix("severity: ") {
                found.push((alert.clone(), severity.to_owned()));
            }
        }
    }
    found
}

#[test]
fn an_alert_has_the_severity_of_the_problem_with_the_same_cause() {
    let page = std::fs::read_to_string(root().join("docs/operate.md")).unwrap();
    let table = page.split("## Severity of problems").nth(1).unwrap();
    let alerts = alert_severities();
    let mut compared = 0;
    for severity in ["critical", "warning", "info"] {
        let row = table.lines().find(|line| line.starts_with(&format!("| {severity} |"))).unwrap();
        for name in row.split('`').filter(|word| word.starts_with("Pgmill")) {
            let expected = (name.to_owned(), severity.to_owned());
            assert!(alerts.contains(&expected), "{expected:?} is not in {alerts:?}");
            compared += 1;
        }
    }
    assert!(compared > 8, "{compared} alerts");
}
