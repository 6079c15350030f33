//! A primary, its standby, the server of a target, and the initial content of the databases.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::{Binaries, Cluster, Mode, Options};
use tokio::time::sleep;

use super::work_item::{GROUP, JOB, KEYS, LIMITED_QUEUE, ROWS, SHARED, TARGET};
use crate::session::Session;

/// Settings of the servers. Commits are durable, which is the default of a cluster. Deadlocks are
/// detected quickly, and a server that was down can catch up.
const SETTINGS: &[(&str, &str)] =
    &[("deadlock_timeout", "100ms"), ("wal_keep_size", "512MB"), ("max_wal_size", "2GB")];

const SYNC: &str = "SELECT /* chaos.sync */ count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'";

/// Name of the workers' configuration file.
const CONFIGURATION: &str = "worker.toml";

/// The servers, removed on drop.
pub(crate) struct Servers {
    primary: Cluster,
    standby: Option<Cluster>,
    target: Cluster,
    /// Connection string with both servers, which selects the writable one.
    pub(crate) url: String,
    /// Folder for the workers' logs, removed on drop.
    pub(crate) directory: PathBuf,
}

impl Servers {
    /// Starts the servers. Blocks.
    pub(crate) fn open(binaries: Binaries, with_standby: bool) -> Result<Self> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let settings = SETTINGS.iter().map(owned).collect();
        let target = Cluster::start(Options::new(binaries.clone()))?;
        let primary = Cluster::start(Options { settings, ..Options::new(binaries) })?;
        let standby = with_standby.then(|| primary.standby()).transpose()?;
        let url = match &standby {
            Some(standby) => primary.url_with_standby(standby, "postgres"),
            None => format!("{}?target_session_attrs=read-write", primary.url("postgres")),
        };
        let directory = std::env::temp_dir().join(format!("pgmill-chaos-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let target_url = directory.join("target.url");
        std::fs::write(&target_url, target.url("postgres"))?;
        let configuration = format!("[targets.{TARGET}]\nurl_file = {target_url:?}\nreaders = 4\n");
        std::fs::write(directory.join(CONFIGURATION), configuration)?;
        Ok(Self { primary, standby, target, url, directory })
    }

    /// Creates the schema and the objects that the load needs; from then on an acknowledged commit
    /// is on both servers.
    pub(crate) async fn prepare(&self) -> Result<()> {
        let mut session = Session::new(&self.url, "chaos");
        let client = session.connected().await?;
        if self.standby.is_some() {
            client.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'").await?;
            client.batch_execute("SELECT pg_reload_conf()").await?;
            let mut polls = 0;
            while client.query_one(SYNC, &[]).await?.get::<_, i64>(0) == 0 {
                polls += 1;
                ensure!(polls < 600, "the standby does not catch up");
                sleep(Duration::from_millis(50)).await;
            }
        }
        queue::schema::init(client).await?;
        client.batch_execute(checker::INSTALL).await?;
        let mut target = self.target_session();
        let target = target.connected().await?;
        queue::receipt::init(target, &[]).await?;
        target.batch_execute(checker::INSTALL_IN_TARGET).await?;
        let mut sql = format!(
            "CREATE TABLE chaos.quarrel (id integer PRIMARY KEY, n integer);
             INSERT INTO chaos.quarrel SELECT i, 0 FROM generate_series(0, {ROWS}) AS i;
             SELECT mill.set_job('graph', '{}');
             SELECT mill.set_shared_commit('{SHARED}', '20 ms');
             SELECT mill.set_target('{TARGET}', allowed => ARRAY[current_user]);
             SELECT mill.set_group('{}', max_running => {});",
            JOB.replace('\'', "''"),
            GROUP.0,
            GROUP.1
        );
        let keys = KEYS.map(|(name, max_running)| ("key", name, max_running));
        for (kind, name, max_running) in
            keys.into_iter().chain([("queue", LIMITED_QUEUE.0, LIMITED_QUEUE.1)])
        {
            sql += &format!("SELECT mill.set_max_running('{kind}', '{name}', {max_running});");
        }
        for (name, max_running) in KEYS.into_iter().chain([LIMITED_QUEUE, GROUP]) {
            sql += &format!("INSERT INTO chaos.limits VALUES ('{name}', {max_running});");
        }
        client.batch_execute(&sql).await.context("could not prepare the database")
    }

    /// Stops the server immediately and starts it again. Blocks.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.primary.restart(Mode::Immediate)
    }

    /// Kills the server with all its processes and starts it again. Blocks.
    pub(crate) fn crash(&mut self) -> Result<()> {
        self.primary.crash()?;
        self.primary.start_again()
    }

    /// Kills the primary permanently and promotes the standby. Blocks.
    pub(crate) fn promote(&mut self) -> Result<()> {
        let standby = self.standby.take().context("there is no standby")?;
        self.primary.crash()?;
        standby.promote()?;
        self.primary = standby;
        Ok(())
    }

    /// Kills the server of the target with all its processes and starts it again. Blocks.
    pub(crate) fn crash_target(&mut self) -> Result<()> {
        self.target.crash()?;
        self.target.start_again()
    }

    /// Freezes the server of the target for some time.
    pub(crate) async fn freeze_target(&mut self, time: Duration) -> Result<()> {
        self.target.freeze()?;
        sleep(time).await;
        self.target.thaw()
    }

    /// Returns a session in the target.
    pub(crate) fn target_session(&self) -> Session {
        Session::new(&self.target.url("postgres"), "chaos")
    }

    /// Returns the path of the workers' configuration file.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.directory.join(CONFIGURATION)
    }

    /// Leaves the server running; returns a connection string for inspection.
    pub(crate) fn keep(&mut self) -> Result<String> {
        self.primary.keep()?;
        Ok(self.primary.url("postgres"))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // The folder holds only worker logs; a failed removal does not matter.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
