//! Measures the first statement of a tick while no schedule is due, repeatedly in one session.

use std::time::Instant;

use anyhow::{Result, ensure};

use crate::context::RunContext;
use crate::context::database::Database;
use crate::measure::latency::LatencyHistogram;

/// The first statement of a tick, with the batch size of a worker.
const TICK: &str = "SELECT /* loadtest.tick */ * FROM mill.lock_due_schedules(50)";

/// Number of warm-up calls. The first calls of a session plan the statement and fill caches; a
/// worker's session is long-lived.
const FIRST: usize = 50;

/// Returns the ticks per round.
pub(super) fn ticks(context: &RunContext) -> usize {
    context.size(5_000, 1_000)
}

/// Returns the times at the client, one round trip each.
pub(super) async fn round(context: &RunContext, database: &Database) -> Result<LatencyHistogram> {
    let mut session = context.connect(database.url()).await?;
    let mut times = LatencyHistogram::new()?;
    for n in 0..FIRST + ticks(context) {
        let transaction = session.transaction().await?;
        let begun = Instant::now();
        let due = transaction.query_typed(TICK, &[]).await?;
        let took = begun.elapsed();
        transaction.commit().await?;
        ensure!(due.is_empty(), "{} schedules are due, expected none", due.len());
        if n >= FIRST {
            times.add(took.as_secs_f64() * 1000.0);
        }
    }
    Ok(times)
}
