//! Processes that are not child processes: the postmaster and its backends.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Returns whether the process is running. A process that has ended but is not reaped yet is not
/// running.
pub fn alive(pid: Pid) -> bool {
    let exists = match test_kill_process(pid) {
        Ok(()) | Err(rustix::io::Errno::PERM) => true,
        Err(_) => false,
    };
    exists && !zombie(pid)
}

/// Returns whether the process has ended but is not reaped. In a container whose process 1 does not
/// reap, a killed postmaster stays in this state.
fn zombie(pid: Pid) -> bool {
    field(pid, 0).is_some_and(|state| state == "Z")
}

/// Kills a process and its children at once, like the loss of the machine, and returns when they
/// are gone. Without /proc, kills only the process itself: a postmaster's children then notice its
/// death and exit.
///
/// # Errors
///
/// Returns an error if the process does not exist, or is still alive after 30 s.
pub fn kill_with_children(pid: Pid) -> Result<()> {
    // Freeze the process, so that it neither starts new children nor reaps the listed ones.
    kill_process(pid, Signal::STOP)?;
    while field(pid, 0).is_some_and(|state| state != "T" && state != "Z") {
        thread::sleep(Duration::from_millis(1));
    }
    let mut doomed = vec![pid];
    doomed.extend(children(pid));
    for &pid in &doomed {
        // The process may have ended in the meantime.
        let _ = kill_process(pid, Signal::KILL);
    }
    wait_until_gone(&doomed)
}

/// Sends a signal to a process and its children.
///
/// # Errors
///
/// Returns an error if the process does not exist.
pub fn signal_with_children(pid: Pid, signal: Signal) -> Result<()> {
    kill_process(pid, signal)?;
    for child in children(pid) {
        // The process may have ended in the meantime.
        let _ = kill_process(child, signal);
    }
    Ok(())
}

/// Finds children by the parent pid of each process: not every kernel lists children.
fn children(parent: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .filter(|pid| {
            field(*pid, 1).and_then(|ppid| Pid::from_raw(ppid.parse().ok()?)) == Some(parent)
        })
        .collect()
}

/// Returns a field after the name in the process's stat line: state, parent, …
fn field(pid: Pid, n: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(n).map(str::to_owned)
}

/// Returns when the processes are gone. Polls, because only a parent can wait, and pg_ctl waits
/// only for servers that it stops itself.
fn wait_until_gone(pids: &[Pid]) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while pids.iter().any(|&pid| alive(pid)) {
        if Instant::now() > deadline {
            bail!("killed processes still exist after 30 s: {pids:?}");
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
