//! What a tick begins with, while nothing is due: as often as a round says, in one session.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::super::runs::FORGET;
use crate::context::RunContext;
use crate::database::Database;
use crate::latency::LatencyHistogram;

/// As many as a worker takes at once.
const TICK: &str = "/* loadtest.tick */ SELECT * FROM mill.lock_due_schedules(50)";

/// Of the ticks since the statements were forgotten; the function with all that it runs.
const COST: &str = r"/* loadtest.tick_cost */
SELECT s.mean_exec_time, (s.shared_blks_hit + s.shared_blks_read)::float8 / s.calls
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query LIKE '/* loadtest.tick */%'";

/// The first ones of a session plan, and fill its caches; a worker's session lives long.
const FIRST: usize = 50;

/// What a round of ticks came to.
pub(super) struct Round {
    /// As the client sees them, one round trip each.
    pub(super) times: LatencyHistogram,
    /// `None`: the server does not count it.
    pub(super) cost: Option<Cost>,
}

/// Of one tick, on average.
pub(super) struct Cost {
    /// Milliseconds, as the server itself has it.
    pub(super) ms: f64,
    /// Pages, in memory or not.
    pub(super) buffers: f64,
}

/// In a round.
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
        ensure!(due.is_empty(), "{} schedules are due, and none should be", due.len());
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
