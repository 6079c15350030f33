//! A folder for what a check writes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Removed when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// An empty one; `name` tells those of one process apart.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let folder = format!("pgmill-deploy-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(folder);
        fs::create_dir_all(&path).with_context(|| format!("{}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// What a tool says, without this folder's name in it.
    pub(crate) fn without(&self, output: &str) -> String {
        output.replace(&format!("{}/", self.0.display()), "")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
