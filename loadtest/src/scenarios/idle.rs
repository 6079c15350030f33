//! Measures the cost of an idle fleet: statements and WAL. The server's own part is measured first,
//! without any worker, and subtracted.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::sleep;

use crate::context::RunContext;
use crate::context::database::Database;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::rounds::{Measured, alternate, at_most};
use crate::result::Scenario;

/// Number of statements in this database except those of the load test, and bytes of WAL from all
/// databases.
const COUNTED: &str = "SELECT /* loadtest.idle */ coalesce(sum(s.calls), 0)::float8, (pg_current_wal_insert_lsn() - '0/0')::float8
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query NOT LIKE '%/* loadtest.%'";

/// Time until polls have reached their longest interval and start-up is over.
const SETTLE_TIME: Duration = Duration::from_secs(5);

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let run = &context.run;
    let fleet_spec = FleetSpec::new(run.workers.unwrap_or(50), run.common.readers.unwrap_or(8));
    let length = context.duration(Duration::from_secs(60), Duration::from_secs(15));
    let database = context.database("idle").await?;
    ensure!(database.counts_statements, "this scenario needs pg_stat_statements on the server");
    let each = |name: &str, unit: &str, goal| {
        at_most(name, &format!("{unit} per worker and minute"), goal)
    };
    let cases = vec![each("statements", "statements", 60.0)];
    let mut scenario = alternate(context, cases, async |_, _| {
        database.vacuum_and_checkpoint().await?;
        let empty = over(&database, length).await?;
        let fleet = Fleet::start(context, &database, &fleet_spec).await?;
        sleep(SETTLE_TIME).await;
        let idle = over(&database, length).await?;
        fleet.stop().await?;
        let per_worker = 60.0 / length.as_secs_f64() / f64::from(fleet_spec.workers);
        let [statements, wal_bytes] = [0, 1].map(|n| ((idle[n] - empty[n]) * per_worker).max(0.0));
        Ok(Measured::new(statements).also(each("WAL", "kB", 10.0), wal_bytes / 1024.0))
    })
    .await?;
    scenario.notes = vec![format!("{}, {} s per round", fleet_spec.describe(), length.as_secs())];
    Ok(scenario)
}

/// Returns the increase of the counters during this time.
async fn over(database: &Database, length: Duration) -> Result<[f64; 2]> {
    let counted = async || {
        let row = database.session.query_typed(COUNTED, &[]).await?;
        anyhow::Ok([0, 1].map(|n| row[0].get::<_, f64>(n)))
    };
    let before = counted().await?;
    sleep(length).await;
    let after = counted().await?;
    Ok([0, 1].map(|n| after[n] - before[n]))
}
