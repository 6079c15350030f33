//! A database in the test's own cluster, which the test may stop, restart and crash.

use std::path::PathBuf;

use cluster::{Binaries, Cluster, Options};

use super::{Database, eventually};

/// A database in a cluster of its own. Fields are in the order in which they are dropped: the
/// database before the cluster.
pub(crate) struct PrivateDatabase {
    pub(crate) database: Database,
    pub(crate) cluster: Cluster,
}

impl PrivateDatabase {
    /// Starts a durable cluster with these server settings.
    pub(crate) async fn new(settings: &[(&str, &str)]) -> Self {
        Self::of(server(), settings).await
    }

    /// Starts a durable cluster of the server from which an upgrade starts.
    pub(crate) async fn before_upgrade(settings: &[(&str, &str)]) -> Self {
        Self::of(older_server(), settings).await
    }

    async fn of(server: Binaries, settings: &[(&str, &str)]) -> Self {
        let mut options = Options::new(server);
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        options.settings = settings.iter().map(owned).collect();
        let cluster = Cluster::start(options).unwrap();
        let database = Database::new_in(cluster.url("postgres")).await;
        Self { database, cluster }
    }

    /// Creates a standby; returns when it streams. Before that, a pause of its replay would also keep
    /// it from connecting.
    pub(crate) async fn standby(&self) -> Cluster {
        let standby = self.cluster.standby().unwrap();
        let streams =
            "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE replay_lsn IS NOT NULL)";
        eventually("the standby streams", async || self.database.value(streams).await).await;
        standby
    }
}

/// Returns the server under test.
pub(crate) fn server() -> Binaries {
    Binaries::find(server_programs().as_deref()).unwrap()
}

/// Returns the server from which upgrades to the server under test start: the same one, unless
/// `make versions` names another.
pub(crate) fn older_server() -> Binaries {
    #[expect(clippy::disallowed_methods, reason = "set by `make versions`")]
    let older = std::env::var_os("PGMILL_OLDER_PG_BIN").map(PathBuf::from);
    older.map_or_else(server, |folder| Binaries::find(Some(&folder)).unwrap())
}

/// Returns the folder of the programs of the server under test.
pub(crate) fn server_programs() -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "set by `cluster run`")]
    std::env::var_os("PGMILL_PG_BIN").map(PathBuf::from)
}
