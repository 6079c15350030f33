//! A wrong clock of a process: libfaketime, preloaded, reads the offset from a file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::scratch::{Scratch, name};

/// Variables besides the library and the file. The library reads the file at each call, leaves
/// monotonic clocks alone, and shares no state between processes, because the first process of a
/// server ends at once.
const VARIABLES: [(&str, &str); 3] = [
    ("FAKETIME_NO_CACHE", "1"),
    ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ("FAKETIME_DISABLE_SHM", "1"),
];

/// The clock of one process and its children.
pub(crate) struct Clock {
    library: PathBuf,
    /// File with the offset.
    file: PathBuf,
}

impl Clock {
    /// Creates a correct clock.
    ///
    /// # Errors
    /// Returns an error if libfaketime is not installed.
    pub(crate) fn new(scratch: &Scratch) -> Result<Self> {
        let library = library().context("needs libfaketime (package libfaketime)")?;
        let clock = Self { library, file: scratch.path().join(name().0).with_extension("clock") };
        clock.set(0)?;
        Ok(clock)
    }

    /// Returns the environment variables of the process.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let own =
            [("LD_PRELOAD", text(&self.library)), ("FAKETIME_TIMESTAMP_FILE", text(&self.file))];
        let all = own.into_iter().chain(VARIABLES.map(|(name, value)| (name, value.to_owned())));
        all.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Sets the clock off by this many seconds.
    pub(crate) fn set(&self, off: i64) -> Result<()> {
        // Replace the file atomically, so that no process reads a partial one.
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{off:+}\n"))?;
        fs::rename(new, &self.file).context("cannot set the clock")
    }
}

/// Returns the library.
fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    folders.map(|folder| folder.path().join("faketime/libfaketime.so.1")).find(|path| path.exists())
}
