//! Memory limit of one worker: a control group.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::scratch::{self, CONTROL_GROUPS};

/// Memory limit in bytes. An idle worker uses less than half of it.
const MAX_BYTES: &str = "67108864";

/// A control group, removed on drop after its processes have ended.
pub(crate) struct Memory {
    path: PathBuf,
}

impl Memory {
    /// Creates a control group.
    ///
    /// # Errors
    /// Returns an error if this process cannot create control groups.
    pub(crate) fn new() -> Result<Self> {
        let (root, limit) = if Path::new(CONTROL_GROUPS[0]).join("memory.limit_in_bytes").exists() {
            (CONTROL_GROUPS[0], "memory.limit_in_bytes")
        } else {
            (CONTROL_GROUPS[1], "memory.max")
        };
        let path = Path::new(root).join(scratch::name().0);
        fs::create_dir(&path).with_context(|| format!("could not create {}", path.display()))?;
        let memory = Self { path };
        fs::write(memory.path.join(limit), MAX_BYTES).context("cannot set a memory limit")?;
        Ok(memory)
    }

    /// Adds a process to the group.
    pub(crate) fn take(&self, pid: u32) -> Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
            .context("cannot limit the memory of a worker")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.path) {
            eprintln!("chaos: cannot remove {}: {error}", self.path.display());
        }
    }
}
