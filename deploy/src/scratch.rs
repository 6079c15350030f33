//! Temporary folder for the output of a check.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A temporary folder, removed on drop.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty folder; `name` distinguishes the folders of one process.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let folder = format!("pgmill-deploy-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(folder);
        fs::create_dir_all(&path).with_context(|| format!("{}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes this folder's name from a tool's output.
    pub(crate) fn without(&self, output: &str) -> String {
        output.replace(&format!("{}/", self.0.display()), "")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
