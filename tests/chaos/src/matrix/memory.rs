//! A bound on the memory of one worker: a control group.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::scratch;

/// Where control groups for memory are: version 1, and version 2.
pub(crate) const ROOTS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];

/// A worker at rest takes less than half of it.
const MOST_BYTES: &str = "67108864";

/// A control group; removed with the value, after the processes in it have ended.
pub(crate) struct Memory {
    path: PathBuf,
}

impl Memory {
    /// Makes one.
    ///
    /// # Errors
    /// The system has none that this process may make.
    pub(crate) fn new() -> Result<Self> {
        let (root, limit) = if Path::new(ROOTS[0]).join("memory.limit_in_bytes").exists() {
            (ROOTS[0], "memory.limit_in_bytes")
        } else {
            (ROOTS[1], "memory.max")
        };
        let path = Path::new(root).join(scratch::name().0);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let memory = Self { path };
        fs::write(memory.path.join(limit), MOST_BYTES).context("no bound on memory here")?;
        Ok(memory)
    }

    /// Takes a process in.
    pub(crate) fn take(&self, pid: u32) -> Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
            .context("cannot bound the memory of a worker")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.path) {
            eprintln!("chaos: cannot remove {}: {error}", self.path.display());
        }
    }
}
