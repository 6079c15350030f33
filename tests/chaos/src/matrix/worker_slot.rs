//! The slot of a worker in a cell: its connection to the server, its clock, its memory limit, and
//! its current process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use proxy::Proxy;
use rustix::process::Signal;
use tokio::time::sleep;

use super::cell::{Cell, Moment};
use super::fault::Fault;
use super::resources::clock::Clock;
use super::resources::memory::Memory;
use super::resources::scratch::signal;
use super::test_bed::{FLEET, READERS, TARGET_URL, TASKS, TestBed};

/// Time limit for a worker to end after SIGTERM. It is much longer than the worker's shutdown
/// timeout.
const TIMEOUT: Duration = Duration::from_secs(20);

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A place for one worker process. Fields are in the order in which they are dropped: the process
/// before its environment.
pub(crate) struct WorkerSlot {
    process: Option<Process>,
    /// Proxies between the worker and the servers: one for tasks, one for everything else.
    pub(crate) proxies: Option<Proxies>,
    clock: Option<Clock>,
    memory: Option<Memory>,
    log_is_full: bool,
    number: usize,
    database: String,
    flags: Vec<String>,
}

pub(crate) struct Proxies {
    pub(crate) tasks: Proxy,
    pub(crate) control: Proxy,
}

/// One process, killed on drop.
struct Process {
    child: Child,
    log: PathBuf,
}

impl WorkerSlot {
    /// Creates an empty slot with the resources that the cell's fault needs.
    pub(crate) async fn new(
        test_bed: &TestBed,
        cell: Cell,
        number: usize,
        database: &str,
    ) -> Result<Self> {
        let through = matches!(
            cell.moment,
            Moment::Claimed | Moment::CommitSent | Moment::Recording | Moment::Heartbeat
        ) || (cell.moment == Moment::Completing && test_bed.networks.is_empty())
            || cell.fault == Fault::Latency
            || cell.fault.promotes();
        let proxies = if through {
            let tasks = test_bed.tasks_target_url(database);
            let tasks = tasks.unwrap_or_else(|| test_bed.url(number, TASKS, database));
            let tasks = Proxy::start(&tasks).await?;
            let control = Proxy::start(&test_bed.url(number, FLEET, database)).await?;
            Some(Proxies { tasks, control })
        } else {
            None
        };
        let mut worker_slot = Self {
            process: None,
            proxies,
            clock: None,
            memory: None,
            log_is_full: cell.fault == Fault::LogFull,
            number,
            database: database.to_owned(),
            flags: Vec::new(),
        };
        match cell.fault {
            Fault::OutOfMemory => worker_slot.memory = Some(Memory::new()?),
            Fault::ClockAhead | Fault::ClockBehind => {
                worker_slot.clock = Some(Clock::new(&test_bed.scratch)?);
            }
            _ => {}
        }
        let grace = if cell.fault == Fault::ShutdownTimeout { "500ms" } else { "30s" };
        worker_slot.flags = ["--shutdown-timeout", grace].map(str::to_owned).to_vec();
        Ok(worker_slot)
    }

    /// Starts a worker if the slot is empty. Returns an error if a worker has ended unexpectedly.
    pub(crate) fn fill(&mut self, test_bed: &TestBed) -> Result<()> {
        if self.process.is_some() {
            ensure!(self.ended()?.is_none(), "a worker ended unexpectedly{}", self.tail());
            return Ok(());
        }
        let program = cluster::sibling_program("worker")?;
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = test_bed.scratch.path().join(format!("worker-{n}.log"));
        let place = if self.log_is_full { Path::new("/dev/full") } else { &log };
        let file = File::create(place)?;
        let [mut tasks, mut control] =
            [TASKS, FLEET].map(|login| test_bed.url(self.number, login, &self.database));
        let mut target = test_bed.tasks_target_url(&self.database);
        if let Some(proxies) = &self.proxies {
            control = proxies.control.url(&control);
            let tasks = target.as_mut().unwrap_or(&mut tasks);
            *tasks = proxies.tasks.url(tasks);
        }
        let mut command = match test_bed.networks.get(self.number) {
            Some(network) => {
                let entrance = network.entrance();
                let mut command = Command::new(entrance[0]);
                command.args(&entrance[1..]).arg(program);
                command
            }
            None => Command::new(program),
        };
        if let Some(clock) = &self.clock {
            command.envs(clock.variables());
        }
        if let Some(url) = target {
            command.arg("--config").arg(test_bed.configuration()).env(TARGET_URL, url);
        }
        let child = command
            .args([
                "--readers",
                &READERS.to_string(),
                "--heartbeat-interval",
                "1s",
                "--orphan-timeout",
                "3s",
            ])
            .args([
                "--poll-interval",
                "200ms",
                "--log-format",
                "text",
                "--log",
                "debug,tokio_postgres=info",
            ])
            .args(&self.flags)
            .env("DATABASE_URL", control)
            .env("PGMILL_ALLOW_SUPERUSER", "true")
            .env("PGMILL_TASK_URL", tasks)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .context("could not start a worker")?;
        let process = Process { child, log };
        test_bed.scratch.note(process.child.id())?;
        if let Some(memory) = &self.memory {
            memory.take(process.child.id())?;
        }
        self.process = Some(process);
        Ok(())
    }

    /// Returns the pid of the current process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.child.id())
    }

    pub(crate) fn signal(&self, what: Signal) -> Result<()> {
        match self.pid() {
            Some(pid) => signal(pid, what),
            None => bail!("there is no worker to signal"),
        }
    }

    /// Sends SIGKILL and waits; the next [`fill`](Self::fill) starts a new worker.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Waits for the process to end and returns its exit status. The slot is empty afterwards.
    pub(crate) async fn until_ended(&mut self) -> Result<ExitStatus> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                self.process = None;
                return Ok(status);
            }
            ensure!(begun.elapsed() < TIMEOUT, "a worker has not ended{}", self.tail());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sets the worker's clock off by this many seconds.
    pub(crate) fn set_clock(&self, off: i64) -> Result<()> {
        self.clock.as_ref().map_or(Ok(()), |clock| clock.set(off))
    }

    /// Returns the time by the worker's own clock, from the last line of its log.
    pub(crate) fn clock_reading(&self) -> Option<String> {
        let log = fs::read_to_string(&self.process.as_ref()?.log).ok()?;
        Some(log.lines().last()?.split_whitespace().next()?.to_owned())
    }

    /// Returns the last lines of the log, for an error message.
    pub(crate) fn tail(&self) -> String {
        let Some(process) = &self.process else { return String::new() };
        let text = fs::read_to_string(&process.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(12)..].join("\n  ");
        format!("\nlast lines of a worker's log:\n  {last}")
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        match &mut self.process {
            Some(process) => Ok(process.child.try_wait()?),
            None => Ok(None),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors mean that the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
