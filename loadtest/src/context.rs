//! Where it is measured: a private cluster or the user's server, the programs, the folder for logs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::{Binaries, Cluster, Options};
use queue::connect::Environment;
use terminal::print_stderr;

use crate::args::Run;
use crate::database::Database;
use crate::progress::Progress;
use crate::result::{Case, Scenario};
use crate::session::Session;

/// The settings of the own cluster that are not PostgreSQL's defaults, one choice for all cases.
///
/// Commits are durable. 64 workers and their readers need connections; ten million tasks need memory
/// and a log that does not force a checkpoint into some rounds and not into others.
const SETTINGS: &[(&str, &str)] = &[
    ("max_connections", "1000"),
    ("shared_buffers", "1GB"),
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "30min"),
];

/// Counts the buffers of claims; left out where the server does not have it.
const STATEMENTS: &[(&str, &str)] =
    &[("shared_preload_libraries", "pg_stat_statements"), ("pg_stat_statements.track", "top")];

/// Everything that a scenario needs.
pub(crate) struct RunContext {
    /// What was asked for.
    pub(crate) run: Run,
    /// For the person who waits.
    pub(crate) progress: Progress,
    /// Of this process, gone at the end.
    pub(crate) directory: PathBuf,
    environment: Environment,
    programs: PathBuf,
    server: Server,
    /// Made here; dropped at the end, whatever the end is.
    databases: Mutex<Vec<String>>,
    /// What is being measured, with the rounds it has had.
    so_far: Mutex<Option<Scenario>>,
}

enum Server {
    Own(Arc<Mutex<Cluster>>),
    Given(String),
}

impl RunContext {
    /// Finds the programs, and starts a cluster unless a server was given. Blocks.
    ///
    /// # Errors
    /// A program that was not built; no server to be found or started.
    pub(crate) fn open(run: Run) -> Result<Self> {
        let programs = match &run.programs {
            Some(folder) => folder.clone(),
            None => {
                let own = std::env::current_exe().context("unknown path of this program")?;
                own.parent().context("this program has no folder")?.to_path_buf()
            }
        };
        for name in ["worker", "enqueue"] {
            ensure!(
                programs.join(name).is_file(),
                "no program `{name}` in {}: build all of them, with `cargo build --release --bins`",
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
            .with_context(|| format!("could not make {}", directory.display()))?;
        let progress = Progress::new();
        let (databases, so_far) = (Mutex::default(), Mutex::default());
        Ok(Self { run, progress, directory, environment, programs, server, databases, so_far })
    }

    /// The path of a program that was built together with this one.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Whether the server is this process's own, and may be restarted.
    pub(crate) fn cluster(&self) -> Option<&Arc<Mutex<Cluster>>> {
        match &self.server {
            Server::Own(cluster) => Some(cluster),
            Server::Given(_) => None,
        }
    }

    /// Process of a server of this process's own, the parent of all its sessions.
    pub(crate) fn postmaster(&self) -> Option<u32> {
        self.cluster()?.lock().unwrap_or_else(PoisonError::into_inner).pid()
    }

    /// How often each case is measured.
    pub(crate) fn rounds(&self) -> usize {
        usize::from(self.run.rounds.unwrap_or(if self.run.quick { 1 } else { 3 }))
    }

    /// One of two sizes.
    pub(crate) fn size<T>(&self, full: T, quick: T) -> T {
        if self.run.quick { quick } else { full }
    }

    /// Length of a round, unless the command line says otherwise.
    pub(crate) fn duration(&self, full: Duration, quick: Duration) -> Duration {
        self.run.duration.unwrap_or(self.size(full, quick))
    }

    /// Tasks in a round, unless the command line says otherwise.
    pub(crate) fn tasks(&self, full: i64, quick: i64) -> i64 {
        self.run.tasks.map_or(self.size(full, quick), i64::from)
    }

    /// A session of the superuser in the server's own database.
    pub(crate) async fn admin(&self) -> Result<Session> {
        self.connect(&self.url("postgres")).await
    }

    /// A session there.
    pub(crate) async fn connect(&self, url: &str) -> Result<Session> {
        Session::open(url, &self.environment).await
    }

    /// The connection string of a database.
    pub(crate) fn url(&self, database: &str) -> String {
        match &self.server {
            Server::Own(cluster) => {
                cluster.lock().unwrap_or_else(PoisonError::into_inner).url(database)
            }
            Server::Given(url) => in_database(url, database),
        }
    }

    /// A new database with the schema and the tables of the measurements.
    pub(crate) async fn database(&self, label: &str) -> Result<Database> {
        let name = format!("loadtest_{}_{label}", std::process::id());
        self.databases.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
        Database::create(self, name).await
    }

    /// Drops a database and what is in it.
    pub(crate) async fn drop_database(&self, database: Database) -> Result<()> {
        let name = database.name().to_owned();
        drop(database);
        let admin = self.admin().await?;
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        self.databases.lock().unwrap_or_else(PoisonError::into_inner).retain(|one| *one != name);
        Ok(())
    }

    /// Drops what a scenario that broke off, or a signal, has left on the server.
    pub(crate) async fn clean_up(&self) {
        let left =
            std::mem::take(&mut *self.databases.lock().unwrap_or_else(PoisonError::into_inner));
        if left.is_empty() {
            return;
        }
        let dropped = async {
            let admin = self.admin().await?;
            for name in &left {
                let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                admin.batch_execute(&sql).await?;
            }
            anyhow::Ok(())
        };
        if let Err(error) = dropped.await {
            print_stderr(format_args!("loadtest: could not drop {}: {error:#}", left.join(", ")));
        }
    }

    /// A scenario begins: it has no rounds yet.
    pub(crate) fn begin(&self, name: &str, title: &str) {
        let scenario =
            Scenario { name: name.to_owned(), title: title.to_owned(), ..Scenario::default() };
        *self.so_far.lock().unwrap_or_else(PoisonError::into_inner) = Some(scenario);
    }

    /// The rounds up to now, in case that no more come.
    pub(crate) fn keep(&self, cases: &[Case]) {
        if let Some(kept) = self.so_far.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            kept.cases = cases.to_vec();
        }
    }

    /// The scenario that began last, with what was kept of it.
    pub(crate) fn so_far(&self) -> Option<Scenario> {
        self.so_far.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is not a default, for the notes.
    pub(crate) fn settings_note(&self) -> String {
        let list = |settings: &[(&str, &str)]| {
            let pairs: Vec<String> =
                settings.iter().map(|(name, value)| format!("{name} = {value}")).collect();
            pairs.join(", ")
        };
        let server = match &self.server {
            Server::Own(_) => format!("own cluster, durable, defaults but: {}", list(SETTINGS)),
            Server::Given(_) => "a server with settings of its own".to_owned(),
        };
        match self.run.share_commits {
            Some(budget) => {
                format!("{server}; commits shared for {budget:?} unless said otherwise")
            }
            None => server,
        }
    }
}

impl Drop for RunContext {
    fn drop(&mut self) {
        // Logs and lists of statements: nothing that anybody misses.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn start(run: &Run) -> Result<Mutex<Cluster>> {
    let binaries = Binaries::find_or_install(run.directory.as_deref())?;
    let owned = |settings: &[(&str, &str)]| -> Vec<(String, String)> {
        let pairs = settings.iter();
        pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let plain = Options { settings: owned(SETTINGS), ..Options::new(binaries) };
    let counting = Options { settings: owned(&[SETTINGS, STATEMENTS].concat()), ..plain.clone() };
    // A server without the library does not start with it.
    let cluster = Cluster::start(counting).or_else(|_| Cluster::start(plain))?;
    Ok(Mutex::new(cluster))
}

fn no_environment() -> Environment {
    Environment::from_variables::<&str, &str>([], None)
}

/// The same place, another database: of two settings the later counts.
fn in_database(url: &str, database: &str) -> String {
    let uri = url.starts_with("postgres://") || url.starts_with("postgresql://");
    match (uri, url.contains('?')) {
        (true, true) => format!("{url}&dbname={database}"),
        (true, false) => format!("{url}?dbname={database}"),
        (false, _) => format!("{url} dbname={database}"),
    }
}

/// A path for messages.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
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
            let target = queue::connect::Target::resolve(Some(expected), &no_environment());
            // Without a user of the operating system a user has to be named.
            if let Ok(target) = target {
                assert_eq!(target.dbname(), "x");
            }
        }
    }
}
