//! A coordinator of Citus and two nodes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::{Binaries, Cluster, Options};
use tokio::process::Command;
use tokio::time::sleep;

use super::load;
use crate::session::Session;

/// Time limit from the last fault until no task is live, and no transaction is prepared.
pub(crate) const DRAIN: Duration = Duration::from_secs(180);
/// Time between two looks at the progress.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// Settings of all servers. The servers have no certificate. The coordinator completes or rolls
/// back the transactions that a crash has left prepared within seconds instead of a minute.
const SETTINGS: &[(&str, &str)] = &[
    ("shared_preload_libraries", "citus"),
    ("max_prepared_transactions", "200"),
    ("citus.node_conninfo", "sslmode=prefer"),
    ("citus.recover_2pc_interval", "5s"),
];

/// Empties the trigger's function, so that Citus does not prepare a transaction that writes one
/// shard. A worker refuses to start without the trigger.
pub(crate) const ONE_PHASE: &str =
    "CREATE /* chaos.one_phase */ OR REPLACE FUNCTION mill.require_two_phase() RETURNS trigger
LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'";

/// The servers, removed on drop.
pub(crate) struct Servers {
    coordinator: Cluster,
    nodes: [Cluster; 2],
    /// Folder for the workers' logs, removed on drop.
    pub(crate) directory: PathBuf,
}

impl Servers {
    /// Starts the servers. Blocks.
    pub(crate) fn open(binaries: Binaries) -> Result<Self> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let settings = SETTINGS.iter().map(owned).collect();
        let options = Options { settings, ..Options::new(binaries) };
        let directory = std::env::temp_dir().join(format!("pgmill-citus-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        Ok(Self {
            coordinator: Cluster::start(options.clone())?,
            nodes: [Cluster::start(options.clone())?, Cluster::start(options)?],
            directory,
        })
    }

    /// Returns the connection string of the coordinator.
    pub(crate) fn url(&self) -> String {
        self.coordinator.url("postgres")
    }

    /// Makes the servers one cluster of Citus, and installs the schema and the checker's.
    ///
    /// # Errors
    /// Returns an error if a server refuses a statement.
    pub(crate) async fn link(&self) -> Result<()> {
        // Citus gives the logins of the nodes the passwords that they have on the coordinator.
        let url = self.url();
        let login = url.split('@').next().context("the connection string has no login")?;
        let password = login.rsplit(':').next().unwrap_or_default();
        for server in [&self.coordinator].into_iter().chain(&self.nodes) {
            let sql = format!(
                "ALTER ROLE postgres PASSWORD '{password}'; CREATE EXTENSION citus;
                 INSERT INTO pg_dist_authinfo VALUES (0, 'postgres', 'password={password}')"
            );
            let mut session = Session::new(&server.socket_url("postgres"), "chaos");
            session.connected().await?.batch_execute(&sql).await?;
        }
        let mut session = Session::new(&url, "chaos");
        let client = session.connected().await?;
        let set_host =
            format!("SELECT citus_set_coordinator_host('127.0.0.1', {})", self.coordinator.port());
        client.batch_execute(&set_host).await?;
        for node in &self.nodes {
            let add_node = format!("SELECT citus_add_node('127.0.0.1', {})", node.port());
            client.batch_execute(&add_node).await?;
        }
        self.pgmill("init").await?;
        client.batch_execute(checker::INSTALL).await?;
        client.batch_execute(load::TABLES).await.context("could not create the tables")?;
        let report = self.pgmill("doctor").await?;
        ensure!(report.contains("2 nodes; tasks commit in two phases"), "doctor: {report}");
        Ok(())
    }

    /// Runs a command of `pgmill` on the coordinator; returns its output.
    ///
    /// # Errors
    /// Returns an error with the output if the command fails.
    pub(crate) async fn pgmill(&self, command: &str) -> Result<String> {
        let output = Command::new(cluster::sibling_program("pgmill")?)
            .arg(command)
            .env_clear()
            .env("DATABASE_URL", self.url())
            .output()
            .await?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure!(output.status.success(), "pgmill {command}: {text}");
        Ok(text)
    }

    /// Kills the coordinator with all its processes and starts it again. Blocks.
    pub(crate) fn crash_coordinator(&mut self) -> Result<()> {
        self.coordinator.crash()?;
        self.coordinator.start_again()
    }

    /// Kills a node with all its processes and starts it again. Blocks.
    pub(crate) fn crash_node(&mut self, draw: usize) -> Result<()> {
        let node = &mut self.nodes[draw % 2];
        node.crash()?;
        node.start_again()
    }

    /// Waits until the nodes have no prepared transaction, or the limit expires. Returns their
    /// number.
    pub(crate) async fn until_none_prepared(&self, limit: Duration) -> Result<i64> {
        let begun = Instant::now();
        loop {
            let mut prepared = 0;
            for node in &self.nodes {
                let mut session = Session::new(&node.socket_url("postgres"), "chaos");
                prepared += session.number("SELECT count(*) FROM pg_prepared_xacts").await?;
            }
            if prepared == 0 || begun.elapsed() > limit {
                return Ok(prepared);
            }
            sleep(POLL).await;
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // The folder holds only worker logs; a failed removal does not matter.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
