//! The test suites of the clients in other languages, and of the samples that use them.
//!
//! They need Python 3.11 with the packages of `clients/python/tools.txt`, and Node.js 20 with those of
//! `clients/typescript/package-lock.json`; `make clients-check` installs them and runs these tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tokio::task::spawn_blocking;

use crate::harness::{Database, PrivateDatabase, Worker};
use crate::project::tidy::root;
use crate::security::planted::{called_by_clients, plant};

/// Folder in which `make clients-check` installs.
fn tools(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("tools").join(name)
}

/// Runs the command against a database with one worker, and fails if the command fails.
async fn run_suite(command: Command) {
    let database = Database::new().await;
    let program = command.get_program().display().to_string();
    assert!(suite_passes(command, &database).await, "{program} reports failures");
}

async fn suite_passes(mut command: Command, database: &Database) -> bool {
    let mut worker = Worker::start(database, &["--readers", "4"]);
    command.env("DATABASE_URL", database.url());
    let program = command.get_program().display().to_string();
    let status = spawn_blocking(move || command.status()).await.unwrap();
    let status =
        status.unwrap_or_else(|e| panic!("{program}: {e}; make clients-check installs it"));
    assert!(worker.terminate().await.success());
    status.success()
}

fn pytest(folder: &str) -> Command {
    let mut command = Command::new(tools("clients-python").join("bin/python"));
    command.args(["-m", "pytest", "-q"]).current_dir(root().join(folder));
    command.env("PYTHONPATH", root().join("clients/python/src"));
    // Nothing is written into the source tree.
    command.env("PYTHONDONTWRITEBYTECODE", "1").args(["-p", "no:cacheprovider"]);
    command
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs packages: make clients-check"]
async fn clients_check_python() {
    run_suite(pytest("clients/python")).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs packages: make clients-check"]
async fn clients_check_samples() {
    run_suite(pytest("samples/python")).await;
}

fn npm_test() -> Command {
    let mut command = Command::new("npm");
    command.args(["test", "--silent"]);
    command.current_dir(tools("clients-typescript").join("typescript"));
    command
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs packages: make clients-check"]
async fn clients_check_typescript() {
    run_suite(npm_test()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs packages: make clients-check"]
async fn clients_check_no_client_calls_what_a_task_has_planted() {
    let settings = [("log_statement", "all"), ("log_min_error_statement", "log")];
    for mut suite in [pytest("clients/python"), npm_test()] {
        suite.stdout(Stdio::null()).stderr(Stdio::null());
        let private = PrivateDatabase::new(&settings).await;
        plant(&private.database, called_by_clients()).await;
        // Cases fail, because the queries with which the suites look at the tables use planted operators.
        suite_passes(suite, &private.database).await;
        let log = std::fs::read_to_string(private.cluster.log()).unwrap();
        let called: Vec<&str> = log.split("planted: ").skip(1).collect();
        assert!(!called.is_empty(), "nothing was planted");
        let of_client = |it: &&&str| {
            let statement = it.split_once("STATEMENT:").map(|(_, statement)| statement);
            statement.is_some_and(|it| it.lines().next().unwrap_or_default().contains("/* pgmill."))
        };
        assert_eq!(called.iter().filter(of_client).collect::<Vec<_>>(), [&""; 0]);
        for name in
            "enqueue enqueue_many task history why wait cancel retry start_run wait_run".split(' ')
        {
            assert!(log.contains(&format!("/* pgmill.{name} */")), "{name} was not called");
        }
    }
}
