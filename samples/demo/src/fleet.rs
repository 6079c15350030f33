//! Runs the workers: real processes of the program `worker`, built together with the demo.
//!
//! Each worker has its own process group, so that Ctrl-C reaches only the demo, and writes its log
//! into the demo's directory. Dropping the fleet kills the running workers, unless it is kept.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::shop::{ETL, FLEET, Shop};

/// Number of tasks that each worker runs at once.
pub(crate) const READERS: u32 = 4;

/// Time limit for a worker to end after SIGTERM; it holds no tasks then.
const PATIENCE: Duration = Duration::from_secs(10);

/// Flag that ends workers whose demo was killed: they finish the remaining tasks and exit. The time
/// is longer than a demo may take, so that no worker exits during the demo.
const IDLE: &str = "--exit-when-idle=90s";

pub(crate) struct Fleet {
    program: PathBuf,
    shop: Shop,
    /// Whether the workers outlive the demo.
    keep: bool,
    workers: Vec<Worker>,
}

/// One worker process.
pub(crate) struct Worker {
    /// Starts at 1; a replacement gets the next number.
    pub(crate) number: usize,
    pub(crate) pid: i32,
    pub(crate) killed: bool,
    log: PathBuf,
    child: Child,
    kept: bool,
}

impl Fleet {
    /// Creates a fleet without workers.
    pub(crate) fn new(program: PathBuf, shop: Shop, keep: bool) -> Self {
        Self { program, shop, keep, workers: Vec::new() }
    }

    /// Starts one more worker without waiting until it is ready; returns its pid.
    pub(crate) fn start_worker(&mut self) -> Result<i32> {
        let number = self.workers.len() + 1;
        let log = self.shop.directory.join(format!("worker-{number}.log"));
        let file = File::create_new(&log)?;
        let mut command = Command::new(&self.program);
        if !self.keep {
            command.arg(IDLE);
        }
        let child = command
            .args(["--readers", &READERS.to_string(), "--log-format", "text"])
            .env_clear()
            .env("DATABASE_URL", self.shop.url(FLEET))
            .env("PGMILL_TASK_URL", self.shop.url(ETL))
            .env("PGPASSFILE", &self.shop.passfile)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("could not run {}", self.program.display()))?;
        let pid =
            child.id().and_then(|pid| pid.try_into().ok()).context("the worker has no pid")?;
        self.workers.push(Worker { number, pid, killed: false, log, child, kept: false });
        Ok(pid)
    }

    /// Returns all workers ever started.
    pub(crate) fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// Sends SIGKILL, as the OOM killer does.
    pub(crate) async fn kill(&mut self, pid: i32) -> Result<()> {
        let worker = self.workers.iter_mut().find(|worker| worker.pid == pid);
        let worker = worker.context("unknown worker")?;
        worker.killed = true;
        worker.child.kill().await.context("could not kill a worker")
    }

    /// Returns an error if a worker has ended unexpectedly.
    pub(crate) fn check(&mut self) -> Result<()> {
        for worker in self.workers.iter_mut().filter(|worker| !worker.killed) {
            if let Some(status) = worker.child.try_wait()? {
                bail!(
                    "worker {} ended unexpectedly ({status}){}",
                    worker.number,
                    tail(&worker.log)
                );
            }
        }
        Ok(())
    }

    /// Sends SIGTERM to all workers and waits until they have ended.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        let mut living: Vec<&mut Worker> =
            self.workers.iter_mut().filter(|worker| !worker.killed).collect();
        for worker in &living {
            worker.terminate()?;
        }
        for worker in &mut living {
            let ended = timeout(PATIENCE, worker.child.wait()).await;
            let (number, log) = (worker.number, &worker.log);
            let Ok(status) = ended else {
                bail!("worker {number} is still running {PATIENCE:?} after SIGTERM{}", tail(log));
            };
            let status: ExitStatus = status?;
            ensure!(status.success(), "worker {number} ended with {status}{}", tail(log));
        }
        Ok(())
    }

    /// Lets the workers outlive this value.
    pub(crate) fn keep(&mut self) {
        for worker in &mut self.workers {
            worker.kept = true;
        }
    }

    /// Returns the last log lines of the running workers, for an error message.
    pub(crate) fn tails(&self) -> String {
        self.workers
            .iter()
            .filter(|worker| !worker.killed)
            .map(|worker| tail(&worker.log))
            .collect()
    }
}

impl Worker {
    fn terminate(&self) -> Result<()> {
        let pid = Pid::from_raw(self.pid).context("invalid process id")?;
        kill_process(pid, Signal::TERM).context("could not signal a worker")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.kept {
            // An error means that the process has already ended.
            let _ = self.child.start_kill();
        }
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(10)..].join("\n  ");
    let name = log.file_name().unwrap_or_default().display();
    format!("\nlast lines of {name}:\n  {last}")
}
