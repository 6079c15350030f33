//! Command-line programs, run as a user runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Database, Worker};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// One run of `enqueue`, `pgmill` or `loadtest`.
pub(crate) struct Program {
    command: Command,
}

impl Program {
    /// Prepares `enqueue` with arguments for the database, as a producer.
    pub(crate) fn enqueue(database: &Database, arguments: &[&str]) -> Self {
        Self::new(env!("CARGO_BIN_EXE_test-enqueue"), &database.producer_url(), arguments)
    }

    /// Prepares `pgmill` with arguments for the database, as an operator.
    pub(crate) fn pgmill(database: &Database, arguments: &[&str]) -> Self {
        Self::new(env!("CARGO_BIN_EXE_test-pgmill"), &database.operator_url(), arguments)
    }

    /// As [`Program::pgmill`], as the owner of the schema, who declares profiles and targets.
    pub(crate) fn pgmill_as_owner(database: &Database, arguments: &[&str]) -> Self {
        Self::pgmill(database, arguments).at(&database.owner_url())
    }

    /// Prepares `pgmill init` for the database, as the superuser.
    pub(crate) fn init(database: &Database) -> Self {
        Self::pgmill(database, &["init"]).by_superuser(database, "applies the schema")
    }

    /// Prepares `loadtest` with arguments. It measures on the database's server, with the programs
    /// of the folder.
    pub(crate) fn loadtest(database: &Database, programs: &PathFolder, arguments: &[&str]) -> Self {
        let mut program =
            Self::new(env!("CARGO_BIN_EXE_test-loadtest"), &database.url(), arguments);
        program.command.env("PGMILL_LOADTEST_URL", database.url());
        program.command.env("PGMILL_PROGRAMS", programs.path());
        program
    }

    /// Returns the command, for tests that interact with the running process.
    pub(crate) fn into_command(self) -> Command {
        self.command
    }

    /// Connects as the superuser, for a reason.
    pub(crate) fn by_superuser(self, database: &Database, _reason: &str) -> Self {
        self.at(&database.url())
    }

    /// Uses another connection string.
    pub(crate) fn at(mut self, url: &str) -> Self {
        self.command.env("DATABASE_URL", url);
        self
    }

    fn new(path: &str, url: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(path);
        command.args(arguments).env("DATABASE_URL", url).stdin(Stdio::null());
        Self { command }
    }

    /// Returns exit code, standard output and standard error.
    pub(crate) async fn run(mut self) -> (i32, String, String) {
        let output = tokio::task::spawn_blocking(move || self.command.output().unwrap());
        let Output { status, stdout, stderr } = output.await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap_or(-1), text(stdout), text(stderr))
    }

    /// Returns standard output; asserts that the program exits with 0.
    pub(crate) async fn succeeds(self) -> String {
        let (code, stdout, stderr) = self.run().await;
        assert_eq!(code, 0, "{stdout}{stderr}");
        stdout
    }
}

/// A folder for PATH that contains the programs under their own names. Removed on drop.
pub(crate) struct PathFolder(PathBuf);

impl PathFolder {
    /// Creates links to the programs that were built together with the tests.
    pub(crate) fn new() -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pgmill-test-bin-{}-{n}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for (name, program) in [
            ("worker", Worker::program()),
            ("enqueue", env!("CARGO_BIN_EXE_test-enqueue")),
            ("pgmill", env!("CARGO_BIN_EXE_test-pgmill")),
        ] {
            std::os::unix::fs::symlink(program, folder.join(name)).unwrap();
        }
        Self(folder)
    }

    /// Returns the path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PathFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
