//! Describes the environment of a run: the machine, and the server with the settings that affect
//! speed.

use std::fs;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio_postgres::Client;

use crate::result::{Machine, Server, median};

/// Names of the settings to display, in this order: they affect commits, writes, memory and vacuum.
const SETTINGS: &str = "fsync synchronous_commit synchronous_standby_names commit_delay full_page_writes wal_level \
    wal_sync_method wal_compression wal_buffers max_wal_size checkpoint_timeout data_checksums shared_buffers huge_pages \
    effective_cache_size work_mem maintenance_work_mem effective_io_concurrency io_method autovacuum \
    autovacuum_max_workers autovacuum_naptime autovacuum_vacuum_cost_delay autovacuum_vacuum_cost_limit jit \
    max_connections max_parallel_workers_per_gather shared_preload_libraries track_activities track_io_timing \
    log_statement log_min_duration_statement";

/// Reads the settings. Omits those that this version lacks or this role may not read.
const READ_SETTINGS: &str = "SELECT /* loadtest.settings */ s.name, current_setting(s.name) FROM unnest(string_to_array($1, ' ')) WITH ORDINALITY AS wanted (name, nth)
    JOIN pg_settings s ON s.name = wanted.name
ORDER BY wanted.nth";

const VERSION: &str = "SELECT /* loadtest.server_version */ current_setting('server_version')";

const DURABLE: &str = "SET /* loadtest.commit_durable */ synchronous_commit = 'on'";
/// Writes to a permanent table, because a commit that has written only to temporary tables does not
/// wait for the disk.
const COMMIT: &str = "INSERT /* loadtest.commit */ INTO loadtest.effects VALUES (1)";

/// Number of commits before the measurement, which fill the server's caches.
const FIRST: usize = 20;
/// Number of commits to measure if time permits.
const COMMITS: usize = 500;
/// Time limit for all commits. On a slow disk, fewer than [`COMMITS`] suffice for a median.
const TIME: Duration = Duration::from_secs(2);

/// Describes this machine. Values that the system does not provide are empty or zero.
pub(crate) fn machine() -> Machine {
    let system = rustix::system::uname();
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    Machine {
        cores: available_parallelism().map_or(1, usize::from),
        processor: processor(&read("/proc/cpuinfo"))
            .unwrap_or_else(|| system.machine().to_string_lossy().into_owned()),
        memory_bytes: memory_bytes(&read("/proc/meminfo")).unwrap_or_default(),
        kernel: [system.sysname(), system.release()].map(|it| it.to_string_lossy()).join(" "),
    }
}

/// Parses the model in the first entry of `/proc/cpuinfo`; ARM processors have none there.
fn processor(cpuinfo: &str) -> Option<String> {
    let model = field(cpuinfo, "model name")?;
    Some(model.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Parses `MemTotal` of `/proc/meminfo`.
fn memory_bytes(meminfo: &str) -> Option<u64> {
    let kibibytes: u64 = field(meminfo, "MemTotal")?.strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let mut values = fields.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    values.find(|value| !value.is_empty())
}

/// Describes the server of the session. Takes at most two seconds, and leaves rows in
/// `loadtest.effects`.
pub(crate) async fn server(client: &Client) -> Result<Server> {
    let version =
        client.query_one(VERSION, &[]).await.context("could not read the server version")?;
    let rows =
        client.query(READ_SETTINGS, &[&SETTINGS]).await.context("could not read the settings")?;
    Ok(Server {
        version: version.get(0),
        settings: rows.iter().map(|row| (row.get(0), row.get(1))).collect(),
        commit_ms: commit_ms(client).await.context("could not measure a durable commit")?,
    })
}

/// Returns the median duration of a durable one-row commit.
async fn commit_ms(client: &Client) -> Result<f64> {
    client.batch_execute(DURABLE).await?;
    let insert = client.prepare(COMMIT).await?;
    for _ in 0..FIRST {
        client.execute(&insert, &[]).await?;
    }
    let begun = Instant::now();
    let mut milliseconds = Vec::with_capacity(COMMITS);
    while milliseconds.len() < COMMITS && begun.elapsed() < TIME {
        let commit = Instant::now();
        client.execute(&insert, &[]).await?;
        milliseconds.push(commit.elapsed().as_secs_f64() * 1e3);
    }
    median(&milliseconds).context("no commit within the time limit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_and_the_memory_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Example  CPU @ 2.50GHz\nflags\t\t: a b\n";
        assert_eq!(processor(cpuinfo).as_deref(), Some("Example CPU @ 2.50GHz"));
        assert_eq!(processor("processor\t: 0\nBogoMIPS\t: 50.00\n"), None);
        assert_eq!(
            memory_bytes("MemTotal:       16355916 kB\nMemFree: 1 kB\n"),
            Some(16_748_457_984)
        );
        assert_eq!(memory_bytes(""), None);
    }

    #[test]
    fn this_machine_has_processors_and_a_kernel() {
        let machine = machine();
        assert!(machine.cores > 0);
        assert!(machine.kernel.contains(' ') && !machine.processor.is_empty(), "{machine:?}");
    }
}
