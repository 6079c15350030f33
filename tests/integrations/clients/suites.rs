//! The test suites of the clients in other languages, and of the samples that use them.
//!
//! They need Python 3.11 with the packages of `clients/python/tools.txt`, and Node.js 20 with those of
//! `clients/typescript/package-lock.json`; `make clients-check` installs them and runs these tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use tokio::task::spawn_blocking;

use crate::harness::{Database, Worker};
use crate::project::tidy::root;

/// Folder in which `make clients-check` installs.
fn tools(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("tools").join(name)
}

/// Runs the command against a database with one worker, and fails if the command fails.
async fn run_suite(mut command: Command) {
    let database = Database::new().await;
    let mut worker = Worker::start(&database, &["--readers", "4"]);
    command.env("DATABASE_URL", database.url());
    let shown = format!("{}", command.get_program().display());
    let status = spawn_blocking(move || command.status()).await.unwrap();
    let status = status.unwrap_or_else(|e| panic!("{shown}: {e}; make clients-check installs it"));
    assert!(status.success(), "{shown} reports failures");
    assert!(worker.terminate().await.success());
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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs packages: make clients-check"]
async fn clients_check_typescript() {
    let mut command = Command::new("npm");
    command.args(["test", "--silent"]);
    command.current_dir(tools("clients-typescript").join("typescript"));
    run_suite(command).await;
}
