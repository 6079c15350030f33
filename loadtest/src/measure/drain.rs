//! One timed round of the fleet. The queue is filled and paused and the workers are connected; then
//! the queue is resumed and the clock starts.
//!
//! The times of all tasks are read from history afterwards. This costs the round nothing, and the
//! times are exact to the microsecond of the database's clock.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use jiff::Timestamp;
use queue::enqueue::database_now;
use queue::operate::{pause, resume};
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::context::RunContext;
use crate::context::database::{Database, QUEUE};
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::fleet_time::FleetTime;
use crate::measure::rounds::Measured;
use crate::measure::sample::Sampler;
use crate::result::Series;

/// Tests whether tasks with the last ids are still present. Tasks are claimed in the order of their
/// ids, so the queue is not empty as long as they are present. The query reads only one page.
const LAST: &str = "SELECT /* loadtest.last */ count(*) FROM mill.tasks t WHERE t.id > $1";

/// Tests whether tasks of this queue are pending, or any tasks are running.
const LEFT: &str = "SELECT /* loadtest.left */ EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'pending' AND t.queue = 'default')
    OR EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'running')";

/// Makes the two queries above use the queue's small indexes. With millions of scheduled tasks, the
/// planner would otherwise choose a scan of the whole table, because it expects to find a pending
/// task soon.
const BY_INDEX: &str =
    "SET /* loadtest.by_index */ enable_seqscan = off; SET enable_bitmapscan = off";

const NEWEST: &str = "SELECT /* loadtest.newest */ coalesce(max(t.id), 0) FROM mill.tasks t";

/// Estimates the number of finished tasks for the progress display. The statistics may be a second
/// old.
const GONE: &str = "SELECT /* loadtest.gone */ s.n_tup_del FROM pg_stat_user_tables s WHERE s.relid = 'mill.tasks'::regclass";

const DONE: &str = "SELECT /* loadtest.done */ count(*), coalesce(extract(epoch FROM max(a.finished_at) - $1), 0)::float8
FROM {table} a WHERE a.finished_at >= $1 AND a.finished_at < $2 AND a.outcome = 'succeeded'";

const BY_SECOND: &str = "SELECT /* loadtest.by_second */ floor(extract(epoch FROM a.finished_at - $1))::float8 AS second, count(*)::float8
FROM {table} a WHERE a.finished_at >= $1 AND a.finished_at < $2 AND a.outcome = 'succeeded'
GROUP BY 1 ORDER BY 1";

/// History table to read.
pub(crate) const FLEET: &str = "mill.attempts";
pub(crate) const CEILING: &str = "bare.attempts";

/// No progress for this long means that a component hangs.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// End condition of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// The queue is empty.
    Empty,
    /// This much time has passed; remaining tasks stay in the queue.
    Passed(Duration),
}

/// Result of a round.
#[derive(Debug)]
pub(crate) struct Drained {
    /// Tasks that succeeded during the round.
    pub(crate) tasks: i64,
    /// Seconds from the resume of the queue to the end of the last of these tasks; in a round of
    /// fixed length, this length.
    pub(crate) seconds: f64,
    pub(crate) series: Vec<Series>,
    /// Processor time of the fleet; `None` if the server may run on another machine.
    pub(crate) time: Option<FleetTime>,
}

impl Drained {
    /// Tasks per second.
    #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
    pub(crate) fn rate(&self) -> f64 {
        self.tasks as f64 / self.seconds.max(f64::EPSILON)
    }
}

impl From<Drained> for Measured {
    fn from(drained: Drained) -> Self {
        Self { value: drained.rate(), series: drained.series }
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
    let time = async || match context.postmaster() {
        Some(_) => FleetTime::read(&database.session, &pids).await.map(Some),
        None => Ok(None),
    };
    let before = time().await?;
    let opened_at = open_queue(database).await?;
    let length = match until {
        Until::Empty => {
            until_empty(context, database, &mut fleet).await?;
            None
        }
        Until::Passed(length) => {
            sleep(length).await;
            close_queue(database).await?;
            Some(length)
        }
    };
    let after = time().await?;
    let mut series = sampler.end(round);
    fleet.check()?;
    fleet.stop().await?;
    let mut drained = done(&database.session, FLEET, opened_at, length).await?;
    series.extend(throughput(&database.session, FLEET, opened_at, &drained, round).await?);
    drained.series = series;
    drained.time = after.zip(before).map(|(after, before)| after - before);
    Ok(drained)
}

/// Pauses the queue: no task is claimed until [`open_queue`].
pub(crate) async fn close_queue(database: &Database) -> Result<()> {
    Ok(pause(&*database.session, QUEUE).await?)
}

/// Resumes the queue. Returns the database's time just before.
pub(crate) async fn open_queue(database: &Database) -> Result<Timestamp> {
    let opened_at = database_now(&*database.session).await?;
    resume(&*database.session, QUEUE).await?;
    Ok(opened_at)
}

/// Returns once no task is pending or running.
pub(crate) async fn until_empty(
    context: &RunContext,
    database: &Database,
    fleet: &mut Fleet<'_>,
) -> Result<()> {
    let session = context.connect(database.url()).await?;
    session.batch_execute(BY_INDEX).await?;
    let mut gauge = DrainProgress::new(context, &session).await?;
    let newest: i64 = session.query_one(NEWEST, &[]).await?.get(0);
    let last = session.prepare(LAST).await?;
    let mut near = false;
    loop {
        if !near {
            near = session.query_one(&last, &[&(newest - 50)]).await?.get::<_, i64>(0) == 0;
        }
        if near && !session.query_typed(LEFT, &[]).await?[0].get::<_, bool>(0) {
            return Ok(());
        }
        fleet.check()?;
        gauge.refresh().await.map_err(|error| error.context(fleet.tails()))?;
        sleep(POLL_INTERVAL).await;
    }
}

/// Reports progress and detects a stall.
pub(crate) struct DrainProgress<'a> {
    context: &'a RunContext,
    session: &'a Client,
    at_first: i64,
    gone: i64,
    begun: Instant,
    refreshed_at: Instant,
    moved: Instant,
}

impl<'a> DrainProgress<'a> {
    pub(crate) async fn new(
        context: &'a RunContext,
        session: &'a Client,
    ) -> Result<DrainProgress<'a>> {
        let at_first = session.query_typed(GONE, &[]).await?[0].get(0);
        let now = Instant::now();
        Ok(Self {
            context,
            session,
            at_first,
            gone: at_first,
            begun: now,
            refreshed_at: now,
            moved: now,
        })
    }

    /// Updates the display; called once a second.
    #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
    pub(crate) async fn refresh(&mut self) -> Result<()> {
        if self.refreshed_at.elapsed() < Duration::from_secs(1) {
            return Ok(());
        }
        self.refreshed_at = Instant::now();
        let gone: i64 = self.session.query_typed(GONE, &[]).await?[0].get(0);
        if gone > self.gone {
            self.gone = gone;
            self.moved = Instant::now();
        }
        ensure!(self.moved.elapsed() < STALL_TIMEOUT, "no task has finished for {STALL_TIMEOUT:?}");
        let done = gone - self.at_first;
        let rate = done as f64 / self.begun.elapsed().as_secs_f64();
        self.context.progress.state(&format!("about {done} tasks, {rate:.0} tasks/s"));
        Ok(())
    }
}

/// Counts the tasks that succeeded since the queue was resumed, or within the length of the round
/// if given.
pub(crate) async fn done(
    client: &Client,
    table: &str,
    opened_at: Timestamp,
    length: Option<Duration>,
) -> Result<Drained> {
    let end = match length {
        Some(length) => opened_at + length,
        None => Timestamp::MAX,
    };
    let row = client.query_one(&DONE.replace("{table}", table), &[&opened_at, &end]).await?;
    let seconds = length.map_or(row.get(1), |length| length.as_secs_f64());
    Ok(Drained { tasks: row.get(0), seconds, series: Vec::new(), time: None })
}

/// Returns the tasks finished in each full second.
pub(crate) async fn throughput(
    client: &Client,
    table: &str,
    opened_at: Timestamp,
    drained: &Drained,
    round: usize,
) -> Result<Option<Series>> {
    let end = opened_at + Duration::from_secs_f64(drained.seconds);
    let rows = client.query(&BY_SECOND.replace("{table}", table), &[&opened_at, &end]).await?;
    // The last second is incomplete.
    let whole = drained.seconds.floor();
    let points: Vec<(f64, f64)> = rows
        .iter()
        .map(|row| (row.get::<_, f64>(0), row.get::<_, f64>(1)))
        .filter(|(second, _)| *second < whole)
        .map(|(second, tasks)| (second + 0.5, tasks))
        .collect();
    let series = Series { name: "throughput".into(), unit: "tasks/s".into(), round, points };
    Ok((!series.points.is_empty()).then_some(series))
}
