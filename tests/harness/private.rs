//! A database in a cluster of the test's own, which the test may stop, restart and crash.

use cluster::{Binaries, Cluster, Options};

use super::Database;

/// Both go with the value, the database first.
pub(crate) struct PrivateDatabase {
    pub(crate) database: Database,
    pub(crate) cluster: Cluster,
}

impl PrivateDatabase {
    /// Starts a durable cluster with these server settings.
    pub(crate) async fn new(settings: &[(&str, &str)]) -> Self {
        let mut options = Options::new(Binaries::find(None).unwrap());
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        options.settings = settings.iter().map(owned).collect();
        let cluster = Cluster::start(options).unwrap();
        let database = Database::new_in(cluster.url("postgres")).await;
        Self { database, cluster }
    }
}
