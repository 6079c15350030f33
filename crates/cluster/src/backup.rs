//! Base backups of a running cluster, and point-in-time recovery.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::directory::Directory;
use crate::server::Cluster;

/// Settings that archive all WAL in a directory next to the cluster's data. A recovery needs this
/// archive in addition to a backup.
pub const ARCHIVING: &[(&str, &str)] =
    &[("archive_mode", "on"), ("archive_command", "mkdir -p ../archive && cp %p ../archive/%f")];

/// The files of a base backup, without a running server. Dropping the value removes them.
pub struct Backup {
    cluster: Cluster,
    archive: PathBuf,
}

impl Cluster {
    /// Copies the running server's files, as its superuser, into a separate directory.
    pub(crate) fn copy(&self, args: &[&str]) -> Result<Self> {
        let copy = Self {
            binaries: self.binaries.clone(),
            account: self.account.clone(),
            directory: Directory::create(&self.account)?,
            password: self.password.clone(),
            port: None,
            variables: self.variables.clone(),
            kept: false,
        };
        let program = copy.binaries.program("pg_basebackup");
        let common = ["-D", "data", "-c", "fast", "--no-sync"];
        copy.account.run(&program, common.iter().chain(args), copy.directory(), &[])?;
        Ok(copy)
    }

    /// Returns the connection string of pg_basebackup with its application name.
    pub(crate) fn conninfo(&self, application_name: &str) -> String {
        let host = self.directory().to_string_lossy();
        format!(
            "host='{host}' port={} user=postgres application_name={application_name} \
             connect_timeout=5",
            self.port()
        )
    }

    /// Writes the settings in which a copy differs from the original, and the given settings.
    pub(crate) fn configure_copy(&self, settings: &[(&str, &str)]) -> Result<()> {
        let directory = self.directory();
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        let directory = directory.to_string_lossy();
        let own = [("unix_socket_directories", &*directory), ("cluster_name", &name)];
        self.set(own.into_iter().chain(settings.iter().copied()))
    }

    /// Takes a base backup of this server, which must have been started with [`ARCHIVING`].
    ///
    /// # Errors
    ///
    /// Returns an error if this server is not running, or the copy fails.
    pub fn backup(&self) -> Result<Backup> {
        let primary = self.conninfo("backup");
        let cluster = self.copy(&["-X", "none", "-d", &primary])?;
        Ok(Backup { cluster, archive: self.directory().join("archive") })
    }
}

impl Backup {
    /// Starts the files as a separate cluster and replays the WAL up to a point named with
    /// `pg_create_restore_point`; returns when the cluster accepts connections. The cluster accepts
    /// writes once it has reached that point. The original server may be running or not; its
    /// directory is still needed.
    ///
    /// # Errors
    ///
    /// Returns an error with the tail of the server's log if the point is not in the archived WAL,
    /// or the server fails.
    pub fn recover(self, restore_point: &str) -> Result<Cluster> {
        let mut cluster = self.cluster;
        let restore = format!("cp '{}'/%f %p", self.archive.display());
        cluster.configure_copy(&[
            ("archive_mode", "off"),
            ("restore_command", &restore),
            ("recovery_target_name", restore_point),
            ("recovery_target_action", "promote"),
        ])?;
        let signal = cluster.data().join("recovery.signal");
        fs::write(&signal, "").context("could not write recovery.signal")?;
        cluster.account.chown(&signal)?;
        cluster.start_on_free_port()?;
        Ok(cluster)
    }
}
