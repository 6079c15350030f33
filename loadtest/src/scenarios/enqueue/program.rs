//! Measures programs from process start to end: `enqueue`, and `psql` with the same task.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::context::RunContext;
use crate::context::database::Database;
use crate::measure::latency::LatencyHistogram;

const STATEMENT: &str = "SELECT mill.enqueue('SELECT 1')";

pub(super) fn enqueue(context: &RunContext, database: &Database) -> Result<Command> {
    let mut command = Command::new(context.program("enqueue"));
    command.arg("SELECT 1").env("DATABASE_URL", database.url());
    Ok(command)
}

/// Returns the psql of the private cluster, or else the one in PATH; `None` for another server.
pub(super) fn psql(context: &RunContext) -> Option<PathBuf> {
    let same_directory = context.cluster()?.lock().binaries().directory().join("psql");
    Some(if same_directory.is_file() { same_directory } else { PathBuf::from("psql") })
}

/// Builds the psql command; the password is passed through the environment, the rest as arguments.
pub(super) fn psql_task(program: &Path, database: &Database) -> Result<Command> {
    let (before, rest) =
        database.url().split_once("//").context("the connection string is not a URL")?;
    let (credentials, place) = rest.split_once('@').context("the URL has no user")?;
    let (user, password) = credentials.split_once(':').context("the URL has no password")?;
    let mut command = Command::new(program);
    command
        .args(["--no-psqlrc", "--quiet", "--no-password", "--command", STATEMENT])
        .args(["--dbname", &format!("{before}//{user}@{place}")])
        .env("PGPASSWORD", password);
    Ok(command)
}

/// Returns the times from the start of a program to its end.
pub(super) async fn start_to_end(
    command: impl Fn() -> Result<Command>,
    starts: usize,
) -> Result<LatencyHistogram> {
    let mut times = LatencyHistogram::new()?;
    for _ in 0..starts {
        let mut command = command()?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let begun = Instant::now();
        let output = command.spawn().context("could not run a program")?.wait_with_output().await?;
        let took = begun.elapsed();
        let reported = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "a program ended with {}: {reported}", output.status);
        times.add(took.as_secs_f64() * 1000.0);
    }
    Ok(times)
}
