//! The demo's database: schema, logins, password file, order files.
//!
//! Passwords are generated for each run and stored in a file that only this user may read
//! (PGPASSFILE); no command line and no environment variable contains one.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cluster::{Cluster, random_letters};
use conninfo::{ConnectionTarget, Environment};
use queue::schema;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::data;

/// Control login of the workers.
pub(crate) const FLEET: &str = "shop_fleet";
/// Login that runs the tasks' SQL.
pub(crate) const ETL: &str = "shop_etl";
/// Login that enqueues tasks and monitors the fleet.
pub(crate) const OPERATOR: &str = "shop_operator";

pub(crate) const DATABASE: &str = "shop";

const LOGINS_SQL: &str = include_str!("../sql/logins.sql");
const SHOP_SQL: &str = include_str!("../sql/shop.sql");

/// Location and credentials of the database.
#[derive(Clone, Debug)]
pub(crate) struct Shop {
    /// Directory of all files of the demo; removed with the cluster.
    pub(crate) directory: PathBuf,
    pub(crate) passfile: PathBuf,
    port: u16,
}

/// A connection with its background driver.
pub(crate) struct Session {
    pub(crate) client: Client,
    _driver: JoinSet<()>,
}

impl Shop {
    /// Creates the database, the queue's schema, the shop's tables and the three logins.
    pub(crate) async fn open(cluster: &Cluster) -> Result<Self> {
        let directory = cluster.directory().to_path_buf();
        let passfile = directory.join("pgpass");
        let shop = Self { directory, passfile, port: cluster.port() };
        let superuser = session(&cluster.url("postgres"), &[]).await?;
        superuser.client.batch_execute(&format!("CREATE DATABASE {DATABASE}")).await?;
        let superuser = session(&cluster.url(DATABASE), &[]).await?;
        schema::init(&superuser.client).await.context("could not apply the schema")?;
        let mut logins = LOGINS_SQL.to_owned();
        let mut lines = String::new();
        for login in [FLEET, ETL, OPERATOR] {
            let password = random_letters(32);
            logins = logins.replace(&format!("{{{login}}}"), &password);
            lines += &format!("127.0.0.1:{}:{DATABASE}:{login}:{password}\n", shop.port);
        }
        write(&shop.passfile, &lines, 0o600)?;
        superuser.client.batch_execute(&logins).await?;
        superuser.client.batch_execute(SHOP_SQL).await?;
        Ok(shop)
    }

    /// Returns a connection string without a password.
    pub(crate) fn url(&self, login: &str) -> String {
        format!("postgresql://{login}@127.0.0.1:{}/{DATABASE}", self.port)
    }

    /// Connects as one of the logins.
    pub(crate) async fn session(&self, login: &str) -> Result<Session> {
        let passfile = self.passfile.to_string_lossy();
        session(&self.url(login), &[("PGPASSFILE", &passfile)]).await
    }

    /// Writes the batches where the server can read them, and returns their expected totals.
    pub(crate) fn write_batches(&self) -> Result<data::Expected> {
        let batches: Vec<Vec<data::Order>> = (1..=data::BATCHES).map(data::batch).collect();
        for (orders, number) in batches.iter().zip(1..) {
            // The server may run as another user.
            write(&self.batch_file(number), &data::csv(orders), 0o644)?;
        }
        Ok(data::expected(batches.iter().flatten()))
    }

    /// Returns the file of a batch.
    pub(crate) fn batch_file(&self, number: u32) -> PathBuf {
        self.directory.join(format!("orders-{number}.csv"))
    }
}

/// Connects independently of the caller's environment: PGSSLMODE and similar variables refer to
/// other servers.
async fn session(url: &str, variables: &[(&str, &str)]) -> Result<Session> {
    let environment = Environment::from_variables(variables.iter().copied(), None);
    let target = ConnectionTarget::resolve(Some(url), &environment)?.with_application_name("demo");
    let (client, connection) = conninfo::open(&target).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        // The client reports the end of the connection.
        let _ = connection.await;
    });
    Ok(Session { client, _driver: driver })
}

/// Creates a file with exactly these permissions, regardless of the umask.
pub(crate) fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    let written = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(mode))
    };
    written().with_context(|| format!("could not write {}", path.display()))
}
