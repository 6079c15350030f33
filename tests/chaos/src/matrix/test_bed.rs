//! The environment of cells: clusters with the resources that the faults need. Cells use it one
//! after another, each with its own database.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::{Binaries, Cluster, Mode, Options};
use rand::RngExt;
use rand::distr::Alphanumeric;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::fault::{Fault, Setup};
use super::resources::clock::Clock;
use super::resources::disk::Disk;
use super::resources::frozen_disk::FrozenDisk;
use super::resources::memory::Memory;
use super::resources::network::Network;
use super::resources::pooler;
use super::resources::scratch::{self, Scratch};
use crate::session::Session;

/// Number of workers in a cell: the worker that the fault hits, and another one.
pub(crate) const WORKER_SLOTS: usize = 2;

const DATA_MEGABYTES: u32 = 96;
const TEMP_MEGABYTES: u32 = 16;
const WAL_MEGABYTES: u32 = 128;

/// Logins of the fleet: for control sessions and for tasks.
pub(crate) const FLEET: &str = "fleet";
pub(crate) const TASKS: &str = "etl";

/// Readers per worker.
pub(crate) const READERS: i64 = 2;

/// Name of the target.
pub(crate) const TARGET: &str = "dwh";

/// Environment variable with which a worker gets the connection string of the target.
pub(crate) const TARGET_URL: &str = "CHAOS_TARGET_URL";

/// A cluster and the resources of its cells. Fields are in the order in which they are dropped: a
/// server before its disk.
pub(crate) struct TestBed {
    /// Dropped first: the server ends sooner if its disk answers.
    pub(crate) frozen_disk: Option<FrozenDisk>,
    pub(crate) cluster: Cluster,
    /// Server of the target.
    target: Option<Cluster>,
    pub(crate) networks: Vec<Network>,
    pub(crate) disk: Option<Disk>,
    /// Clock of the server.
    pub(crate) clock: Option<Clock>,
    kind: Setup,
    password: String,
    pub(crate) scratch: Arc<Scratch>,
}

impl TestBed {
    pub(crate) async fn new(
        kind: Setup,
        binaries: Binaries,
        scratch: Arc<Scratch>,
    ) -> Result<Self> {
        let networks = match kind {
            Setup::Network => (0..WORKER_SLOTS).map(|_| Network::new()).collect::<Result<_>>()?,
            _ => Vec::new(),
        };
        let frozen_disk = match kind {
            Setup::FrozenDisk => Some(FrozenDisk::new(&scratch)?),
            _ => None,
        };
        let clock = match kind {
            Setup::ServerClock => Some(Clock::new(&scratch)?),
            _ => None,
        };
        let mut options = options(binaries.clone(), kind, &networks);
        let variables = clock.as_ref().map(Clock::variables);
        let variables = variables.or(frozen_disk.as_ref().map(FrozenDisk::variables));
        options.variables = variables.unwrap_or_default();
        let cluster = block_in_place(|| Cluster::start(options))?;
        let target = match kind {
            Setup::Target => Some(block_in_place(|| Cluster::start(Options::new(binaries)))?),
            _ => None,
        };
        let password = rand::rng().sample_iter(Alphanumeric).take(24).map(char::from).collect();
        let mut test_bed = Self {
            cluster,
            target,
            networks,
            disk: None,
            frozen_disk,
            clock,
            kind,
            password,
            scratch,
        };
        block_in_place(|| test_bed.set_up_disks())?;
        let session = Session::open(&test_bed.cluster.url("postgres")).await?;
        test_bed.create_logins(&session).await?;
        if let Some(url) = test_bed.target_url("postgres") {
            test_bed.create_logins(&Session::open(&url).await?).await?;
            let settings = format!("url_env = {TARGET_URL:?}\nreaders = {READERS}\n");
            fs::write(test_bed.configuration(), format!("[targets.{TARGET}]\n{settings}"))?;
        }
        if let (Setup::DataDisk | Setup::TempDisk, Some(disk)) = (kind, &test_bed.disk) {
            let place = disk.path().display();
            let create =
                format!("CREATE /* chaos.tablespace */ TABLESPACE small LOCATION '{place}'");
            session.execute(&create).await?;
        }
        if kind == Setup::TempDisk {
            let grant =
                format!("GRANT /* chaos.tablespace */ CREATE ON TABLESPACE small TO {TASKS}");
            session.execute(&grant).await?;
            let set =
                format!("ALTER /* chaos.tablespace */ ROLE {TASKS} SET temp_tablespaces = small");
            session.execute(&set).await?;
        }
        if kind == Setup::Network {
            session.execute("SELECT /* chaos.reload */ pg_reload_conf()").await?;
        }
        Ok(test_bed)
    }

    async fn create_logins(&self, session: &Session) -> Result<()> {
        let password = &self.password;
        session
            .execute(&format!(
                "CREATE /* chaos.roles */ ROLE {FLEET} LOGIN PASSWORD '{password}';
                 CREATE ROLE {TASKS} LOGIN PASSWORD '{password}'"
            ))
            .await
    }

    /// Returns the servers that a fault of servers hits.
    pub(crate) fn servers(&mut self, fault: Fault) -> Vec<&mut Cluster> {
        let Self { cluster, target, .. } = self;
        let (queue, in_target) = match fault {
            Fault::TargetKilled | Fault::TargetRestart | Fault::TargetFrozen => (false, true),
            Fault::BothKilled | Fault::BothFrozen => (true, true),
            _ => (true, false),
        };
        let queue = Some(cluster).filter(|_| queue);
        queue.into_iter().chain(target.as_mut().filter(|_| in_target)).collect()
    }

    /// Starts a standby of the cluster. Unless it is asynchronous, every commit waits for it from now
    /// on.
    pub(crate) async fn start_standby(&self, asynchronous: bool) -> Result<Cluster> {
        let standby = block_in_place(|| self.cluster.standby())?;
        let session = Session::open(&self.cluster.url("postgres")).await?;
        let names = if asynchronous { "''" } else { "'standby'" };
        session
            .execute(&format!(
                "ALTER /* chaos.start_standby */ SYSTEM SET synchronous_standby_names = {names}"
            ))
            .await?;
        session.execute("SELECT /* chaos.reload */ pg_reload_conf()").await?;
        let begun = Instant::now();
        loop {
            let sql = "SELECT /* chaos.in_sync */ count(*) FROM pg_stat_replication r
                WHERE r.state = 'streaming' AND r.sync_state = $1";
            let state = if asynchronous { "async" } else { "sync" };
            if session.one::<i64>(sql, &[&state]).await? == Some(1) {
                return Ok(standby);
            }
            ensure!(begun.elapsed() < Duration::from_secs(30), "the standby does not catch up");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns options for CREATE DATABASE.
    pub(crate) fn create_options(&self) -> &'static str {
        if self.kind == Setup::DataDisk { "TABLESPACE small" } else { "" }
    }

    /// Returns the connection string of a worker for a database and a login of the fleet. Contains
    /// the password: never put it on a command line.
    pub(crate) fn url(&self, worker_slot: usize, login: &str, database: &str) -> String {
        let host = self.networks.get(worker_slot).map(|network| network.server().to_string());
        let host = host.as_deref().unwrap_or("127.0.0.1");
        format!("postgres://{login}:{}@{host}:{}/{database}", self.password, self.cluster.port())
    }

    /// Returns the superuser's connection string for a database of the target's server, if there is
    /// a target.
    pub(crate) fn target_url(&self, database: &str) -> Option<String> {
        self.target.as_ref().map(|target| target.url(database))
    }

    /// Returns the connection string of a worker for a database of the target's server, if there is
    /// a target. Contains the password: never put it on a command line.
    pub(crate) fn tasks_target_url(&self, database: &str) -> Option<String> {
        let port = self.target.as_ref()?.port();
        Some(format!("postgres://{TASKS}:{}@127.0.0.1:{port}/{database}", self.password))
    }

    /// Returns the path of the configuration file for workers that reach the target.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.scratch.path().join(format!("worker-{}.toml", self.cluster.port()))
    }

    fn set_up_disks(&mut self) -> Result<()> {
        let data = self.cluster.directory().join("data");
        match self.kind {
            Setup::Plain
            | Setup::Standby
            | Setup::Target
            | Setup::FrozenDisk
            | Setup::ServerClock => {}
            Setup::Network => {
                let mut rules = OpenOptions::new().append(true).open(data.join("pg_hba.conf"))?;
                writeln!(rules, "host all all 198.18.0.0/15 scram-sha-256")?;
            }
            Setup::DataDisk => self.disk = Some(Disk::new(&self.scratch, DATA_MEGABYTES, &data)?),
            Setup::TempDisk => self.disk = Some(Disk::new(&self.scratch, TEMP_MEGABYTES, &data)?),
            Setup::WalDisk => {
                let disk = Disk::new(&self.scratch, WAL_MEGABYTES, &data)?;
                self.cluster.stop(Mode::Fast)?;
                move_log(&data, disk.path())?;
                self.disk = Some(disk);
                self.cluster.start_again()?;
            }
        }
        Ok(())
    }
}

/// Moves the WAL to the disk. Uses `mv`, which keeps owners and works across file systems.
fn move_log(data: &Path, disk: &Path) -> Result<()> {
    let (from, to) = (data.join("pg_wal"), disk.join("pg_wal"));
    scratch::run("mv", &[&from.to_string_lossy(), &to.to_string_lossy()])?;
    symlink(to, from).context("cannot move the WAL")
}

fn options(binaries: Binaries, kind: Setup, networks: &[Network]) -> Options {
    let mut options = Options::new(binaries);
    let mut set = |name: &str, value: String| options.settings.push((name.to_owned(), value));
    if kind == Setup::Network {
        let others = networks.iter().map(|network| format!(",{}", network.server()));
        set("listen_addresses", format!("127.0.0.1{}", others.collect::<String>()));
    }
    if kind == Setup::WalDisk {
        set("min_wal_size", "32MB".to_owned());
        set("max_wal_size", "48MB".to_owned());
    }
    options
}

/// Returns why cells with this setup cannot run here; `None` if they can.
pub(crate) fn missing(kind: Setup, binaries: &Binaries, scratch: &Scratch) -> Option<String> {
    let root = rustix::process::geteuid().is_root();
    let tried = match kind {
        Setup::Plain | Setup::Target => return None,
        Setup::FrozenDisk => FrozenDisk::new(scratch).map(drop),
        Setup::ServerClock => Clock::new(scratch).map(drop),
        Setup::Standby => {
            let there = binaries.directory().join("pg_basebackup").exists();
            return (!there).then(|| "needs pg_basebackup".to_owned());
        }
        _ if !root => return Some("needs root".to_owned()),
        Setup::Network => Network::new().map(drop),
        Setup::DataDisk | Setup::TempDisk | Setup::WalDisk => {
            Disk::new(scratch, 1, scratch.path()).map(drop)
        }
    };
    tried.err().map(|error| format!("{error:#}"))
}

/// Returns why memory limits are not available; `None` if they are.
pub(crate) fn missing_memory() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    Memory::new().err().map(|error| format!("{error:#}"))
}

/// Returns why false clocks are not available; `None` if they are.
pub(crate) fn missing_clock(scratch: &Scratch) -> Option<String> {
    Clock::new(scratch).err().map(|error| format!("{error:#}"))
}

/// Returns why a pooler is not available; `None` if it is.
pub(crate) fn missing_pooler() -> Option<String> {
    pooler::program().err().map(|error| format!("{error:#}"))
}
