//! The programs a person runs, run as a person runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Database;

static NEXT: AtomicU32 = AtomicU32::new(1);

/// One run of `enqueue`, `pgmill` or `loadtest`.
pub(crate) struct Program {
    command: Command,
}

impl Program {
    /// `enqueue` with arguments, on the database.
    pub(crate) fn enqueue(database: &Database, arguments: &[&str]) -> Self {
        Self::new(env!("CARGO_BIN_EXE_test-enqueue"), &database.url(), arguments)
    }

    /// `pgmill` with arguments, on the database.
    pub(crate) fn pgmill(database: &Database, arguments: &[&str]) -> Self {
        Self::new(env!("CARGO_BIN_EXE_test-pgmill"), &database.url(), arguments)
    }

    /// `loadtest` with arguments; it measures on the database's server, with the programs in a folder.
    pub(crate) fn loadtest(database: &Database, programs: &PathFolder, arguments: &[&str]) -> Self {
        let mut program =
            Self::new(env!("CARGO_BIN_EXE_test-loadtest"), &database.url(), arguments);
        program.command.env("PGMILL_LOADTEST_URL", database.url());
        program.command.env("PGMILL_PROGRAMS", programs.path());
        program
    }

    /// The command itself, for what is done to it while it runs.
    pub(crate) fn into_command(self) -> Command {
        self.command
    }

    /// The same on another connection string.
    pub(crate) fn at(mut self, url: &str) -> Self {
        self.command.env("DATABASE_URL", url);
        self
    }

    fn new(path: &str, url: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(path);
        command.args(arguments).env("DATABASE_URL", url).stdin(Stdio::null());
        Self { command }
    }

    /// Its exit code, standard output and standard error.
    pub(crate) async fn run(mut self) -> (i32, String, String) {
        let output = tokio::task::spawn_blocking(move || self.command.output().unwrap());
        let Output { status, stdout, stderr } = output.await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap_or(-1), text(stdout), text(stderr))
    }

    /// Its standard output, if it exits with 0.
    pub(crate) async fn succeeds(self) -> String {
        let (code, stdout, stderr) = self.run().await;
        assert_eq!(code, 0, "{stdout}{stderr}");
        stdout
    }
}

/// A folder in which the programs have their own names, for PATH. Removed when dropped.
pub(crate) struct PathFolder(PathBuf);

impl PathFolder {
    /// With links to the programs that were built along with the tests.
    pub(crate) fn new() -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pgmill-test-bin-{}-{n}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for (name, program) in [
            ("worker", env!("CARGO_BIN_EXE_test-worker")),
            ("enqueue", env!("CARGO_BIN_EXE_test-enqueue")),
            ("pgmill", env!("CARGO_BIN_EXE_test-pgmill")),
        ] {
            std::os::unix::fs::symlink(program, folder.join(name)).unwrap();
        }
        Self(folder)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PathFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
