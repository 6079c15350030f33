//! The directory of one cluster, and the removal of directories whose owner died.
//!
//! The owner holds a lock on the file `owner` during its lifetime. The kernel releases the lock
//! however the process ends, including SIGKILL; unlike a recorded pid, a lock cannot belong to an
//! unrelated process.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rand::RngExt;
use rand::distr::Alphanumeric;

use crate::account::Account;

const PREFIX: &str = "pgmill-cluster-";
/// Prefix of a directory as long as its owner does not hold the lock yet. Such directories are not
/// removed.
const NEW_PREFIX: &str = "pgmill-new-";
const OWNER: &str = "owner";
const KEEP: &str = "keep";

/// A socket path must fit into 104 bytes including its terminator on every system (108 on Linux).
const MAX_SOCKET_PATH_BYTES: usize = 103;

/// A private directory below $TMPDIR or /tmp.
pub struct Directory {
    path: PathBuf,
    /// Locked; closing the file ends the ownership.
    _owner: File,
}

impl Directory {
    /// Creates a directory that only the server's account (and root) may enter.
    ///
    /// # Errors
    ///
    /// Returns an error if the file system refuses.
    pub fn create(account: &Account) -> Result<Self> {
        let base = base();
        let suffix = random_letters(8);
        let new = base.join(format!("{NEW_PREFIX}{suffix}"));
        let path = base.join(format!("{PREFIX}{suffix}"));
        let make = || -> Result<File> {
            DirBuilder::new().mode(0o700).create(&new)?;
            let mut owner = File::create_new(new.join(OWNER))?;
            writeln!(owner, "{}", std::process::id())?;
            owner.lock()?;
            account.chown(&new)?;
            fs::rename(&new, &path)?;
            Ok(owner)
        };
        let owner = make().with_context(|| format!("could not create {}", path.display()))?;
        Ok(Self { path, _owner: owner })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Protects the directory from removal by later starts.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory cannot be marked.
    pub fn keep(&self) -> Result<()> {
        File::create(self.path.join(KEEP)).map(drop).context("cannot mark the directory as kept")
    }

    /// Removes the directory with its content.
    ///
    /// # Errors
    ///
    /// Returns an error if the file system refuses.
    pub fn remove(&self) -> Result<()> {
        fs::remove_dir_all(&self.path)
            .with_context(|| format!("cannot remove {}", self.path.display()))
    }
}

/// Returns random letters and digits from a cryptographically secure generator.
pub fn random_letters(length: usize) -> String {
    rand::rng().sample_iter(Alphanumeric).take(length).map(char::from).collect()
}

/// Removes directories of earlier runs whose owner has died; `stop` stops the server in a
/// directory. A directory that cannot be removed is reported on stderr and left alone, so that it
/// never blocks a new cluster.
pub(crate) fn sweep(account: &Account, stop: impl Fn(&Path) -> Result<()>) {
    let mut bases = vec![base(), PathBuf::from("/tmp")];
    bases.dedup();
    for entry in bases.iter().filter_map(|base| fs::read_dir(base).ok()).flatten().flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // Holding the lock keeps a concurrent sweep away until the directory is removed.
        let Some(_lock) = abandoned(&path, account) else { continue };
        let stopped = if listening(&path) { stop(&path) } else { Ok(()) };
        if let Err(error) = stopped.and_then(|()| Ok(fs::remove_dir_all(&path)?)) {
            eprintln!("cluster: cannot remove {}: {error:#}", path.display());
        }
    }
}

/// Returns the lock of a directory that belongs to this user and has lost its owner.
fn abandoned(path: &Path, account: &Account) -> Option<File> {
    let owner_path = path.join(OWNER);
    let directory = fs::symlink_metadata(path).ok()?;
    let owner = fs::symlink_metadata(&owner_path).ok()?;
    let ours = directory.is_dir()
        && directory.uid() == account.uid()
        && owner.is_file()
        && owner.uid() == rustix::process::geteuid().as_raw();
    if !ours || path.join(KEEP).exists() {
        return None;
    }
    let lock = File::open(owner_path).ok()?;
    match lock.try_lock() {
        Ok(()) => Some(lock),
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => None,
    }
}

/// Returns whether a server listens on a socket in the directory. A recorded pid is not sufficient:
/// after a crash it may belong to another server.
fn listening(path: &Path) -> bool {
    let Ok(entries) = fs::read_dir(path) else { return false };
    entries.flatten().any(|entry| {
        entry.file_type().is_ok_and(|kind| kind.is_socket())
            && UnixStream::connect(entry.path()).is_ok()
    })
}

/// Returns $TMPDIR, unless its socket paths would be too long or the server's account cannot access
/// it.
fn base() -> PathBuf {
    let base = std::env::temp_dir();
    let socket = base.join(format!("{PREFIX}12345678/.s.PGSQL.65535"));
    let enterable = |folder: &Path| fs::metadata(folder).is_ok_and(|m| m.mode() & 0o001 != 0);
    let reachable = !rustix::process::geteuid().is_root() || base.ancestors().all(enterable);
    if base.is_absolute() && reachable && socket.as_os_str().len() <= MAX_SOCKET_PATH_BYTES {
        base
    } else {
        PathBuf::from("/tmp")
    }
}
