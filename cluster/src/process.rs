//! Processes that are not our children: the postmaster and its backends.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Whether the process runs; one that has ended and is only not reaped yet does not.
pub(crate) fn alive(pid: Pid) -> bool {
    let exists = match test_kill_process(pid) {
        Ok(()) | Err(rustix::io::Errno::PERM) => true,
        Err(_) => false,
    };
    exists && !zombie(pid)
}

/// Where process 1 of a container reaps nothing, a killed postmaster stays a zombie for good.
fn zombie(pid: Pid) -> bool {
    field(pid, 0).is_some_and(|state| state == "Z")
}

/// Kills a process and its children at once, as the loss of the machine would, and returns when they
/// are gone. Without /proc only the process itself: a postmaster's children then notice its death and
/// end by themselves.
pub(crate) fn kill_with_children(pid: Pid) -> Result<()> {
    // Stopped, it neither starts new children nor reaps those that are listed.
    kill_process(pid, Signal::STOP)?;
    while field(pid, 0).is_some_and(|state| state != "T" && state != "Z") {
        thread::sleep(Duration::from_millis(1));
    }
    let mut doomed = vec![pid];
    doomed.extend(children(pid));
    for &pid in &doomed {
        // It may have ended by itself since.
        let _ = kill_process(pid, Signal::KILL);
    }
    wait_until_gone(&doomed)
}

/// Sends a signal to a process and its children.
pub(crate) fn signal_with_children(pid: Pid, signal: Signal) -> Result<()> {
    kill_process(pid, signal)?;
    for child in children(pid) {
        // It may have ended by itself since.
        let _ = kill_process(child, signal);
    }
    Ok(())
}

/// By the parent that each process names: not every kernel lists children.
fn children(parent: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .filter(|pid| {
            field(*pid, 1).and_then(|ppid| Pid::from_raw(ppid.parse().ok()?)) == Some(parent)
        })
        .collect()
}

/// Of what follows the name in the process's status line: state, parent, …
fn field(pid: Pid, n: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(n).map(str::to_owned)
}

/// Polls, because only a parent can wait, and pg_ctl waits only for servers it stops itself.
fn wait_until_gone(pids: &[Pid]) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while pids.iter().any(|&pid| alive(pid)) {
        if Instant::now() > deadline {
            bail!("killed processes are still there after 30 s: {pids:?}");
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
