//! Measures the pick-up latency of tasks: one task at a time on an idle fleet, and on a fleet at
//! half of its capacity.
//!
//! Both times are read from the server's clock: `clock_timestamp()` right after the commit of the
//! enqueue, on the same connection, and `clock_timestamp()` in the task's own statement.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::future;
use jiff::Timestamp;
use queue::enqueue::{NewTask, TaskOptions, enqueue, enqueue_many, notify};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::types::Type;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::context::session::Session;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::{open_queue, until_empty};
use crate::measure::effects;
use crate::measure::latency::LatencyHistogram;
use crate::measure::rounds::{Measured, against, alternate, case};
use crate::result::{Better, Case, Check, Scenario};
use crate::scenarios::throughput::drain::fleet_round;

const TABLE: &str = "CREATE /* loadtest.starts */ TABLE loadtest.starts (probe bigint NOT NULL PRIMARY KEY, at timestamptz NOT NULL)";

/// The server executes this statement right after the commit.
const COMMITTED: &str = "SELECT /* loadtest.committed */ clock_timestamp()";

const STARTED: &str =
    "SELECT /* loadtest.started */ s.at FROM loadtest.starts s WHERE s.probe = $1";

const COUNT: &str = "SELECT /* loadtest.probes */ count(*) FROM loadtest.starts";

/// Pause between two probes; varied to avoid synchronizing with periodic activity.
const PAUSE_MS: std::ops::Range<u64> = 5..15;

/// Interval at which the load is enqueued.
const TICK: Duration = Duration::from_millis(5);

const TIMEOUT: Duration = Duration::from_secs(30);

const IDLE: &str = "idle";
const LOADED: &str = "50 % load";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let database = context.database("latency").await?;
    database.session.batch_execute(TABLE).await?;
    context.progress.stage("latency: measuring the fleet's capacity");
    let tasks = context.size(50_000, 10_000);
    let can = fleet_round(context, &database, &fleet_spec, (tasks, EFFECT), 0).await?.rate();
    let probes = context.tasks(3_000, 500);
    let mut kinds = [Kind::new(IDLE, None)?, Kind::new(LOADED, Some(can / 2.0))?];
    let mut medians = kinds.each_ref().map(Kind::case);
    let mut checks = Vec::new();
    alternate(context, "latency", &mut medians, async |n, round| {
        let kind = &mut kinds[n];
        let setting = Setting { context, database: &database, fleet_spec: &fleet_spec, probes };
        let check = setting.round(kind, round).await?;
        checks.push(check);
        let value = kind.rounds.last().map_or(f64::NAN, |times| times.at(50.0));
        Ok(Measured { value, ..Measured::default() })
    })
    .await?;
    context.drop_database(database).await?;
    let mut cases = Vec::new();
    for (kind, median) in kinds.iter().zip(medians) {
        let mut all = LatencyHistogram::new()?;
        kind.rounds.iter().try_for_each(|times| all.merge(times))?;
        cases.push(Case { percentiles: Some(all.percentiles()), ..median });
        cases.push(kind.tail());
    }
    let notes = vec![
        format!("{probes} probes per round, {}", fleet_spec.describe()),
        format!(
            "load: {:.0} tasks/s, half of the rate at which the fleet drained just before",
            can / 2.0
        ),
    ];
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

/// One of the two cases with its rounds.
struct Kind {
    name: &'static str,
    /// Concurrent load in tasks per second.
    load: Option<f64>,
    rounds: Vec<LatencyHistogram>,
}

impl Kind {
    fn new(name: &'static str, load: Option<f64>) -> Result<Self> {
        Ok(Self { name, load, rounds: Vec::new() })
    }

    fn case(&self) -> Case {
        let goal = self.load.is_none().then_some(1.0);
        Case { goal, ..case(format!("{}, p50", self.name), "ms", Better::Lower) }
    }

    fn tail(&self) -> Case {
        let mut tail = case(format!("{}, p99", self.name), "ms", Better::Lower);
        tail.goal = Some(3.0);
        if self.load.is_some() {
            // Goal: at most three times the p99 of the idle fleet.
            tail = against(tail, &format!("{IDLE}, p99"), Some(3.0));
        }
        tail.rounds = self.rounds.iter().map(|times| times.at(99.0)).collect();
        tail
    }
}

struct Setting<'a> {
    context: &'a RunContext,
    database: &'a Database,
    fleet_spec: &'a FleetSpec,
    probes: i64,
}

impl Setting<'_> {
    async fn round(&self, kind: &mut Kind, round: usize) -> Result<Check> {
        let Self { context, database, fleet_spec, probes } = *self;
        database.empty().await?;
        database.session.batch_execute("TRUNCATE /* loadtest.no_starts */ loadtest.starts").await?;
        database.vacuum_and_checkpoint().await?;
        let mut fleet = Fleet::start(context, database, fleet_spec).await?;
        open_queue(database).await?;
        let mut load = JoinSet::new();
        let stop = tokio_util::sync::CancellationToken::new();
        if let Some(rate) = kind.load {
            let session = context.connect(database.url()).await?;
            load.spawn(keep_busy(session, rate, stop.clone()));
            // Wait until the load is steady.
            sleep(Duration::from_secs(1)).await;
        }
        let mut times = LatencyHistogram::new()?;
        let session = context.connect(database.url()).await?;
        for n in 1..=probes {
            times.add(probe(&session, n).await?);
            sleep(Duration::from_millis(PAUSE_MS.start + n.cast_unsigned() * 7 % 10)).await;
            if n % 100 == 0 {
                fleet.check()?;
                context.progress.state(&format!("{n} of {probes}, p50 {:.2} ms", times.at(50.0)));
            }
        }
        kind.rounds.push(times);
        stop.cancel();
        let mut sent = 0;
        while let Some(ended) = load.join_next().await {
            sent = ended??;
        }
        until_empty(context, database, &mut fleet).await?;
        fleet.stop().await?;
        let check = effects::all(&*database.session, 1, sent).await?;
        let ran: i64 = database.session.query_typed(COUNT, &[]).await?[0].get(0);
        Ok(Check {
            what: format!("{}, {}, round {round}", check.what, kind.name),
            passed: check.passed && ran == probes,
            detail: format!("{ran} of {probes} probes ran; load: {}", check.detail),
        })
    }
}

/// Returns the milliseconds from the commit of an enqueue to the start of the task's statement.
async fn probe(session: &Session, n: i64) -> Result<f64> {
    let statement =
        format!("INSERT INTO loadtest.starts (probe, at) VALUES ({n}, clock_timestamp())");
    let task = NewTask { statement, ..NewTask::default() };
    let options = TaskOptions::default();
    // As queue::enqueue::enqueue_and_notify, with the time of the commit.
    let (enqueued, committed, notified) = future::join3(
        enqueue(&**session, &task, &options, None),
        session.query_typed(COMMITTED, &[]),
        notify(&**session),
    )
    .await;
    enqueued?;
    notified?;
    let committed_at: Timestamp = committed?[0].get(0);
    let begun = Instant::now();
    loop {
        // Long enough for most probes, so that this poll does not disturb the next probe.
        sleep(Duration::from_millis(4)).await;
        let rows = session.query_typed(STARTED, &[(&n, Type::INT8)]).await?;
        if let Some(row) = rows.first() {
            let started_at: Timestamp = row.get(0);
            let took = started_at.duration_since(committed_at);
            return Ok(took.as_secs_f64() * 1000.0);
        }
        ensure!(begun.elapsed() < TIMEOUT, "probe {n} has not run after {TIMEOUT:?}");
    }
}

/// Enqueues numbered effects at a steady rate until the stop signal; returns their number.
#[expect(clippy::cast_possible_truncation, reason = "a rate times a time, in tasks")]
async fn keep_busy(
    session: Session,
    rate: f64,
    stop: tokio_util::sync::CancellationToken,
) -> Result<i64> {
    let begun = Instant::now();
    let options = TaskOptions::default();
    let mut sent = 0;
    while !stop.is_cancelled() {
        let due = (begun.elapsed().as_secs_f64() * rate) as i64;
        if due > sent {
            let tasks: Vec<NewTask> = (sent + 1..=due)
                .map(|n| NewTask {
                    statement: EFFECT.replace("%s", &n.to_string()),
                    ..NewTask::default()
                })
                .collect();
            enqueue_many(&*session, &tasks, &options).await?;
            notify(&*session).await?;
            sent = due;
        }
        sleep(TICK).await;
    }
    Ok(sent)
}
