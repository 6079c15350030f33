//! Resources that a run creates outside its clusters, with names that identify their owner, and the
//! removal of the leftovers of killed runs.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Prefix of all folders, mounts, namespaces and control groups; the owner's process id follows.
pub(crate) const PREFIX: &str = "pgmill-chaos-";

/// Root folders of memory control groups: version 1 and version 2.
pub(crate) const CONTROL_GROUPS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];

const WORKERS: &str = "workers";

static NEXT: AtomicU32 = AtomicU32::new(1);

/// Returns a name that is unique among all living runs.
pub(crate) fn name() -> (String, u32) {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    (format!("{PREFIX}{}-{n}", std::process::id()), n)
}

/// Folder of logs, clocks and mounts, removed on drop.
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates the folder after removing the leftovers of killed runs.
    pub(crate) fn new() -> Result<Self> {
        sweep();
        let path = std::env::temp_dir().join(name().0);
        fs::create_dir(&path).with_context(|| format!("could not create {}", path.display()))?;
        // The server's account must be able to reach its disks.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o711))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Records a worker, so that the next run can end it if this run is killed.
    pub(crate) fn note(&self, pid: u32) -> Result<()> {
        let file = self.path.join(WORKERS);
        let mut file = OpenOptions::new().create(true).append(true).open(file)?;
        writeln!(file, "{pid} {}", started(pid).unwrap_or_default())?;
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("chaos: cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Runs a system program to completion; an error contains its output.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", args.join(" "), printed.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns whether a name belongs to a run whose process has ended.
fn abandoned(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let pid: Option<u32> = rest.split('-').next().and_then(|pid| pid.parse().ok());
    pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

/// Returns the start time of a process in kernel ticks, which distinguishes it from a later process
/// with the same pid.
fn started(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(19).map(str::to_owned)
}

/// Removes the leftovers of killed runs. Reports leftovers that cannot be removed, and keeps them.
/// The clusters of these runs are removed when the next cluster starts.
fn sweep() {
    let mut left: Vec<(PathBuf, Result<()>)> = Vec::new();
    for folder in abandoned_in(&std::env::temp_dir()) {
        end_workers(&folder);
    }
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    for line in mounts.lines() {
        // Unmount only disks here. Namespaces are mounts, too, but are removed separately.
        if let [_, mount, "tmpfs", ..] = line.split(' ').collect::<Vec<_>>()[..]
            && mount.split('/').any(abandoned)
        {
            left.push((mount.into(), run("umount", &["-l", mount]).map(drop)));
        }
    }
    for folder in abandoned_in(&std::env::temp_dir()) {
        let removed = fs::remove_dir_all(&folder).map_err(Into::into);
        left.push((folder, removed));
    }
    for space in abandoned_in(Path::new("/run/netns")) {
        let name = space.file_name().unwrap_or_default().to_string_lossy().into_owned();
        left.push((space, run("ip", &["netns", "del", &name]).map(drop)));
    }
    for root in CONTROL_GROUPS {
        for group in abandoned_in(Path::new(root)) {
            let removed = fs::remove_dir(&group).map_err(Into::into);
            left.push((group, removed));
        }
    }
    for (path, removed) in left {
        match removed {
            Ok(()) => eprintln!("chaos: removed {}, left by an earlier run", path.display()),
            Err(error) => eprintln!("chaos: cannot remove {}: {error:#}", path.display()),
        }
    }
}

fn abandoned_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let ours =
        |path: &PathBuf| path.file_name().is_some_and(|name| abandoned(&name.to_string_lossy()));
    entries.flatten().map(|entry| entry.path()).filter(ours).collect()
}

fn end_workers(folder: &Path) {
    for line in fs::read_to_string(folder.join(WORKERS)).unwrap_or_default().lines() {
        let noted = line.split_once(' ').and_then(|(pid, at)| Some((pid.parse().ok()?, at)));
        if let Some((pid, at)) = noted
            && started(pid).as_deref() == Some(at)
        {
            // The process may have ended in the meantime.
            let _ = signal(pid, Signal::KILL);
        }
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: u32, signal: Signal) -> Result<()> {
    let Some(pid) = Pid::from_raw(pid.try_into()?) else { bail!("invalid process id") };
    kill_process(pid, signal).with_context(|| format!("cannot signal process {pid:?}"))
}
