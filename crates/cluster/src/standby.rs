//! A second cluster that follows a first one by streaming replication and can be promoted.

use anyhow::Result;

use crate::server::Cluster;

/// Application name of the standby, for the primary's `synchronous_standby_names`.
const NAME: &str = "standby";

impl Cluster {
    /// Creates a standby: a copy with its own directory and port and the same password, which
    /// streams from this server and reconnects soon after an outage of this server. Returns when
    /// the standby accepts read-only connections. The standby is removed with its own value and
    /// does not depend on this value.
    ///
    /// Commits do not wait for the standby until `synchronous_standby_names` names it. If that
    /// setting is made with ALTER SYSTEM after this call, the copy does not contain it and waits
    /// for no standby after its promotion.
    ///
    /// # Errors
    ///
    /// Returns an error with the tail of the log if this server is not running, or the copy or its
    /// server fails.
    pub fn standby(&self) -> Result<Self> {
        let primary = self.conninfo(NAME);
        let mut standby = self.copy(&["-R", "-X", "stream", "-d", &primary])?;
        // Commits of the primary may wait for this server, so it must reconnect soon.
        standby.configure_copy(&[("wal_retrieve_retry_interval", "100ms")])?;
        standby.start_on_free_port()?;
        Ok(standby)
    }

    /// Promotes a standby; returns when it accepts writes. The old primary must be down, otherwise
    /// there are two primaries.
    ///
    /// # Errors
    ///
    /// Returns an error if the server is not a standby, or is not promoted after a minute.
    pub fn promote(&self) -> Result<()> {
        self.pg_ctl(&["promote"]).map_err(|error| self.with_log(&error))
    }
}
