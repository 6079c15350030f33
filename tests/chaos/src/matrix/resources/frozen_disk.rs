//! A disk of a server that stops to answer: a library, preloaded into the server, in which fsync and
//! fdatasync wait while a file exists.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::scratch::{Scratch, name, run};

const SOURCE: &str = include_str!("frozen_disk.c");

/// Variable with the path of the file.
const MARKER: &str = "PGMILL_CHAOS_FROZEN";

/// The disk of one server. Thawed on drop, so that the server can end.
pub(crate) struct FrozenDisk {
    library: PathBuf,
    /// The disk is frozen while this file exists.
    marker: PathBuf,
}

impl FrozenDisk {
    /// Compiles the library.
    ///
    /// # Errors
    /// Returns an error if there is no C compiler.
    pub(crate) fn new(scratch: &Scratch) -> Result<Self> {
        let path = scratch.path().join(name().0);
        let (source, library) = (path.with_extension("c"), path.with_extension("so"));
        fs::write(&source, SOURCE).context("cannot write the source of a library")?;
        let (from, to) = (source.to_string_lossy(), library.to_string_lossy());
        run("cc", &["-shared", "-fPIC", "-O2", "-o", &to, &from, "-ldl"])?;
        Ok(Self { library, marker: path.with_extension("frozen") })
    }

    /// Returns the environment variables of the server.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        [("LD_PRELOAD", &self.library), (MARKER, &self.marker)]
            .map(|(name, path)| (name.to_owned(), path.to_string_lossy().into_owned()))
            .to_vec()
    }

    /// Lets every fsync wait from now on.
    pub(crate) fn freeze(&self) -> Result<()> {
        File::create(&self.marker).map(drop).context("cannot freeze a disk")
    }

    /// Lets the waiting fsync calls continue.
    pub(crate) fn thaw(&self) -> Result<()> {
        match fs::remove_file(&self.marker) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for FrozenDisk {
    fn drop(&mut self) {
        if let Err(error) = self.thaw() {
            eprintln!("chaos: {error:#}");
        }
    }
}
