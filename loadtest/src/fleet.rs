//! Runs the fleet: real processes of the program `worker`.
//!
//! Each worker has its own process group, so that Ctrl-C reaches only the load test, and writes its
//! log into the load test's folder. Dropping the value kills the workers that still run. The
//! connection string, which may contain a password, is passed through the environment.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use tokio_postgres::types::{ToSql, Type};

use crate::context::RunContext;
use crate::context::database::Database;

/// Counts the sessions of workers: a connected reader is about to ask for a task.
const CONNECTED: &str = "SELECT /* loadtest.connected */ count(*) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.application_name LIKE 'pgmill reader %'";

/// Counts those of the given processes that are registered as workers.
const LISTED: &str = "SELECT /* loadtest.listed */ count(*) FROM mill.workers w JOIN mill.worker_starts s ON s.id = w.id
WHERE s.pid = ANY ($1)";

/// Maximum number of sessions that a worker opens in addition to those of its readers.
const CONTROL_SESSIONS: u32 = 8;

/// Time limit for workers to become ready, and to end after SIGTERM.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Flag that ends workers whose load test was killed. The time is longer than any scenario leaves a
/// worker idle.
const IDLE: &str = "--exit-when-idle=10m";

static NEXT: AtomicUsize = AtomicUsize::new(1);

/// Tests whether the queue is empty. Tasks are claimed in the order of their ids, so it is not empty
/// while one of the newest is present: this condition reads only one page.
const EMPTY: &str =
    "SELECT /* loadtest.empty_queue */ CASE
    WHEN EXISTS (SELECT FROM mill.tasks t WHERE t.id > (SELECT s.last_value - 50 FROM mill.tasks_id_seq s)) THEN false
    ELSE NOT EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'pending' AND t.queue = 'default')
        AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'running') END";

/// Makes [`EMPTY`] use the queue's small indexes. With millions of scheduled tasks, the planner
/// would otherwise choose a scan of the whole table, because it expects to find a pending task soon.
const BY_INDEX: &str =
    "SET /* loadtest.by_index */ enable_seqscan = off; SET enable_bitmapscan = off";

/// Estimates the number of finished tasks. The statistics may be a second old.
const GONE: &str = "SELECT /* loadtest.gone */ s.n_tup_del FROM pg_stat_user_tables s WHERE s.relid = 'mill.tasks'::regclass";

/// No finished task for this long means that a component hangs.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Size and flags of a fleet.
#[derive(Clone, Debug)]
pub(crate) struct FleetSpec {
    pub(crate) workers: u32,
    /// Readers per worker.
    pub(crate) readers: u32,
    pub(crate) flags: Vec<String>,
}

impl FleetSpec {
    /// Returns the fleet for throughput measurements: one process with 16 readers, unless the user
    /// asks for another size.
    pub(crate) fn from_options(context: &RunContext) -> Self {
        let run = &context.run;
        Self::new(run.workers.unwrap_or(1), run.common.readers.unwrap_or(16))
    }

    /// Returns a fleet of `workers` processes with `readers` readers each.
    pub(crate) fn new(workers: u32, readers: u32) -> Self {
        Self { workers, readers, flags: Vec::new() }
    }

    /// Returns the total number of readers.
    pub(crate) fn readers(&self) -> u32 {
        self.workers * self.readers
    }

    /// Describes the fleet for titles: `1 worker with 16 readers`.
    pub(crate) fn describe(&self) -> String {
        let each = if self.workers == 1 { "" } else { " each" };
        format!("{} with {} readers{each}", terminal::counted(self.workers, "worker"), self.readers)
    }
}

/// Running workers.
pub(crate) struct Fleet<'a> {
    context: &'a RunContext,
    database: &'a Database,
    fleet_spec: FleetSpec,
    workers: Vec<Worker>,
}

/// One worker process.
struct Worker {
    pid: u32,
    log: PathBuf,
    child: Child,
}

impl<'a> Fleet<'a> {
    /// Starts the workers and returns when all readers are connected.
    pub(crate) async fn start(
        context: &'a RunContext,
        database: &'a Database,
        fleet_spec: &FleetSpec,
    ) -> Result<Fleet<'a>> {
        let sessions = fleet_spec.workers * (fleet_spec.readers + CONTROL_SESSIONS);
        database.has_room(sessions).await.with_context(|| fleet_spec.describe())?;
        let mut fleet =
            Self { context, database, fleet_spec: fleet_spec.clone(), workers: Vec::new() };
        for _ in 0..fleet_spec.workers {
            fleet.start_one()?;
        }
        fleet.ready().await?;
        Ok(fleet)
    }

    /// Starts one more worker without waiting until it is ready.
    fn start_one(&mut self) -> Result<()> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = self.context.directory.join(format!("worker-{number}.log"));
        let file = File::create(&log)?;
        let program = self.context.program("worker");
        let child = Command::new(&program)
            .args([IDLE, "--readers", &self.fleet_spec.readers.to_string()])
            .args(["--log-format", "text", "--log", "warn"])
            .args(&self.fleet_spec.flags)
            .env("DATABASE_URL", self.database.url())
            .env("PGMILL_ALLOW_SUPERUSER", "true")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("could not run {}", program.display()))?;
        let pid = child.id().context("the worker has no pid")?;
        self.workers.push(Worker { pid, log, child });
        Ok(())
    }

    /// Returns when every worker is registered and every reader is connected.
    async fn ready(&mut self) -> Result<()> {
        let workers = i64::try_from(self.workers.len())?;
        let readers = i64::from(self.fleet_spec.readers) * workers;
        let pids: Vec<i32> = self.workers.iter().map(|worker| worker.pid.cast_signed()).collect();
        let begun = Instant::now();
        loop {
            let session = &self.database.session;
            let connected: i64 = session.query_typed(CONNECTED, &[]).await?[0].get(0);
            let listed: i64 =
                session.query_typed(LISTED, &[(&pids, Type::INT4_ARRAY)]).await?[0].get(0);
            if connected >= readers && listed >= workers {
                return Ok(());
            }
            self.check()?;
            ensure!(
                begun.elapsed() < TIMEOUT,
                "{connected} of {readers} readers are connected after {TIMEOUT:?}{}",
                self.tails()
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns once no task is pending in the default queue, and none is running.
    pub(crate) async fn until_empty(&mut self) -> Result<()> {
        self.until(EMPTY, &[]).await
    }

    /// Returns once the answer to the question is true. Fails if tasks stop ending.
    pub(crate) async fn until(
        &mut self,
        question: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<()> {
        let session = self.context.connect(self.database.url()).await?;
        session.batch_execute(BY_INDEX).await?;
        let question = session.prepare(question).await?;
        let (mut gone, mut read_at, mut moved_at) = (0, Instant::now(), Instant::now());
        while !session.query_one(&question, values).await?.get::<_, bool>(0) {
            self.check()?;
            if read_at.elapsed() > Duration::from_secs(1) {
                read_at = Instant::now();
                let now: i64 = session.query_typed(GONE, &[]).await?[0].get(0);
                if now > gone {
                    (gone, moved_at) = (now, Instant::now());
                }
                self.context.progress.state(&format!("about {gone} tasks have ended"));
            }
            ensure!(
                moved_at.elapsed() < STALL_TIMEOUT,
                "no task has ended for {STALL_TIMEOUT:?}{}",
                self.tails()
            );
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Returns the pids of the running workers.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.pid).collect()
    }

    /// Returns an error if a worker has ended unexpectedly.
    pub(crate) fn check(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            if let Some(status) = worker.child.try_wait()? {
                bail!("a worker ended unexpectedly ({status}){}", worker.tail());
            }
        }
        Ok(())
    }

    /// Sends a signal to all workers.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        for worker in &self.workers {
            let pid = Pid::from_raw(worker.pid.try_into()?).context("invalid process id")?;
            kill_process(pid, signal).context("could not signal a worker")?;
        }
        Ok(())
    }

    /// Sends SIGTERM to all workers and waits until they have ended.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        for worker in &mut self.workers {
            let Ok(status) = timeout(TIMEOUT, worker.child.wait()).await else {
                bail!("a worker is still running {TIMEOUT:?} after SIGTERM{}", worker.tail());
            };
            let status: ExitStatus = status?;
            ensure!(status.success(), "a worker ended with {status}{}", worker.tail());
        }
        Ok(())
    }

    /// Returns the last lines of the logs, for an error message.
    fn tails(&self) -> String {
        self.workers.iter().take(2).map(Worker::tail).collect()
    }
}

impl Worker {
    fn tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        if lines.is_empty() {
            return String::new();
        }
        let last = lines[lines.len().saturating_sub(10)..].join("\n  ");
        format!("\nlast lines of {}:\n  {last}", self.log.display())
    }
}
