//! A small disk that can be filled: a file system in memory.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::scratch::{self, Scratch, run};

/// A mounted file system. Dropping the value unmounts and removes it.
pub(crate) struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Mounts a disk with the same owner as `like`.
    pub(crate) fn new(scratch: &Scratch, megabytes: u32, like: &Path) -> Result<Self> {
        let path = scratch.path().join(scratch::name().0);
        fs::create_dir(&path)?;
        let owner = fs::metadata(like)?;
        let options =
            format!("size={megabytes}m,mode=0700,uid={},gid={}", owner.uid(), owner.gid());
        run("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", &path.to_string_lossy()])?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Fills the disk.
    pub(crate) fn fill(&self) -> Result<()> {
        let mut filler = File::create(self.filler())?;
        // Large steps, then small ones, so that no page remains free.
        for step in [1 << 20, 4096] {
            let zeros = vec![0; step];
            loop {
                match filler.write(&zeros) {
                    Ok(written) => ensure!(written > 0, "nothing written"),
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error).context("cannot fill a disk"),
                }
            }
        }
        Ok(())
    }

    /// Frees the disk again.
    pub(crate) fn free(&self) -> Result<()> {
        match fs::remove_file(self.filler()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = run("umount", &["-l", &self.path.to_string_lossy()]) {
            eprintln!("chaos: {error:#}");
        }
    }
}
