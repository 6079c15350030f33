//! Run environment: a private cluster or the given server, the programs, and the log folder.
//!
//! | part | file |
//! |---|---|
//! | connection with its driver, which ends when the value is dropped | `session` |
//! | database with the queue's schema and the measurement tables, and their tasks | `database` |
//! | progress on standard error, apart from the results | `progress` |

pub(crate) mod database;
pub(crate) mod progress;
pub(crate) mod session;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::{Binaries, Cluster, Options};
use conninfo::Environment;
use parking_lot::Mutex;
use terminal::print_stderr;

use crate::args::Run;
use crate::context::database::Database;
use crate::context::progress::Progress;
use crate::context::session::Session;
use crate::result::Scenario;

/// Settings of the private cluster that differ from PostgreSQL's defaults, the same for all cases.
///
/// Commits are durable. There are enough connections for 64 workers and their readers. Ten million
/// tasks need memory, and so much WAL between checkpoints that no checkpoint slows down some of the
/// rounds.
const SETTINGS: &[(&str, &str)] = &[
    ("max_connections", "1000"),
    ("shared_buffers", "1GB"),
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "30min"),
];

/// Loads pg_stat_statements, which counts statements and their buffers; omitted if the server lacks
/// the library.
const STATEMENTS: &[(&str, &str)] =
    &[("shared_preload_libraries", "pg_stat_statements"), ("pg_stat_statements.track", "top")];

/// Environment shared by all scenarios.
pub(crate) struct RunContext {
    /// Parsed command line.
    pub(crate) run: Run,
    /// Progress display for the user.
    pub(crate) progress: Progress,
    /// Scratch folder of this process, removed at the end.
    pub(crate) directory: PathBuf,
    environment: Environment,
    programs: PathBuf,
    server: Server,
    /// Databases created by this process; dropped at the end, including after a failure.
    databases: Mutex<Vec<String>>,
    /// Scenario in progress with its completed rounds.
    so_far: Mutex<Scenario>,
}

enum Server {
    Own(Arc<Mutex<Cluster>>),
    Given(String),
}

impl RunContext {
    /// Finds the programs, and starts a cluster unless a server was given. Blocks.
    ///
    /// # Errors
    /// Returns an error if a program is not built, or no server can be found or started.
    pub(crate) fn open(run: Run) -> Result<Self> {
        let programs = match &run.common.programs {
            Some(folder) => folder.clone(),
            None => {
                let own =
                    std::env::current_exe().context("cannot determine the path of this program")?;
                own.parent().context("cannot determine the folder of this program")?.to_path_buf()
            }
        };
        for name in ["worker", "enqueue"] {
            ensure!(
                programs.join(name).is_file(),
                "program `{name}` not found in {}; run `cargo build --release --workspace`",
                programs.display()
            );
        }
        let (server, environment) = match &run.database_url {
            Some(url) => (Server::Given(url.clone()), Environment::from_process()),
            None => (Server::Own(Arc::new(start(&run)?)), no_environment()),
        };
        let directory =
            std::env::temp_dir().join(format!("pgmill-loadtest-{}", std::process::id()));
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("could not create {}", directory.display()))?;
        let progress = Progress::new();
        let (databases, so_far) = (Mutex::default(), Mutex::default());
        Ok(Self { run, progress, directory, environment, programs, server, databases, so_far })
    }

    /// Returns the path of a program built together with this one.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Returns the private cluster, which scenarios may restart; `None` for a given server.
    pub(crate) fn cluster(&self) -> Option<&Arc<Mutex<Cluster>>> {
        match &self.server {
            Server::Own(cluster) => Some(cluster),
            Server::Given(_) => None,
        }
    }

    /// Returns the number of rounds per case.
    pub(crate) fn rounds(&self) -> usize {
        usize::from(self.run.common.rounds.unwrap_or(if self.run.common.quick { 1 } else { 3 }))
    }

    /// Returns `quick` in a quick run, else `full`.
    pub(crate) fn size<T>(&self, full: T, quick: T) -> T {
        if self.run.common.quick { quick } else { full }
    }

    /// Returns the duration of a round: from the command line, or else the default for this kind of
    /// run.
    pub(crate) fn duration(&self, full: Duration, quick: Duration) -> Duration {
        self.run.duration.map_or(self.size(full, quick), |given| given.0)
    }

    /// Returns the number of tasks in a round: from the command line, or else the default for this
    /// kind of run.
    pub(crate) fn tasks(&self, full: i64, quick: i64) -> i64 {
        self.run.tasks.map_or(self.size(full, quick), i64::from)
    }

    /// Opens a superuser session in the server's initial database.
    pub(crate) async fn admin(&self) -> Result<Session> {
        self.connect(&self.url("postgres")).await
    }

    /// Returns the environment variables that complete the user's connection string.
    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Opens a session with this connection string.
    pub(crate) async fn connect(&self, url: &str) -> Result<Session> {
        Session::open(url, &self.environment).await
    }

    /// Returns the connection string of a database.
    pub(crate) fn url(&self, database: &str) -> String {
        match &self.server {
            Server::Own(cluster) => cluster.lock().url(database),
            Server::Given(url) => in_database(url, database),
        }
    }

    /// Creates a database with the queue's schema and the measurement tables.
    pub(crate) async fn database(&self, label: &str) -> Result<Database> {
        let name = format!("loadtest_{}_{label}", std::process::id());
        self.databases.lock().push(name.clone());
        let created = self.admin().await?.batch_execute(&format!("CREATE DATABASE {name}")).await;
        created.context("could not create a database")?;
        let url = self.url(&name);
        let session = self.connect(&url).await?;
        let shared_commit = self.run.shared_commit.map(|given| given.0);
        Database::prepare((name, url), session, shared_commit).await
    }

    /// Drops a database with its contents before the end of its scenario.
    pub(crate) async fn drop_database(&self, database: Database) -> Result<()> {
        let name = database.name().to_owned();
        drop(database);
        self.drop(&name).await
    }

    async fn drop(&self, name: &str) -> Result<()> {
        let admin = self.admin().await?;
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        self.databases.lock().retain(|one| one != name);
        Ok(())
    }

    /// Drops the databases that a scenario has left, or all after a signal.
    pub(crate) async fn clean_up(&self) {
        let left = self.databases.lock().clone();
        for name in left {
            if let Err(error) = self.drop(&name).await {
                print_stderr(format_args!("loadtest: could not drop {name}: {error:#}"));
            }
        }
    }

    /// Keeps the scenario in progress with its completed rounds, in case it fails.
    pub(crate) fn keep(&self, scenario: &Scenario) {
        *self.so_far.lock() = scenario.clone();
    }

    /// Returns the scenario in progress, with the completed rounds.
    pub(crate) fn so_far(&self) -> Scenario {
        self.so_far.lock().clone()
    }

    /// Describes the non-default settings for the notes of the results.
    pub(crate) fn settings_note(&self) -> String {
        let settings: Vec<String> =
            SETTINGS.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let server = match &self.server {
            Server::Own(_) => format!(
                "private cluster, durable commits, non-default settings: {}",
                settings.join(", ")
            ),
            Server::Given(_) => "server given by --database-url, with its own settings".to_owned(),
        };
        match self.run.shared_commit {
            Some(budget) => {
                format!("{server}; shared commit budget {budget} unless stated otherwise")
            }
            None => server,
        }
    }
}

impl Drop for RunContext {
    fn drop(&mut self) {
        // The folder holds only logs and statement lists; a failed removal does not matter.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn start(run: &Run) -> Result<Mutex<Cluster>> {
    let binaries = Binaries::find_or_install(run.common.directory.as_deref())?;
    let owned = |settings: &[(&str, &str)]| -> Vec<(String, String)> {
        let pairs = settings.iter();
        pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let plain = Options { settings: owned(SETTINGS), ..Options::new(binaries) };
    let counting = Options { settings: owned(&[SETTINGS, STATEMENTS].concat()), ..plain.clone() };
    // A server without the library does not start with this setting.
    let cluster = Cluster::start(counting).or_else(|_| Cluster::start(plain))?;
    Ok(Mutex::new(cluster))
}

fn no_environment() -> Environment {
    Environment::from_variables::<&str, &str>([], None)
}

/// Returns the connection string for another database: appends a `dbname`, which overrides one that
/// the string already has.
fn in_database(url: &str, database: &str) -> String {
    let uri = url.starts_with("postgres://") || url.starts_with("postgresql://");
    match (uri, url.contains('?')) {
        (true, true) => format!("{url}&dbname={database}"),
        (true, false) => format!("{url}?dbname={database}"),
        (false, _) => format!("{url} dbname={database}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_string_is_turned_to_another_database() {
        let cases = [
            ("postgres://u@h/db", "postgres://u@h/db?dbname=x"),
            ("postgresql://u@h?sslmode=disable", "postgresql://u@h?sslmode=disable&dbname=x"),
            ("host=h dbname=db", "host=h dbname=db dbname=x"),
        ];
        for (url, expected) in cases {
            assert_eq!(in_database(url, "x"), expected);
            let target = conninfo::ConnectionTarget::resolve(Some(expected), &no_environment());
            // Without an operating-system user name, the string must name a user.
            if let Ok(target) = target {
                assert_eq!(target.dbname(), "x");
            }
        }
    }
}
