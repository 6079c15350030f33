//! Measures the first statement of a tick while no schedule is due, repeatedly in one session.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::super::runs::FORGET;
use crate::context::RunContext;
use crate::context::database::Database;
use crate::measure::latency::LatencyHistogram;

/// The first statement of a tick, with the batch size of a worker.
const TICK: &str = "SELECT /* loadtest.tick */ * FROM mill.lock_due_schedules(50)";

/// Average cost of the ticks since the statistics reset; includes statements inside the function.
const COST: &str = r"SELECT /* loadtest.tick_cost */ s.mean_exec_time, (s.shared_blks_hit + s.shared_blks_read)::float8 / s.calls
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query LIKE '%/* loadtest.tick */%'";

/// Number of warm-up calls. The first calls of a session plan the statement and fill caches; a
/// worker's session is long-lived.
const FIRST: usize = 50;

/// Result of a round.
pub(super) struct Round {
    /// Times at the client, one round trip each.
    pub(super) times: LatencyHistogram,
    /// `None` if the server does not count statements.
    pub(super) cost: Option<Cost>,
}

/// Average cost of one tick.
pub(super) struct Cost {
    /// Milliseconds by the server's measurement.
    pub(super) ms: f64,
    /// Pages, cached or not.
    pub(super) buffers: f64,
}

/// Returns the ticks per round.
pub(super) fn ticks(context: &RunContext) -> usize {
    context.size(5_000, 1_000)
}

pub(super) async fn round(context: &RunContext, database: &Database) -> Result<Round> {
    let mut session = context.connect(database.url()).await?;
    let mut times = LatencyHistogram::new()?;
    for n in 0..FIRST + ticks(context) {
        if n == FIRST && database.counts_statements {
            database.session.query_typed(FORGET, &[]).await?;
        }
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
    let mut cost = None;
    if database.counts_statements {
        let row = &database.session.query_typed(COST, &[]).await?[0];
        cost = Some(Cost { ms: row.get(0), buffers: row.get(1) });
    }
    Ok(Round { times, cost })
}
