//! Runs the workers: real processes of the program `worker`, built together with this one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

const WORKERS: usize = 3;
const READERS: &str = "7";

/// Time limit for a worker to end after SIGTERM.
const TIMEOUT: Duration = Duration::from_secs(45);

/// Flag that ends workers if this program itself is killed.
const IDLE: &str = "--exit-when-idle=3m";

/// The workers, each with its process group, so that Ctrl-C reaches only this program. Dropping the
/// value kills them.
pub(crate) struct Fleet {
    workers: Vec<(Child, PathBuf)>,
}

impl Fleet {
    /// Starts the workers with the default settings, apart from the number of readers.
    pub(crate) fn start(url: &str, logs: &Path, trial: usize) -> Result<Self> {
        let program = cluster::sibling_program("worker")?;
        let mut workers = Vec::new();
        for n in 1..=WORKERS {
            let log = logs.join(format!("trial-{trial}-worker-{n}.log"));
            let child = Command::new(&program)
                .args(["--readers", READERS, IDLE, "--log-format", "text", "--log", "info"])
                .env_clear()
                .env("DATABASE_URL", url)
                .env("PGMILL_ALLOW_SUPERUSER", "true")
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(File::create(&log)?)
                .kill_on_drop(true)
                .spawn()
                .with_context(|| format!("could not run {}", program.display()))?;
            workers.push((child, log));
        }
        Ok(Self { workers })
    }

    /// Returns an error if a worker has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        for (child, log) in &mut self.workers {
            if let Some(status) = child.try_wait()? {
                bail!("a worker ended unexpectedly ({status})\n{}", tail(log));
            }
        }
        Ok(())
    }

    /// Returns the last lines of all logs.
    pub(crate) fn tails(&self) -> String {
        self.workers.iter().map(|(_, log)| tail(log)).collect::<Vec<_>>().join("\n")
    }

    /// Sends SIGTERM to all workers and waits until they have ended.
    pub(crate) async fn end(mut self) -> Result<()> {
        for (child, _) in &self.workers {
            if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
                kill_process(pid, Signal::TERM).context("could not signal a worker")?;
            }
        }
        for (child, log) in &mut self.workers {
            let Ok(status) = timeout(TIMEOUT, child.wait()).await else {
                bail!("a worker is still running {TIMEOUT:?} after SIGTERM\n{}", tail(log));
            };
            let status = status?;
            ensure!(status.success(), "a worker ended with {status} after SIGTERM\n{}", tail(log));
        }
        Ok(())
    }
}

/// Returns the name of a log and its last lines.
pub(crate) fn tail(log: &Path) -> String {
    const LINES: usize = 15;
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n  ");
    format!("last lines of {}:\n  {last}", log.display())
}
