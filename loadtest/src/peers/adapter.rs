//! Runs the adapter program of a peer. Each step starts the program once, with the step and its
//! numbers as arguments; the program prints one line of JSON:
//!
//! ```text
//! setup                                  {}
//! enqueue FIRST COUNT                    {"seconds": …}       fastest bulk method
//! enqueue-single FIRST COUNT CONNECTIONS {"seconds": …}       one job per call
//! enqueue-paced FIRST COUNT GAP_MS       {"committed_at": […]} one at a time, with pauses
//! work TABLE COUNT LIMIT_S               {"done": …}          a worker, until COUNT jobs are done
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

use super::catalog::Peer;
use super::install::last_lines;

/// Time limit of every step except `work`.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// An installed peer.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) peer: &'static Peer,
    program: PathBuf,
    script: Option<PathBuf>,
}

/// Database and settings of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepContext<'a> {
    pub(crate) url: &'a str,
    pub(crate) settings: &'a str,
}

/// Result of `setup`.
#[derive(Debug, Deserialize)]
pub(crate) struct SetupDone {}

/// Result of the steps that enqueue.
#[derive(Debug, Deserialize)]
pub(crate) struct EnqueueTime {
    pub(crate) seconds: f64,
}

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

    /// Runs a step to completion.
    ///
    /// # Errors
    /// Returns an error if the step cannot be started, fails, prints an unexpected result, or takes
    /// longer than `patience`.
    pub(crate) async fn step<A: DeserializeOwned>(
        &self,
        step_context: StepContext<'_>,
        words: &str,
        patience: Duration,
    ) -> Result<A> {
        self.start(step_context, words)?.end(patience).await
    }

    /// Starts a step. Dropping the value kills the process.
    pub(crate) fn start(&self, step_context: StepContext<'_>, words: &str) -> Result<Step> {
        let child = Command::new(&self.program)
            .args(&self.script)
            .args(words.split(' '))
            .env("DATABASE_URL", step_context.url)
            .env("PEER_SETTINGS", step_context.settings)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("could not start the adapter of {}", self.peer.name))?;
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
        let _: SetupDone = answer(status(0), "{}\n", "a warning").unwrap();
        for wrong in ["", "done\n", "{\"seconds\": 1}\n"] {
            answer::<WorkSummary>(status(0), wrong, "").unwrap_err();
        }
    }

    #[test]
    fn a_step_that_fails_says_why() {
        let failed =
            answer::<SetupDone>(status(1), "{}", "at line 7\n\nno such table\n").unwrap_err();
        assert_eq!(failed.to_string(), "exit status: 1: at line 7; no such table");
    }

    #[tokio::test]
    async fn a_step_that_hangs_is_ended() {
        let peer = super::super::catalog::PEERS[0];
        let step_context = StepContext { url: "", settings: "{}" };
        let hangs = Adapter::new(peer, "sleep".into(), None);
        let took = hangs.step::<SetupDone>(step_context, "60", Duration::from_millis(50)).await;
        assert_eq!(took.unwrap_err().to_string(), "\"60\" took more than 50ms");
        let ends = Adapter::new(peer, "ls".into(), None);
        let mut step = ends.start(step_context, "/no/such/folder").unwrap();
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
        let missing = Adapter::new(peer, "no-such-program".into(), None);
        missing.step::<SetupDone>(step_context, "setup", TIMEOUT).await.unwrap_err();
    }
}
