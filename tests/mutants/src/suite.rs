//! The test suite: builds it, and runs some of its tests against a mutant.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cluster::{Cluster, remove_variables_of_cargo};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStdout, Command};

use crate::session::Session;

/// Tests that compare the installed schema with the files. They would find every mutant of the
/// schema, by its text and not by its effect.
const TEXT_ONLY: [&str; 3] =
    ["project::", "the_doctor_finds_drift", "guarantees::server::restore::"];

/// The tests, as one program.
pub(crate) struct Suite {
    program: PathBuf,
    /// Folder of the crate.
    folder: PathBuf,
    cluster: Cluster,
}

/// How the product under test is replaced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replacement {
    /// File with the whole schema.
    pub(crate) schema: Option<PathBuf>,
    /// Program of the worker.
    pub(crate) worker: Option<PathBuf>,
}

/// Outcome of some tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This test failed. The others were stopped.
    Failed(String),
    /// All tests passed.
    Passed,
    /// Some tests had not ended at the time limit.
    TimeLimit,
}

/// A message of `cargo --message-format=json`.
#[derive(Deserialize)]
pub(crate) struct Artifact {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Returns the program of this target in the output of cargo.
pub(crate) fn executable(output: &[u8], target: &str) -> Option<PathBuf> {
    let lines = output.split(|byte| *byte == b'\n');
    let artifacts = lines.filter_map(|line| serde_json::from_slice::<Artifact>(line).ok());
    artifacts
        .filter(|artifact| artifact.target.as_ref().is_some_and(|found| found.name == target))
        .find_map(|artifact| artifact.executable)
}

/// Returns a command that builds with the environment of a cargo that a user starts.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new("cargo");
    remove_variables_of_cargo(&mut command);
    command
}

impl Suite {
    /// Builds the tests as `make test` does, and copies them to `copy`, so that a later build does not
    /// replace them.
    ///
    /// # Errors
    /// Returns an error if the build fails.
    pub(crate) async fn build(repository: &Path, copy: &Path, cluster: Cluster) -> Result<Self> {
        let output = cargo()
            .args(["test", "--locked", "--workspace", "--no-run"])
            .arg("--message-format=json-render-diagnostics")
            .current_dir(repository)
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output()
            .await
            .context("cargo test --no-run")?;
        ensure!(output.status.success(), "the tests cannot be built");
        let built = executable(&output.stdout, "promises").context("cargo names no tests")?;
        let program = copy.with_extension(std::process::id().to_string());
        std::fs::copy(built, &program).with_context(|| program.display().to_string())?;
        Ok(Self { program, folder: repository.join("tests"), cluster })
    }

    /// Runs the tests with these names. Stops at the first failure.
    ///
    /// # Errors
    /// Returns an error if the tests cannot be run, or one of the names belongs to no test.
    pub(crate) async fn run(
        &self,
        tests: &[String],
        product: &Replacement,
        limit: Duration,
    ) -> Result<Verdict> {
        let mut command = Command::new(&self.program);
        command.arg("--exact").args(tests);
        self.evaluate(command, product, limit, Some(tests.len())).await
    }

    /// Runs all tests except those that would find every mutant.
    ///
    /// # Errors
    /// Returns an error if the tests cannot be run.
    pub(crate) async fn run_all(&self, product: &Replacement, limit: Duration) -> Result<Verdict> {
        let mut command = Command::new(&self.program);
        command.args(TEXT_ONLY.iter().flat_map(|filter| ["--skip", filter]));
        self.evaluate(command, product, limit, None).await
    }

    async fn evaluate(
        &self,
        mut command: Command,
        product: &Replacement,
        limit: Duration,
        expected: Option<usize>,
    ) -> Result<Verdict> {
        command
            .args(["--test-threads", "4"])
            .env("PGMILL_TEST_URL", self.cluster.url("postgres"))
            .env("PGMILL_PG_BIN", self.cluster.binaries().directory())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // As cargo does; tests read files of the repository.
            .current_dir(&self.folder)
            .process_group(0);
        if let Some(schema) = &product.schema {
            command.env("PGMILL_TEST_SCHEMA", schema);
        }
        if let Some(worker) = &product.worker {
            command.env("PGMILL_TEST_WORKER", worker);
        }
        let mut child = command.spawn().with_context(|| self.program.display().to_string())?;
        let id = child.id().context("the tests have ended")?;
        let group = Group(Pid::from_raw(id.cast_signed()).context("no process id")?);
        let stdout = child.stdout.take().context("no output")?;
        let judged = tokio::time::timeout(limit, verdict(stdout, expected)).await;
        // Ends the workers that the tests have started, too.
        drop(group);
        let status = child.wait().await?;
        self.remove_databases(id).await?;
        match judged {
            Err(_) => Ok(Verdict::TimeLimit),
            Ok(Ok(Some(verdict))) => Ok(verdict),
            Ok(Ok(None)) => bail!("the tests ended without a result: {status}"),
            Ok(Err(error)) => Err(error),
        }
    }

    /// Removes the databases of tests that were stopped.
    async fn remove_databases(&self, process: u32) -> Result<()> {
        let session = Session::open(&self.cluster.url("postgres")).await?;
        for kind in ["test", "template"] {
            session.drop_databases(&format!("mill_{kind}_{process}")).await?;
        }
        Ok(())
    }
}

impl Drop for Suite {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.program);
    }
}

/// Reads the output of the tests up to the first failure. Returns `None` if it ends before.
async fn verdict(stdout: ChildStdout, expected: Option<usize>) -> Result<Option<Verdict>> {
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next_line().await? {
        if let (Some(count), Some(expected)) = (count(&line), expected) {
            ensure!(count == expected, "the suite has {count} of the {expected} tests");
        }
        if let Some(test) = failed(&line) {
            return Ok(Some(Verdict::Failed(test.to_owned())));
        }
        if line.starts_with("test result: ok") {
            return Ok(Some(Verdict::Passed));
        }
    }
    Ok(None)
}

/// Returns the number in `running 3 tests`.
fn count(line: &str) -> Option<usize> {
    line.strip_prefix("running ")?.split(' ').next()?.parse().ok()
}

/// Returns the name of the test in `test NAME ... FAILED`.
fn failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// A process group, which ends with the value.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        // The group may be empty already.
        let _: Result<(), io::Error> =
            kill_process_group(self.0, Signal::KILL).map_err(io::Error::from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_suite_is_understood() {
        assert_eq!(count("running 2 tests"), Some(2));
        assert_eq!(count("running 1 test"), Some(1));
        assert_eq!(failed("test a::b ... FAILED"), Some("a::b"));
        assert_eq!(failed("test a::b ... ok"), None);
        assert_eq!(failed("test result: FAILED. 1 passed"), None);
    }

    #[test]
    fn the_program_of_a_target_is_found_in_the_output_of_cargo() {
        let output = br#"{"reason":"compiler-artifact","target":{"name":"a"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"a"},"executable":"/x"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(output, "a"), Some(PathBuf::from("/x")));
        assert_eq!(executable(output, "b"), None);
    }
}
