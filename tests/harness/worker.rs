//! Real worker processes, and workers inside the process of the tests.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use pgmill_worker::Builder;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Database, eventually};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// One process, killed on drop; its log is shown if the test fails.
pub(crate) struct Worker {
    child: Child,
    log: PathBuf,
}

impl Worker {
    /// Starts a worker on the database, with logins that have no other rights than docs/worker.md describes.
    pub(crate) fn start(database: &Database, flags: &[&str]) -> Self {
        Self::start_through(&database.worker_url(), database, flags)
    }

    /// As [`Worker::start`], with another connection string for the queue, such as that of a proxy.
    pub(crate) fn start_through(through: &str, database: &Database, flags: &[&str]) -> Self {
        let tasks = database.task_url();
        let given = flags.iter().any(|flag| flag.starts_with("--task-url"));
        let own = [("PGMILL_TASK_URL", &*tasks)];
        Self::start_with(through, flags, if given { &[] } else { &own })
    }

    /// Starts a worker on the database, as the superuser, for a reason.
    pub(crate) fn start_as_superuser(database: &Database, _reason: &str, flags: &[&str]) -> Self {
        Self::start_at(&database.url(), flags)
    }

    /// Returns the path of the program. `mutants` names another one in a variable.
    pub(crate) fn program() -> &'static str {
        static REPLACEMENT: LazyLock<Option<String>> = LazyLock::new(|| {
            #[expect(clippy::disallowed_methods, reason = "set by `mutants`")]
            std::env::var("PGMILL_TEST_WORKER").ok()
        });
        REPLACEMENT.as_deref().unwrap_or(env!("CARGO_BIN_EXE_test-worker"))
    }

    /// Starts a worker with a connection string.
    pub(crate) fn start_at(url: &str, flags: &[&str]) -> Self {
        Self::start_with(url, flags, &[])
    }

    /// Starts a worker with additional environment variables.
    pub(crate) fn start_with(url: &str, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let log_flags = ["--log-format", "text", "--log", "debug,tokio_postgres=info"];
        let count = if flags.contains(&"--log") { 2 } else { 4 };
        let flags = [&log_flags[..count], flags].concat();
        Self::start_program(Self::program(), url, &flags, variables)
    }

    /// Starts the sample of a program that embeds a worker. Its settings are variables.
    pub(crate) fn start_sample(database: &Database, variables: &[(&str, &str)]) -> Self {
        let program = env!("CARGO_BIN_EXE_test-embedded-worker");
        let tasks = database.task_url();
        let variables = [&[("PGMILL_TASK_URL", &*tasks)], variables].concat();
        Self::start_program(program, &database.worker_url(), &[], &variables)
    }

    fn start_program(program: &str, url: &str, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = std::env::temp_dir().join(format!("pgmill-test-{}-{n}.log", std::process::id()));
        let file = File::create(&log).unwrap();
        let child = Command::new(program)
            .args(flags)
            .env("DATABASE_URL", url)
            .env("PGMILL_ALLOW_SUPERUSER", "true")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Sends SIGKILL and waits until the process is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and returns the exit status.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    /// Waits until the process has ended and returns its exit status.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually(&format!("the worker ends, log {}", self.log.display()), async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    /// Returns the exit status if the process has ended.
    pub(crate) fn ended_already(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Returns the log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log contains this text.
    pub(crate) async fn until_logged(&self, text: &str) {
        eventually(&format!("the log contains \"{text}\""), async || self.log().contains(text))
            .await;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of worker {}\n{}", self.child.id(), self.log());
        }
        let _ = std::fs::remove_file(&self.log);
    }
}

/// A worker that is embedded in the process of the tests; dropped with the test's runtime.
pub(crate) struct Embedded {
    shutdown: Option<oneshot::Sender<()>>,
    running: JoinHandle<anyhow::Result<()>>,
}

impl Embedded {
    /// Starts a worker on the database, with one reader and the documented logins.
    pub(crate) fn start(database: &Database, builder: Builder) -> Self {
        Self::start_at(&database.worker_url(), &database.task_url(), builder)
    }

    /// Starts a worker with connection strings for the queue and for tasks.
    pub(crate) fn start_at(url: &str, task_url: &str, builder: Builder) -> Self {
        let builder = builder
            .database_url(url)
            .readers(1)
            .task_url(task_url)
            .setting("poll_interval", "50ms");
        let worker = builder.build().unwrap();
        let (shutdown, requested) = oneshot::channel();
        #[expect(clippy::disallowed_methods, reason = "a test ends with its runtime")]
        let running = tokio::spawn(worker.run(async {
            // A dropped sender is no request.
            if requested.await.is_err() {
                std::future::pending::<()>().await;
            }
        }));
        Self { shutdown: Some(shutdown), running }
    }

    /// Requests the shutdown.
    pub(crate) fn shut_down(&mut self) {
        self.shutdown.take().unwrap().send(()).unwrap();
    }

    /// Waits until the worker has ended, and returns its result.
    pub(crate) async fn ended(self) -> anyhow::Result<()> {
        eventually("the embedded worker ends", async || self.running.is_finished()).await;
        self.running.await.unwrap()
    }

    /// Drops the future of the worker.
    pub(crate) async fn abort(self) {
        self.running.abort();
        assert!(self.running.await.unwrap_err().is_cancelled());
    }
}

/// Several workers with the same flags, killed and replaced at random.
pub(crate) struct Fleet<'a> {
    database: &'a Database,
    flags: &'a [&'a str],
    workers: Vec<Worker>,
}

impl<'a> Fleet<'a> {
    /// Starts the workers.
    pub(crate) fn start(database: &'a Database, workers: usize, flags: &'a [&'a str]) -> Self {
        let workers = (0..workers).map(|_| Worker::start(database, flags)).collect();
        Self { database, flags, workers }
    }

    /// Sends SIGKILL to one worker and starts a replacement.
    pub(crate) fn replace(&mut self, n: usize) {
        self.workers[n].kill();
        self.workers[n] = Worker::start(self.database, self.flags);
    }

    /// Sends SIGKILL to all workers, and then starts replacements.
    pub(crate) fn replace_all(&mut self) {
        self.workers.iter_mut().for_each(Worker::kill);
        for worker in &mut self.workers {
            *worker = Worker::start(self.database, self.flags);
        }
    }

    /// Returns the number of workers.
    pub(crate) fn len(&self) -> usize {
        self.workers.len()
    }
}
