//! Reads process statistics from `/proc`.

use std::fs;
use std::time::Duration;

/// Returns the resident memory in bytes; `None` if the process has ended.
pub(crate) fn resident_bytes(pid: u32) -> Option<u64> {
    status_kb(pid, "VmRSS:").map(|kb| kb * 1024)
}

/// Returns the peak resident memory in bytes. It can be too low by some pages per processor, and so
/// a bit lower than an earlier answer: the kernel records the peak from approximate counters
/// (`proc_pid_status(5)`).
pub(crate) fn peak_bytes(pid: u32) -> Option<u64> {
    status_kb(pid, "VmHWM:").map(|kb| kb * 1024)
}

/// Returns the number of open files and sockets; `None` if the process has ended.
pub(crate) fn open_files(pid: u32) -> Option<u32> {
    u32::try_from(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count()).ok()
}

/// Returns the processor time used by all threads of the process.
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    times(pid, 11)
}

/// Returns the sum of user time and system time. `field` is the position of the user time in the
/// stat line.
fn times(pid: u32, field: usize) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name, in parentheses, may contain spaces. Of the fields after the name (state,
    // parent, …), utime is the 12th, and cutime the 14th.
    let (_, after) = stat.rsplit_once(") ")?;
    let mut fields = after.split_ascii_whitespace().skip(field);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis(ticks * 1000 / per_second))
}

/// Returns the processor time of ended child processes and their descendants.
pub(crate) fn ended_children_time(pid: u32) -> Option<Duration> {
    times(pid, 13)
}

/// Returns the memory that no other process shares, in bytes; `None` if the process has ended or
/// the kernel does not report it.
pub(crate) fn private_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    let kb = lines.filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
    Some(kb.sum::<u64>() * 1024)
}

/// Returns the running child processes.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect()
}

fn status_kb(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn the_peak_includes_memory_that_was_returned() {
        const RETURNED: usize = 64 * 1024 * 1024;
        let pid = std::process::id();
        drop(black_box(vec![1_u8; RETURNED]));
        // What the program itself occupies outweighs the inaccuracy of the peak.
        assert!(peak_bytes(pid).unwrap() >= RETURNED as u64);
    }

    #[test]
    fn this_process_has_memory_and_has_used_time() {
        let pid = std::process::id();
        assert!(resident_bytes(pid).unwrap() > 100_000);
        cpu_time(pid).unwrap();
        assert_eq!(resident_bytes(u32::MAX), None);
    }
}
