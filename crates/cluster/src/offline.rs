//! Changes of the files of a stopped server: the next transaction id, and an upgrade.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::binaries::Binaries;
use crate::server::{Cluster, Mode, SUPERUSER};

/// Number of transactions whose state one file of `pg_xact` holds, and the size of such a file.
const PER_FILE: u32 = 1 << 20;
const FILE_BYTES: usize = 1 << 18;

/// Files with the settings, which pg_upgrade does not copy.
const SETTINGS: [&str; 2] = ["postgresql.conf", "pg_hba.conf"];

/// Version since which initdb turns data checksums on.
const CHECKSUMS_MAJOR: u32 = 18;

impl Cluster {
    /// Stops the server, makes `next` the next transaction id, and starts the server again. Between
    /// `next` and the oldest row that is not frozen there may be at most two billion ids.
    ///
    /// # Errors
    ///
    /// Returns an error if the programs have no pg_resetwal, or the server fails.
    pub fn set_next_transaction_id(&mut self, next: u32) -> Result<()> {
        self.stop(Mode::Fast)?;
        // The server reads this file at its start, and would have created it on the way.
        let file = self.data().join("pg_xact").join(format!("{:04X}", next / PER_FILE));
        if !file.exists() {
            fs::write(&file, vec![0; FILE_BYTES])?;
            self.account.chown(&file)?;
        }
        let program = self.binaries.program("pg_resetwal");
        ensure!(program.exists(), "there is no {}", program.display());
        let next = next.to_string();
        self.account
            .run(&program, ["-x", &next, "-D", "data"], self.directory(), &[])
            .context("could not set the next transaction id")?;
        self.start_again()
    }

    /// Stops the server, upgrades its data into a new cluster of the server `to`, and starts the new
    /// cluster on the same port. If both versions are the same, pg_upgrade does all the steps of an
    /// upgrade nevertheless: the new cluster has another system identifier, a catalog that was dumped
    /// and restored, and no statistics (before version 18).
    ///
    /// # Errors
    ///
    /// Returns an error with the output of pg_upgrade if the upgrade fails.
    pub fn upgrade(&mut self, to: Binaries) -> Result<()> {
        self.stop(Mode::Fast)?;
        let (old, new) = (self.directory().join("old"), self.data());
        fs::rename(&new, &old)?;
        let from = std::mem::replace(&mut self.binaries, to);
        // Since version 18, initdb turns checksums on. pg_upgrade requires the same on both sides.
        let plain = from.major() < CHECKSUMS_MAJOR && self.binaries.major() >= CHECKSUMS_MAJOR;
        self.initialize(if plain { &["--no-data-checksums"] } else { &[] })?;
        let [from, to] =
            [&from, &self.binaries].map(|it| it.directory().to_string_lossy().into_owned());
        let args = ["-b", &from, "-B", &to, "-d", "old", "-D", "data", "-U", SUPERUSER, "--link"];
        let program = self.binaries.program("pg_upgrade");
        self.account.run(&program, args, self.directory(), &[])?;
        for name in SETTINGS {
            // Keeps the owner of the new file.
            fs::copy(old.join(name), new.join(name))
                .with_context(|| format!("could not copy {name}"))?;
        }
        fs::remove_dir_all(old)?;
        self.start_again()
    }
}
