//! Runs the workers: real processes of the program `worker`, built together with this one.
//!
//! Each worker has its own process group, so that Ctrl-C reaches only this program. Dropping the
//! fleet kills the running workers.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cli::exit;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// The shortest orphan timeout that a worker accepts, because a fault occurs every second.
pub(crate) const ORPHAN_TIMEOUT: Duration = Duration::from_secs(3);
const FLAGS: &[&str] = &[
    "--heartbeat-interval",
    "1s",
    "--orphan-timeout",
    "3s",
    "--shutdown-timeout",
    "1s",
    "--readers",
    "8",
];

/// Time limit for a worker to end after SIGTERM: the shutdown timeout plus cancellation.
const TIMEOUT: Duration = Duration::from_secs(45);

/// Flag that ends workers if this program itself is killed.
const IDLE: &str = "--exit-when-idle=3m";

/// Running workers.
pub(crate) struct Fleet {
    program: PathBuf,
    directory: PathBuf,
    url: String,
    configuration: Option<PathBuf>,
    workers: Vec<Worker>,
    /// Workers that were asked to stop and are still running.
    leaving: Vec<(Instant, Worker)>,
    started: usize,
}

/// One process.
struct Worker {
    child: Child,
    log: PathBuf,
    /// Time at which a worker that SIGSTOP has frozen is resumed.
    stopped_until: Option<Instant>,
}

impl Fleet {
    /// Starts `count` workers.
    pub(crate) fn start(
        url: &str,
        directory: PathBuf,
        configuration: Option<PathBuf>,
        count: usize,
    ) -> Result<Self> {
        let program = cluster::sibling_program("worker")?;
        let (workers, leaving) = (Vec::new(), Vec::new());
        let url = url.to_owned();
        let mut fleet =
            Self { program, directory, url, configuration, workers, leaving, started: 0 };
        for _ in 0..count {
            let worker = fleet.spawn()?;
            fleet.workers.push(worker);
        }
        Ok(fleet)
    }

    fn spawn(&mut self) -> Result<Worker> {
        self.started += 1;
        let log = self.directory.join(format!("worker-{}.log", self.started));
        let child = Command::new(&self.program)
            .args(FLAGS)
            .args(
                self.configuration.iter().flat_map(|file| ["--config".as_ref(), file.as_os_str()]),
            )
            .args([IDLE, "--log-format", "text", "--log", "info"])
            .env_clear()
            .env("DATABASE_URL", &self.url)
            .env("PGMILL_ALLOW_SUPERUSER", "true")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("could not run {}", self.program.display()))?;
        Ok(Worker { child, log, stopped_until: None })
    }

    /// Sends SIGKILL to one worker and starts a replacement.
    pub(crate) async fn kill(&mut self, draw: u32) -> Result<()> {
        let n = self.chosen(draw);
        self.workers[n].child.kill().await.context("could not kill a worker")?;
        self.workers[n] = self.spawn()?;
        Ok(())
    }

    /// Sends SIGSTOP to one worker; [`supervise`](Self::supervise) sends SIGCONT later.
    pub(crate) fn stop(&mut self, draw: u32, time: Duration) -> Result<()> {
        let n = self.chosen(draw);
        let worker = &mut self.workers[n];
        worker.signal(Signal::STOP)?;
        worker.stopped_until = Some(Instant::now() + time);
        Ok(())
    }

    /// Sends SIGTERM to one worker and starts a replacement at once, as in a deploy.
    pub(crate) fn replace(&mut self, draw: u32) -> Result<()> {
        let n = self.chosen(draw);
        self.workers[n].resume()?;
        self.workers[n].signal(Signal::TERM)?;
        let new = self.spawn()?;
        self.leaving.push((Instant::now(), std::mem::replace(&mut self.workers[n], new)));
        Ok(())
    }

    /// Resumes frozen workers whose time is over, and restarts workers that found no server when
    /// they started.
    ///
    /// # Errors
    /// Returns an error if a worker has ended unexpectedly, or has not ended after SIGTERM.
    pub(crate) fn supervise(&mut self) -> Result<()> {
        for n in 0..self.workers.len() {
            let worker = &mut self.workers[n];
            if worker.stopped_until.is_some_and(|until| until <= Instant::now()) {
                worker.resume()?;
            }
            match worker.child.try_wait()? {
                None => {}
                Some(status) if status.code() == Some(i32::from(exit::TEMPORARY)) => {
                    self.workers[n] = self.spawn()?;
                }
                Some(status) => bail!("a worker ended unexpectedly ({status}){}", worker.tail()),
            }
        }
        let mut late = None;
        self.leaving.retain_mut(|(since, worker)| match worker.child.try_wait() {
            Ok(Some(status)) => {
                if !status.success() {
                    late = Some(format!(
                        "a worker ended with {status} after SIGTERM{}",
                        worker.tail()
                    ));
                }
                false
            }
            _ => {
                if since.elapsed() > TIMEOUT {
                    late = Some(format!(
                        "a worker is still running {TIMEOUT:?} after SIGTERM{}",
                        worker.tail()
                    ));
                }
                true
            }
        });
        late.map_or(Ok(()), |late| bail!(late))
    }

    /// Resumes all frozen workers.
    pub(crate) fn resume(&mut self) -> Result<()> {
        self.workers.iter_mut().try_for_each(Worker::resume)
    }

    /// Sends SIGTERM to all workers and waits until they have ended.
    pub(crate) async fn end(&mut self) -> Result<()> {
        for worker in &self.workers {
            worker.signal(Signal::TERM)?;
        }
        let leaving = self.leaving.drain(..).map(|(_, worker)| worker);
        for mut worker in self.workers.drain(..).chain(leaving) {
            let Ok(status) = timeout(TIMEOUT, worker.child.wait()).await else {
                bail!("a worker is still running {TIMEOUT:?} after SIGTERM{}", worker.tail());
            };
            let status = status?;
            ensure!(
                status.success(),
                "a worker ended with {status} after SIGTERM{}",
                worker.tail()
            );
        }
        Ok(())
    }

    /// Returns the number of workers ever started.
    pub(crate) fn started(&self) -> usize {
        self.started
    }

    fn chosen(&self, draw: u32) -> usize {
        draw as usize % self.workers.len()
    }
}

impl Worker {
    fn signal(&self, signal: Signal) -> Result<()> {
        // `supervise` finds a worker that has ended and reports its status.
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            kill_process(pid, signal).context("could not signal a worker")?;
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<()> {
        if self.stopped_until.take().is_some() { self.signal(Signal::CONT) } else { Ok(()) }
    }

    fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!(
            "\nlast lines of its log:\n  {}",
            lines[lines.len().saturating_sub(20)..].join("\n  ")
        )
    }
}
