//! The workers: real processes of the program `worker`, which was built beside this one.
//!
//! Each is in a process group of its own, so that Ctrl-C reaches this program only. Dropping the fleet
//! kills what still runs.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use queue::exit;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// As short as a worker takes them: faults come every second.
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

/// How long a worker may take to end after SIGTERM: the grace, and what cancels take.
const TIMEOUT: Duration = Duration::from_secs(45);

/// If this program itself is killed, nobody stops the workers: they end by themselves.
const IDLE: &str = "--exit-when-idle=3m";

/// Running workers.
pub(crate) struct Fleet {
    program: PathBuf,
    directory: PathBuf,
    url: String,
    workers: Vec<Worker>,
    /// Told to end, and still at it.
    leaving: Vec<(Instant, Worker)>,
    started: usize,
}

/// One process.
struct Worker {
    child: Child,
    log: PathBuf,
    /// Stopped until then.
    stopped_until: Option<Instant>,
}

impl Fleet {
    /// Starts so many.
    pub(crate) fn start(url: &str, directory: PathBuf, count: usize) -> Result<Self> {
        let program = cluster::sibling_program("worker")?;
        let (workers, leaving) = (Vec::new(), Vec::new());
        let mut fleet =
            Self { program, directory, url: url.to_owned(), workers, leaving, started: 0 };
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

    /// SIGKILL for one, and a new one in its place.
    pub(crate) async fn kill(&mut self, draw: u32) -> Result<()> {
        let n = self.chosen(draw);
        self.workers[n].child.kill().await.context("could not kill a worker")?;
        self.workers[n] = self.spawn()?;
        Ok(())
    }

    /// SIGSTOP for one, and SIGCONT later: see [`supervise`](Self::supervise).
    pub(crate) fn stop(&mut self, draw: u32, time: Duration) -> Result<()> {
        let n = self.chosen(draw);
        let worker = &mut self.workers[n];
        worker.signal(Signal::STOP)?;
        worker.stopped_until = Some(Instant::now() + time);
        Ok(())
    }

    /// SIGTERM for one, and a new one in its place at once, as in a deploy.
    pub(crate) fn replace(&mut self, draw: u32) -> Result<()> {
        let n = self.chosen(draw);
        self.workers[n].resume()?;
        self.workers[n].signal(Signal::TERM)?;
        let new = self.spawn()?;
        self.leaving.push((Instant::now(), std::mem::replace(&mut self.workers[n], new)));
        Ok(())
    }

    /// Lets those go on whose time is over, and starts those again who found no server to begin with.
    ///
    /// # Errors
    /// A worker has ended that nobody told to, or has not ended that somebody did.
    pub(crate) fn supervise(&mut self) -> Result<()> {
        for n in 0..self.workers.len() {
            let worker = &mut self.workers[n];
            if worker.stopped_until.is_some_and(|until| until <= Instant::now()) {
                worker.resume()?;
            }
            match worker.child.try_wait()? {
                None => {}
                Some(status) if status.code() == Some(i32::from(exit::UNREACHABLE)) => {
                    self.workers[n] = self.spawn()?;
                }
                Some(status) => bail!("a worker ended by itself ({status}){}", worker.tail()),
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
                        "a worker still runs {TIMEOUT:?} after SIGTERM{}",
                        worker.tail()
                    ));
                }
                true
            }
        });
        late.map_or(Ok(()), |late| bail!(late))
    }

    /// Lets all go on that are stopped.
    pub(crate) fn resume(&mut self) -> Result<()> {
        self.workers.iter_mut().try_for_each(Worker::resume)
    }

    /// SIGTERM for all, and their ends.
    pub(crate) async fn end(&mut self) -> Result<()> {
        for worker in &self.workers {
            worker.signal(Signal::TERM)?;
        }
        let leaving = self.leaving.drain(..).map(|(_, worker)| worker);
        for mut worker in self.workers.drain(..).chain(leaving) {
            let Ok(status) = timeout(TIMEOUT, worker.child.wait()).await else {
                bail!("a worker still runs {TIMEOUT:?} after SIGTERM{}", worker.tail());
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

    /// How many were ever started.
    pub(crate) fn started(&self) -> usize {
        self.started
    }

    fn chosen(&self, draw: u32) -> usize {
        draw as usize % self.workers.len()
    }
}

impl Worker {
    fn signal(&self, signal: Signal) -> Result<()> {
        // One that has ended is found by `supervise`, which says how.
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
