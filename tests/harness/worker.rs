//! Real worker processes.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use super::{Database, eventually};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// One process, killed on drop; its log is shown if the test fails.
pub(crate) struct Worker {
    child: Child,
    log: PathBuf,
}

impl Worker {
    /// Starts a worker on the database, as the superuser unless flags specify otherwise.
    pub(crate) fn start(database: &Database, flags: &[&str]) -> Self {
        Self::start_at(&database.url(), flags)
    }

    /// Returns the path of the program.
    pub(crate) fn program() -> &'static str {
        env!("CARGO_BIN_EXE_test-worker")
    }

    /// Starts a worker with a connection string.
    pub(crate) fn start_at(url: &str, flags: &[&str]) -> Self {
        Self::start_with(url, flags, &[])
    }

    /// Starts a worker with additional environment variables.
    pub(crate) fn start_with(url: &str, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = std::env::temp_dir().join(format!("pgmill-test-{}-{n}.log", std::process::id()));
        let file = File::create(&log).unwrap();
        let child = Command::new(Self::program())
            .args(["--log-format", "text"])
            .args(if flags.contains(&"--log") {
                &[][..]
            } else {
                &["--log", "debug,tokio_postgres=info"]
            })
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

    /// Returns the number of workers.
    pub(crate) fn len(&self) -> usize {
        self.workers.len()
    }
}
