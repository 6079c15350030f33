//! Rates of tasks that insert one row: with Citus, and on a server of its own without Citus.

use std::path::Path;

use anyhow::{Result, bail};
use cluster::{Binaries, Cluster, Options};
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::load::{LOCAL, ONE_SHARD};
use super::servers::{DRAIN, ONE_PHASE, POLL, Servers};
use crate::fleet::Fleet;
use crate::session::Session;

/// Name of the queue of the measured tasks.
const QUEUE: &str = "rate";

/// Measures the rates; returns one line for each.
///
/// # Errors
/// Returns an error if the tasks do not end in time.
pub(crate) async fn measure(servers: &Servers, binaries: Binaries, tasks: usize) -> Result<String> {
    let (url, logs) = (servers.url(), servers.directory.as_path());
    let shard = one(&url, logs, ONE_SHARD, tasks).await?;
    let table = one(&url, logs, LOCAL, tasks).await?;
    let mut session = Session::new(&url, "chaos");
    session.connected().await?.batch_execute(ONE_PHASE).await?;
    let one_phase_shard = one(&url, logs, ONE_SHARD, tasks).await?;
    let one_phase_table = one(&url, logs, LOCAL, tasks).await?;
    servers.pgmill("init").await?;
    let plain = block_in_place(|| Cluster::start(Options::new(binaries)))?;
    let plain_url = plain.url("postgres");
    let mut session = Session::new(&plain_url, "chaos");
    let client = session.connected().await?;
    queue::schema::init(client).await?;
    client.batch_execute(checker::INSTALL).await?;
    let plain = one(&plain_url, logs, ONE_SHARD, tasks).await?;
    Ok(format!(
        "tasks per second:\n{shard:8}  one shard\n{one_phase_shard:8}  one shard, in one phase\n\
         {table:8}  table of the coordinator\n{one_phase_table:8}  table of the coordinator, in \
         one phase\n{plain:8}  PostgreSQL without Citus\n"
    ))
}

/// Runs the tasks; returns tasks per second.
async fn one(url: &str, logs: &Path, statement: &str, tasks: usize) -> Result<i64> {
    let mut session = Session::new(url, "chaos");
    let statement = statement.replace('\'', "''");
    let sql = format!(
        "SELECT count(*) FROM mill.enqueue_many(
            array_fill('{statement}'::text, ARRAY[{tasks}]), queue => '{QUEUE}')"
    );
    session.until_answered(&sql).await?;
    let mut fleet = Fleet::start(url, logs.to_owned(), None, 1)?;
    let begun = std::time::Instant::now();
    while session.number("SELECT count(*) FROM mill.tasks").await? > 0 {
        fleet.supervise()?;
        if begun.elapsed() > DRAIN {
            bail!("{tasks} tasks have not ended after {DRAIN:?}");
        }
        sleep(POLL).await;
    }
    fleet.end().await?;
    // The checker of the faults knows only its own tasks.
    let rate = "WITH gone AS (DELETE FROM mill.attempts a WHERE a.queue = 'rate'
            RETURNING a.started_at, a.finished_at)
        SELECT (count(*) / extract(epoch FROM max(g.finished_at) - min(g.started_at)))::bigint FROM gone g";
    let rate = session.number(rate).await?;
    session.connected().await?.batch_execute("TRUNCATE chaos.effect").await?;
    let local = "SELECT to_regclass('chaos.local_effect') IS NOT NULL";
    if session.until_answered(local).await?[0].try_get(0)? {
        session.connected().await?.batch_execute("TRUNCATE chaos.local_effect").await?;
    }
    Ok(rate)
}
