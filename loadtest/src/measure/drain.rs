//! One timed round of the fleet. The queue is filled and paused and the workers are connected; then
//! the queue is resumed and the clock starts.
//!
//! The times of all tasks are read from history afterwards. This costs the round nothing, and the
//! times are exact to the microsecond of the database's clock.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::context::RunContext;
use crate::context::database::Database;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::processor_time;
use crate::measure::rounds::Measured;
use crate::measure::sample::Sampler;
use crate::result::Series;

const DONE: &str = "SELECT /* loadtest.done */ count(*), coalesce(extract(epoch FROM max(a.finished_at) - $1), 0)::float8
FROM {table} a WHERE a.finished_at >= $1 AND a.finished_at < $2 AND a.outcome = 'succeeded'";

const BY_SECOND: &str = "SELECT /* loadtest.by_second */ floor(extract(epoch FROM a.finished_at - $1))::float8 AS second, count(*)::float8
FROM {table} a WHERE a.finished_at >= $1 AND a.finished_at < $2 AND a.outcome = 'succeeded'
GROUP BY 1 ORDER BY 1";

/// History table to read.
pub(crate) const FLEET: &str = "mill.attempts";
pub(crate) const CEILING: &str = "bare.attempts";

/// End condition of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// The queue is empty.
    Empty,
    /// This much time has passed; remaining tasks stay in the queue.
    Passed(Duration),
}

/// Result of a round.
#[derive(Debug, Default)]
pub(crate) struct Drained {
    /// Tasks that succeeded during the round.
    pub(crate) tasks: i64,
    /// Seconds from the resume of the queue to the end of the last of these tasks; in a round of
    /// fixed length, this length.
    pub(crate) seconds: f64,
    pub(crate) series: Vec<Series>,
    /// Processor time of the fleet by part; `None` if the server may run on another machine.
    processor_seconds: Option<processor_time::Parts>,
}

impl Drained {
    /// Tasks per second.
    #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
    pub(crate) fn rate(&self) -> f64 {
        self.tasks as f64 / self.seconds.max(f64::EPSILON)
    }

    /// Returns the rate of a case, and its processor time per task.
    pub(crate) fn with_processor_time(self, case: &str) -> Measured {
        let (seconds, tasks) = (self.processor_seconds, self.tasks);
        let measured = Measured::from(self);
        match seconds {
            Some(seconds) => processor_time::add(measured, case, seconds, tasks),
            None => measured,
        }
    }
}

impl From<Drained> for Measured {
    fn from(drained: Drained) -> Self {
        let value = drained.rate();
        Self { series: drained.series, ..Self::new(value) }
    }
}

/// Starts a fleet, runs the tasks of the paused queue, and stops the fleet.
pub(crate) async fn drain(
    context: &RunContext,
    database: &Database,
    fleet_spec: &FleetSpec,
    until: Until,
    round: usize,
) -> Result<Drained> {
    let mut fleet = Fleet::start(context, database, fleet_spec).await?;
    let pids = fleet.pids();
    let sampler = Sampler::start(context, database, pids.clone()).await?;
    let time = async || processor_time::read(context, &database.session, &pids).await;
    let before = time().await?;
    let opened_at = database.resume().await?;
    let length = match until {
        Until::Empty => {
            fleet.until_empty().await?;
            None
        }
        Until::Passed(length) => {
            sleep(length).await;
            database.pause().await?;
            Some(length)
        }
    };
    let after = time().await?;
    let series = sampler.end(round);
    fleet.check()?;
    fleet.stop().await?;
    let mut drained = done(&database.session, FLEET, (opened_at, length), round).await?;
    drained.series.extend(series);
    let parts = after.zip(before);
    drained.processor_seconds =
        parts.map(|(after, before)| [0, 1, 2].map(|n| after[n] - before[n]));
    Ok(drained)
}

/// Counts the tasks that succeeded since the queue was resumed, or within the length of the round
/// if given.
pub(crate) async fn done(
    client: &Client,
    table: &str,
    (opened_at, length): (Timestamp, Option<Duration>),
    round: usize,
) -> Result<Drained> {
    let end = length.map_or(Timestamp::MAX, |length| opened_at + length);
    let of_table = |sql: &str| sql.replace("{table}", table);
    let row = client.query_one(&of_table(DONE), &[&opened_at, &end]).await?;
    let seconds = length.map_or(row.get(1), |length| length.as_secs_f64());
    let end = opened_at + Duration::from_secs_f64(seconds);
    let rows = client.query(&of_table(BY_SECOND), &[&opened_at, &end]).await?;
    let by_second = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let series = vec![Series::by_second("throughput", "tasks/s", round, (by_second, seconds))];
    Ok(Drained { tasks: row.get(0), seconds, series, processor_seconds: None })
}
