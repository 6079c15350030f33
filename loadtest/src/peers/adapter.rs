//! Runs the adapter program of a peer. Each step starts the program once, with the step and its
//! numbers as arguments; the program prints one line of JSON:
//!
//! ```text
//! setup                            {}
//! enqueue FIRST COUNT              {}                    fastest bulk method
//! enqueue-paced FIRST COUNT GAP_MS {"committed_at": […]} one at a time, with pauses
//! work TABLE COUNT LIMIT_S         {"done": …}           a worker, until COUNT jobs are done
//! ```
//!
//! `DATABASE_URL` holds the connection string, `PEER_SETTINGS` the settings. A step that fails
//! exits with a non-zero code and writes the reason to standard error.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::catalog::{Peer, Variant};
use crate::context::database::Database;

/// Time limit of every step except `work`.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// An installed peer.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) peer: &'static Peer,
    program: PathBuf,
    script: Option<PathBuf>,
}

/// A peer in one configuration and a database.
pub(crate) struct Installed<'a> {
    adapter: &'a Adapter,
    url: &'a str,
    settings: String,
}

/// Result of `setup` and `enqueue`.
#[derive(Debug, Deserialize)]
pub(crate) struct Done {}

/// Result of `enqueue-paced`: reply times in seconds since the epoch.
#[derive(Debug, Deserialize)]
pub(crate) struct Committed {
    pub(crate) committed_at: Vec<f64>,
}

/// Result of `work`.
#[derive(Debug, Deserialize)]
pub(crate) struct WorkSummary {
    pub(crate) done: i64,
}

/// A running step.
#[derive(Debug)]
pub(crate) struct Step {
    child: Child,
    name: String,
}

impl Adapter {
    pub(crate) fn new(peer: &'static Peer, program: PathBuf, script: Option<PathBuf>) -> Self {
        Self { peer, program, script }
    }

    /// Returns the peer in this configuration and database.
    pub(crate) fn on<'a>(&'a self, database: &'a Database, variant: &Variant) -> Installed<'a> {
        Installed { adapter: self, url: database.url(), settings: variant.settings.to_string() }
    }
}

impl Installed<'_> {
    /// Creates the peer's own schema.
    pub(crate) async fn set_up(&self) -> Result<()> {
        let Done {} = self.step("setup", TIMEOUT).await?;
        Ok(())
    }

    /// Runs a step to completion.
    ///
    /// # Errors
    /// Returns an error if the step cannot be started, fails, prints an unexpected result, or takes
    /// longer than `patience`.
    pub(crate) async fn step<A: DeserializeOwned>(
        &self,
        words: &str,
        patience: Duration,
    ) -> Result<A> {
        self.start(words)?.end(patience).await
    }

    /// Starts a step. Dropping the value kills the process.
    pub(crate) fn start(&self, words: &str) -> Result<Step> {
        let child = Command::new(&self.adapter.program)
            .args(&self.adapter.script)
            .args(words.split(' '))
            .env("DATABASE_URL", self.url)
            .env("PEER_SETTINGS", &self.settings)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| {
                format!("could not start the adapter of {}", self.adapter.peer.name)
            })?;
        Ok(Step { child, name: words.to_owned() })
    }
}

impl Step {
    /// Returns an error with the last output if the step has ended.
    pub(crate) async fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let mut printed = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            stderr.read_to_string(&mut printed).await?;
        }
        bail!("\"{}\" ended unexpectedly, {status}: {}", self.name, last_lines(&printed, 5))
    }

    /// Waits for the result.
    pub(crate) async fn end<A: DeserializeOwned>(self, patience: Duration) -> Result<A> {
        let Self { child, name } = self;
        let Ok(output) = timeout(patience, child.wait_with_output()).await else {
            bail!("\"{name}\" took more than {patience:?}");
        };
        let output = output?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        answer(output.status, &text(&output.stdout), &text(&output.stderr))
            .with_context(|| format!("\"{name}\""))
    }
}

/// Parses the output of a step.
fn answer<A: DeserializeOwned>(status: ExitStatus, stdout: &str, stderr: &str) -> Result<A> {
    ensure!(status.success(), "{status}: {}", last_lines(stderr, 5));
    let line = stdout.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("unexpected output: \"{line}\""))
}

/// Returns the last non-empty lines joined into one line.
pub(super) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("; ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn status(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn the_last_line_is_the_answer() {
        let worked: WorkSummary =
            answer(status(0), "a peer's own chatter\n{\"done\": 7, \"seconds\": 1.5}\n\n", "")
                .unwrap();
        assert_eq!(worked.done, 7);
        let _: Done = answer(status(0), "{}\n", "a warning").unwrap();
        for wrong in ["", "done\n", "{\"seconds\": 1}\n"] {
            answer::<WorkSummary>(status(0), wrong, "").unwrap_err();
        }
    }

    #[test]
    fn a_step_that_fails_says_why() {
        let failed = answer::<Done>(status(1), "{}", "at line 7\n\nno such table\n").unwrap_err();
        assert_eq!(failed.to_string(), "exit status: 1: at line 7; no such table");
    }

    #[tokio::test]
    async fn a_step_that_hangs_is_ended() {
        let peer = &super::super::catalog::PEERS[0];
        let adapter = |program: &str| Adapter::new(peer, program.into(), None);
        let on = |adapter| Installed { adapter, url: "", settings: "{}".to_owned() };
        let (hangs, ends, missing) = (adapter("sleep"), adapter("ls"), adapter("no-such-program"));
        let took = on(&hangs).step::<Done>("60", Duration::from_millis(50)).await;
        assert_eq!(took.unwrap_err().to_string(), "\"60\" took more than 50ms");
        let mut step = on(&ends).start("/no/such/folder").unwrap();
        let begun = std::time::Instant::now();
        let early = loop {
            match step.check().await {
                Ok(()) => assert!(begun.elapsed() < TIMEOUT),
                Err(error) => break error.to_string(),
            }
            tokio::task::yield_now().await;
        };
        assert!(
            early.contains("ended unexpectedly") && early.contains("/no/such/folder"),
            "{early}"
        );
        on(&missing).step::<Done>("setup", TIMEOUT).await.unwrap_err();
    }
}
