//! The load test measures correctly, finds faults, and loses no measurement.
//!
//! The load test creates databases of its own, with the schema and its roles. Therefore each test
//! creates a test database first: otherwise two tests could create the roles at the same time.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use ::loadtest::effects;
use ::loadtest::result::{Results, Scenario};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::spawn_blocking;

use crate::harness::program::PathFolder;
use crate::harness::{Database, Program, amount, eventually};

/// A folder for files, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(label: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pgmill-test-{label}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Creates a file with this text.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn results(json: &str) -> Results {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

fn failed(scenario: &Scenario) -> Vec<String> {
    let failed = scenario.checks.iter().filter(|check| !check.passed);
    failed.map(|check| format!("{}: {}", check.what, check.detail)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_is_listed_and_described() {
    let database = Database::new().await;
    let programs = PathFolder::new();
    let listed = Program::loadtest(&database, &programs, &["list"]).succeeds().await;
    let names: Vec<&str> =
        listed.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    let wanted = [
        "drain",
        "enqueue",
        "latency",
        "backlog",
        "history",
        "pinned",
        "scheduled",
        "capped",
        "targets",
        "tracing",
        "runs",
        "schedules",
        "fleet",
        "idle",
        "scale",
        "recovery",
        "memory",
        "console",
        "soak",
    ];
    assert_eq!(names, wanted);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = std::fs::read_to_string(root.join("loadtest/METHODOLOGY.md")).unwrap();
    for name in names {
        assert!(text.contains(&format!("\n### `{name}`")), "{name} is not in METHODOLOGY.md");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_passes_its_checks_and_its_results_are_read_back() {
    let database = Database::new().await;
    let programs = PathFolder::new();
    let loadtest = |arguments: &[&str]| Program::loadtest(&database, &programs, arguments);
    let scenarios: &[&str] = amount(&["drain"][..], &["drain", "targets", "runs"][..]);
    let tiny = ["--tasks", "300", "--rounds", "1", "--readers", "2"];
    let arguments = [&["run"][..], scenarios, &tiny, &["--json"]].concat();
    let json = loadtest(&arguments).succeeds().await;
    let run = results(&json);
    assert!(run.machine.cores > 0 && run.server.commit_ms > 0.0, "{json}");
    assert_eq!(run.scenarios.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), scenarios);
    for scenario in &run.scenarios {
        assert_eq!(failed(scenario), [""; 0]);
        assert!(!scenario.checks.is_empty());
        for case in &scenario.cases {
            assert_eq!(case.rounds.len(), 1, "{}", case.name);
            assert!(case.rounds[0] > 0.0, "{}", case.name);
        }
        assert!(scenario.cases.iter().any(|case| scenario.ratio(case).is_some()));
    }
    eventually("its databases are gone", async || {
        let left = "SELECT count(*) FROM pg_database WHERE datname LIKE 'loadtest\\_%\\_drain'";
        database.value::<i64>(left).await == 0
    })
    .await;

    let folder = Folder::new("loadtest-report");
    let file = folder.file("results.json", &json);
    let page = folder.0.join("page.html");
    loadtest(&["report", &file, "-o", page.to_str().unwrap()]).succeeds().await;
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("ceiling, one commit per task"));
    let table = loadtest(&["report", &file, "--markdown"]).succeeds().await;
    assert!(table.contains("| one commit per task |"), "{table}");

    // Compare with better results, which no run reaches: a run of one scenario counts as worse, and
    // the exit code reports this.
    let mut better = run.clone();
    for case in better.scenarios.iter_mut().flat_map(|it| &mut it.cases) {
        if case.reference.is_some() {
            case.rounds[0] *= 1000.0;
        }
    }
    let better = folder.file("better.json", &serde_json::to_string(&better).unwrap());
    let arguments = [&["run", "drain"][..], &tiny, &["--compare", &better]].concat();
    let (code, stdout, stderr) = loadtest(&arguments).run().await;
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(stdout.contains("WORSE"), "{stdout}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_scenario_is_reported_and_the_next_one_is_measured() {
    let database = Database::new().await;
    let programs = PathFolder::new();
    // More connections than this server permits.
    let arguments = ["run", "pinned", "drain", "--readers", "500", "--tasks", "10", "--json"];
    let (code, stdout, stderr) = Program::loadtest(&database, &programs, &arguments).run().await;
    assert_eq!(code, 1, "{stderr}");
    let run = results(&stdout);
    assert_eq!(run.scenarios.len(), 2);
    for scenario in &run.scenarios {
        let failed = failed(scenario);
        assert!(failed[0].contains("completed"), "{failed:?}");
    }
    assert!(stderr.contains("connections"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_reports_what_it_has_measured() {
    let database = Database::new().await;
    let programs = PathFolder::new();
    let arguments =
        ["run", "drain", "--readers", "2", "--tasks", "300", "--rounds", "100", "--json"];
    let mut command = Program::loadtest(&database, &programs, &arguments).into_command();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdout, code) = spawn_blocking(move || {
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // A line with a rate shows that a round has finished.
        lines.find(|line| line.as_ref().unwrap().ends_with("tasks/s")).unwrap().unwrap();
        interrupt(&child);
        let mut stdout = String::new();
        child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        (stdout, child.wait().unwrap().code())
    })
    .await
    .unwrap();
    assert_eq!(code, Some(130));
    let run = results(&stdout);
    let scenario = &run.scenarios[0];
    assert!(!scenario.cases[0].rounds.is_empty(), "{stdout}");
    assert!(failed(scenario)[0].contains("interrupted"), "{stdout}");
    eventually("its workers are gone", async || {
        let left = "SELECT count(*) FROM pg_stat_activity
            WHERE datname LIKE 'loadtest\\_%' AND application_name LIKE 'pgmill reader%'";
        database.value::<i64>(left).await == 0
    })
    .await;
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn results_that_cannot_be_read_are_noticed_before_anything_starts() {
    let database = Database::new().await;
    let programs = PathFolder::new();
    for (arguments, fragment) in [
        (&["run", "all", "--compare", "nowhere.json"][..], "could not read nowhere.json"),
        (&["report", "nowhere.json"], "could not read nowhere.json"),
        (&["run", "all", "--programs", "/nowhere"], "cargo build --release --workspace"),
    ] {
        let (code, _, stderr) = Program::loadtest(&database, &programs, arguments).run().await;
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains(fragment), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    let (code, _, stderr) = Program::loadtest(&database, &programs, &["run", "speed"]).run().await;
    assert_eq!(code, 2);
    assert!(stderr.contains("loadtest list"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_that_is_missing_doubled_or_without_a_task_is_found() {
    let database = Database::new().await;
    let client = database.client();
    database
        .execute(
            "CREATE SCHEMA loadtest; CREATE TABLE loadtest.effects (task bigint NOT NULL);
             INSERT INTO loadtest.effects SELECT generate_series(1, 100)",
        )
        .await;
    assert!(effects::all(client, 1, 100).await.unwrap().passed);
    for (wrong, right, fragment) in [
        (
            "DELETE FROM loadtest.effects WHERE task = 7",
            "INSERT INTO loadtest.effects VALUES (7)",
            "1 missing",
        ),
        (
            "INSERT INTO loadtest.effects VALUES (7)",
            "DELETE FROM loadtest.effects WHERE ctid =
            (SELECT max(ctid) FROM loadtest.effects WHERE task = 7)",
            "1 doubled",
        ),
        (
            "INSERT INTO loadtest.effects VALUES (101)",
            "DELETE FROM loadtest.effects WHERE task = 101",
            "1 without a task",
        ),
        ("UPDATE loadtest.effects SET task = 8 WHERE task = 7", "SELECT 1", "1 missing, 1 doubled"),
    ] {
        database.execute(wrong).await;
        let check = effects::all(client, 1, 100).await.unwrap();
        assert!(!check.passed && check.detail.contains(fragment), "{wrong}: {}", check.detail);
        database.execute(right).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_without_a_success_and_a_success_without_its_effect_are_found() {
    let database = Database::new().await;
    let client = database.client();
    database
        .execute("CREATE SCHEMA loadtest; CREATE TABLE loadtest.effects (task bigint NOT NULL)")
        .await;
    assert!(effects::of_successes(client).await.unwrap().passed);
    database.execute("INSERT INTO loadtest.effects VALUES (1)").await;
    let check = effects::of_successes(client).await.unwrap();
    assert!(!check.passed, "{}", check.detail);
    database.execute("TRUNCATE loadtest.effects").await;
    let worker =
        crate::harness::Worker::start(&database, &["--readers", "1", "--poll-interval", "100ms"]);
    let id = database.enqueue("SELECT 1", "").await;
    eventually("the task has succeeded", async || {
        database
            .value::<bool>(&format!(
                "SELECT EXISTS (SELECT FROM mill.attempts WHERE task_id = {id})"
            ))
            .await
    })
    .await;
    let check = effects::of_successes(client).await.unwrap();
    assert!(
        !check.passed && check.detail.contains("1 tasks succeeded, 0 effects"),
        "{}",
        check.detail
    );
    drop(worker);
}
