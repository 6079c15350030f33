//! Reads process statistics from `/proc`.

use std::fs;
use std::time::Duration;

/// Returns the resident memory in MB; `None` if the process has ended.
pub(crate) fn resident_mb(pid: u32) -> Option<f64> {
    Some(mb(status_kb(pid, "VmRSS:")?))
}

/// Returns the peak resident memory in MB. It can be too low by some pages per processor, and so a
/// bit lower than an earlier answer: the kernel records the peak from approximate counters
/// (`proc_pid_status(5)`).
pub(crate) fn peak_mb(pid: u32) -> Option<f64> {
    Some(mb(status_kb(pid, "VmHWM:")?))
}

/// Returns the memory that no other process shares, in MB; `None` if the process has ended or the
/// kernel does not report it.
pub(crate) fn private_mb(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    let kb = lines.filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u32>().ok());
    Some(mb(kb.sum()))
}

/// Returns the number of open files and sockets; `None` if the process has ended.
pub(crate) fn open_files(pid: u32) -> Option<u32> {
    u32::try_from(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count()).ok()
}

/// Returns the processor time of these processes. A process that has ended no longer counts.
pub(crate) fn cpu_seconds(pids: &[u32]) -> f64 {
    pids.iter().filter_map(|pid| cpu_time(*pid)).sum::<Duration>().as_secs_f64()
}

/// Returns the processor time used by all threads of the process.
fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name, in parentheses, may contain spaces. User and system time are the 12th and
    // the 13th of the fields after the name.
    let (_, after) = stat.rsplit_once(") ")?;
    let mut fields = after.split_ascii_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

fn status_kb(pid: u32, name: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn mb(kb: u32) -> f64 {
    f64::from(kb) / 1024.0
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
        assert!(peak_mb(pid).unwrap() >= 64.0);
    }

    #[test]
    fn this_process_has_memory_and_has_used_time() {
        let pid = std::process::id();
        assert!(resident_mb(pid).unwrap() > 0.1);
        cpu_time(pid).unwrap();
        assert_eq!(resident_mb(u32::MAX), None);
    }
}
