//! A second cluster that follows a first one by streaming replication, and can take its place.

use anyhow::Result;

use crate::server::Cluster;

/// What the standby is called where the primary names whom its commits wait for:
/// `synchronous_standby_names`.
const NAME: &str = "standby";

impl Cluster {
    /// A standby: a copy in a directory and on a port of its own, with the same password, which
    /// streams from here and is back soon after this one was down. Returns when it accepts read-only
    /// connections. It goes away with its value, as every cluster does, and does not depend on this
    /// value.
    ///
    /// Commits do not wait for it until `synchronous_standby_names` says so; as a setting of ALTER
    /// SYSTEM made after this call it stays out of the copy, which then waits for nobody once it is
    /// promoted.
    ///
    /// # Errors
    ///
    /// If this server does not run, or the copy or its server fails; with the tail of its log.
    pub fn standby(&self) -> Result<Self> {
        let primary = self.conninfo(NAME);
        let mut standby = self.copy(&["-R", "-X", "stream", "-d", &primary])?;
        // Commits of the primary may wait for this server: it has to be back soon.
        standby.configure_copy(&[("wal_retrieve_retry_interval", "100ms")])?;
        standby.start_on_free_port()?;
        Ok(standby)
    }

    /// Makes a standby a primary; returns when it takes writes. The old primary has to be down, or
    /// there are two.
    ///
    /// # Errors
    ///
    /// If it is no standby, or not promoted after a minute.
    pub fn promote(&self) -> Result<()> {
        self.pg_ctl(&["promote"]).map_err(|error| self.with_log(&error))
    }
}
