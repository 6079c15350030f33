//! A base backup of a running cluster, and its recovery to a moment of the past.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::directory::Directory;
use crate::server::Cluster;

/// Settings for a cluster that keeps all of its log, beside its data: what a recovery needs beside a
/// backup.
pub const ARCHIVING: &[(&str, &str)] =
    &[("archive_mode", "on"), ("archive_command", "mkdir -p ../archive && cp %p ../archive/%f")];

/// Files of a base backup, not started. They go away with the value.
pub struct Backup {
    cluster: Cluster,
    archive: PathBuf,
}

impl Cluster {
    /// Copies this running server's files, as its superuser, into a directory of their own.
    pub(crate) fn copy(&self, args: &[&str]) -> Result<Self> {
        let copy = Self {
            binaries: self.binaries.clone(),
            account: self.account.clone(),
            directory: Directory::create(&self.account)?,
            password: self.password.clone(),
            port: 0,
            kept: false,
        };
        let program = copy.binaries.program("pg_basebackup");
        let common = ["-D", "data", "-c", "fast", "--no-sync"];
        copy.account.run(&program, common.iter().chain(args), copy.directory())?;
        Ok(copy)
    }

    /// How pg_basebackup finds this server, and what it calls itself there.
    pub(crate) fn conninfo(&self, application_name: &str) -> String {
        let host = self.directory().to_string_lossy();
        format!(
            "host='{host}' port={} user=postgres application_name={application_name} \
             connect_timeout=5",
            self.port
        )
    }

    /// What a copy has to have otherwise than the original, and these settings.
    pub(crate) fn configure_copy(&self, settings: &[(&str, &str)]) -> Result<()> {
        let directory = self.directory();
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        let directory = directory.to_string_lossy();
        let own = [("unix_socket_directories", &*directory), ("cluster_name", &name)];
        self.set(own.into_iter().chain(settings.iter().copied()))
    }

    /// A base backup of this server, which has to have been started with [`ARCHIVING`].
    ///
    /// # Errors
    ///
    /// If this server does not run, or the copy fails.
    pub fn backup(&self) -> Result<Backup> {
        let primary = self.conninfo("backup");
        let cluster = self.copy(&["-X", "none", "-d", &primary])?;
        Ok(Backup { cluster, archive: self.directory().join("archive") })
    }
}

impl Backup {
    /// Starts the files as a cluster of their own, with the log up to a point that
    /// `pg_create_restore_point` named and nothing later; returns when it accepts connections, and
    /// takes writes when it has come to that point. The server that it came from may run or not; its
    /// directory is still needed.
    ///
    /// # Errors
    ///
    /// If the point is not in the log that was kept, or the server fails; with the tail of its log.
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
        fs::write(&signal, "").context("cannot write recovery.signal")?;
        cluster.account.chown(&signal)?;
        cluster.start_on_free_port()?;
        Ok(cluster)
    }
}
