//! Open connections, each driven in the background until its value is dropped.

use std::ops::{Deref, DerefMut};

use anyhow::{Context, Result};
use queue::connect::{self, ConnectionTarget, Environment};
use tokio::task::JoinSet;
use tokio_postgres::Client;

/// A client with its background driver.
pub(crate) struct Session {
    client: Client,
    _driver: JoinSet<()>,
}

impl Session {
    /// Connects. For a user's server, the `PG*` variables complete the URL as for `psql`.
    pub(crate) async fn open(url: &str, environment: &Environment) -> Result<Self> {
        let target =
            ConnectionTarget::resolve(Some(url), environment)?.with_application_name("loadtest");
        let (client, connection) =
            connect::open(&target).await.context("could not connect to the server")?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The client reports the end of the connection.
            let _ = connection.await;
        });
        Ok(Self { client, _driver: driver })
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}
