//! A database in the test's own cluster, which the test may stop, restart and crash.

use std::path::PathBuf;

use cluster::{Binaries, Cluster, Mode, Options};
use jiff::Timestamp;
use jiff::tz::Offset;
use tokio::sync::Mutex;

use super::database::create_template;
use super::{Database, eventually};

/// Name of the database in the template.
const DATABASE: &str = "with_schema";

/// The newest template, and its day.
static TEMPLATE: Mutex<Option<(String, Cluster)>> = Mutex::const_new(None);

/// A database in a cluster of its own. Fields are in the order in which they are dropped: the
/// database before the cluster.
pub(crate) struct PrivateDatabase {
    pub(crate) database: Database,
    pub(crate) cluster: Cluster,
}

impl PrivateDatabase {
    /// Starts a durable cluster with these server settings.
    pub(crate) async fn new(settings: &[(&str, &str)]) -> Self {
        let cluster = copy_of_template(&options(server(), settings)).await;
        let database = Database::renamed(cluster.url("postgres"), DATABASE).await;
        Self { database, cluster }
    }

    /// Starts a durable cluster of the server from which an upgrade starts.
    pub(crate) async fn before_upgrade(settings: &[(&str, &str)]) -> Self {
        let cluster = Cluster::start(options(older_server(), settings)).unwrap();
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

fn options(server: Binaries, settings: &[(&str, &str)]) -> Options {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Options { settings: settings.iter().map(owned).collect(), ..Options::new(server) }
}

/// Starts a copy of a cluster that has the schema in one database. The history of a copy has the partitions
/// of the day of its template, so each day has its own.
async fn copy_of_template(options: &Options) -> Cluster {
    let today = Offset::UTC.to_datetime(Timestamp::now()).date().to_string();
    let mut newest = TEMPLATE.lock().await;
    if newest.as_ref().is_none_or(|(day, _)| *day != today) {
        let mut template =
            Cluster::start(Options { fsync: false, ..Options::new(server()) }).unwrap();
        create_template(&template.url("postgres"), DATABASE).await;
        template.stop(Mode::Fast).unwrap();
        *newest = Some((today, template));
    }
    let (_, template) = newest.as_ref().unwrap();
    template.start_copy(options.clone()).unwrap()
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
