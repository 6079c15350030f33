//! Processor time of a fleet, by part: reader backends, claimer backends and worker processes. It
//! depends far less than a rate on what else the machine does.

use anyhow::Result;
use tokio_postgres::Client;

use crate::context::RunContext;
use crate::measure::process::cpu_seconds;
use crate::measure::rounds::{Measured, case};
use crate::result::Better;

/// Backends of the fleet in this database.
const BACKENDS: &str = "SELECT /* loadtest.fleet_backends */ a.pid, a.application_name LIKE 'pgmill claimer %' AS claims FROM pg_stat_activity a
WHERE a.datname = current_database()
    AND (a.application_name LIKE 'pgmill reader %' OR a.application_name LIKE 'pgmill claimer %')";

const PARTS: [&str; 3] = ["readers' backends", "claimer's backend", "worker"];

/// Seconds of each part since the processes started.
pub(crate) type Parts = [f64; 3];

/// Reads the times of the running workers and their backends; `None` if the server may run on
/// another machine.
pub(crate) async fn read(
    context: &RunContext,
    client: &Client,
    workers: &[u32],
) -> Result<Option<Parts>> {
    if context.cluster().is_none() {
        return Ok(None);
    }
    let rows = client.query_typed(BACKENDS, &[]).await?;
    let of = |claims: bool| {
        let rows = rows.iter().filter(|row| row.get::<_, bool>(1) == claims);
        cpu_seconds(&rows.map(|row| row.get::<_, i32>(0).cast_unsigned()).collect::<Vec<_>>())
    };
    Ok(Some([of(false), of(true), cpu_seconds(workers)]))
}

/// Adds the time per task: the fleet's, and its parts.
#[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
pub(crate) fn add(measured: Measured, of: &str, seconds: Parts, tasks: i64) -> Measured {
    let named = |part: &str| case(format!("{of}: processor time{part}"), "µs", Better::Lower);
    let each = |seconds: f64| seconds * 1e6 / tasks.max(1) as f64;
    let measured = measured.also(named(""), each(seconds.iter().sum()));
    PARTS.iter().zip(seconds).fold(measured, |measured, (part, seconds)| {
        measured.also(named(&format!(", {part}")), each(seconds))
    })
}
