//! Measures one schedule that fires every second on an otherwise idle fleet.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use queue::enqueue::database_now;
use tokio::time::sleep;

use crate::context::RunContext;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::latency::LatencyHistogram;
use crate::result::Check;

const SET: &str = "SELECT /* loadtest.every_second */ mill.set_schedule('every second', 'every(1 second)', 'SELECT 1')";

/// Milliseconds from the instant of each fire to the start of its run, after a point in time.
const DELAYS: &str = "SELECT /* loadtest.fire_delays */ (1000 * extract(epoch FROM r.started_at - r.fire_at))::float8 FROM mill.runs r
WHERE r.fire_at > $1 ORDER BY r.fire_at LIMIT $2";

const ANY: &str = "SELECT /* loadtest.any_fire */ EXISTS (SELECT FROM mill.runs)";

const ENDED: &str = "SELECT /* loadtest.fires_ended */ count(*) >= $2 FROM mill.runs r WHERE r.fire_at > $1 AND r.state <> 'running'";

/// Number of seconds over which these fires are spread, number of successes, and number of other
/// log entries.
const OUTCOME: &str = "SELECT /* loadtest.fires_outcome */ 1 + extract(epoch FROM max(f.fire_at) - min(f.fire_at))::bigint,
    count(*) FILTER (WHERE f.state = 'succeeded'),
    (SELECT count(*) FROM mill.schedule_log l WHERE l.event NOT IN ('fired', 'completed'))
FROM (SELECT r.fire_at, r.state FROM mill.runs r WHERE r.fire_at > $1 ORDER BY r.fire_at LIMIT $2) AS f";

/// Returns the fires per round: one per second.
pub(super) fn fires(context: &RunContext) -> i64 {
    let length = context.duration(Duration::from_secs(30), Duration::from_secs(5));
    i64::try_from(length.as_secs()).unwrap_or(i64::MAX)
}

/// Returns the delays of the fires.
pub(super) async fn round(
    context: &RunContext,
    fleet_spec: &FleetSpec,
) -> Result<(LatencyHistogram, Check)> {
    let fires = fires(context);
    let database = context.database("schedules_one").await?;
    let session = &database.session;
    session.query_typed(SET, &[]).await?;
    database.vacuum_and_checkpoint().await?;
    let mut fleet = Fleet::start(context, &database, fleet_spec).await?;
    // Do not count the first fire: it is delayed, because the worker first finds and parses the
    // schedule.
    fleet.until(ANY, &[]).await?;
    let from: Timestamp = database_now(&**session).await?;
    sleep(Duration::from_secs(fires.unsigned_abs())).await;
    fleet.until(ENDED, &[&from, &fires]).await?;
    fleet.stop().await?;
    let mut times = LatencyHistogram::new()?;
    for row in session.query(DELAYS, &[&from, &fires]).await? {
        times.add(row.get(0));
    }
    let row = session.query_one(OUTCOME, &[&from, &fires]).await?;
    let [seconds, succeeded, others]: [i64; 3] = [0, 1, 2].map(|n| row.get(n));
    let check = Check {
        what: "one fire per second, and every run succeeded".to_owned(),
        passed: (seconds, succeeded, others) == (fires, fires, 0),
        detail: format!("{succeeded} succeeded in {seconds} s; {others} other log entries"),
    };
    context.drop_database(database).await?;
    Ok((times, check))
}
