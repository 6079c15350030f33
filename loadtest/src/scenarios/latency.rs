//! Measures the pick-up latency of tasks that are enqueued with SQL: one task at a time on an idle
//! fleet, on a fleet at half of its capacity, and tasks at steady rates on a fleet that has nothing
//! else to do.
//!
//! Both times are read from the server's clock: `clock_timestamp()` right after the commit of the
//! enqueue, on the same connection, and `clock_timestamp()` in the task's own statement.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::future;
use jiff::Timestamp;
use queue::enqueue::{NewTask, TaskOptions, enqueue, enqueue_many};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};
use tokio_postgres::types::Type;
use tokio_util::sync::CancellationToken;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::context::session::Session;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::{Until, drain};
use crate::measure::effects;
use crate::measure::latency::LatencyHistogram;
use crate::measure::rounds::{Measured, against, alternate, at_most};
use crate::result::{Case, Check, Scenario};

const TABLE: &str = "CREATE /* loadtest.starts */ TABLE loadtest.starts (probe bigint NOT NULL PRIMARY KEY, at timestamptz NOT NULL)";

/// The server executes this statement right after the commit.
const COMMITTED: &str = "SELECT /* loadtest.committed */ clock_timestamp()";

const STARTED: &str =
    "SELECT /* loadtest.started */ s.at FROM loadtest.starts s WHERE s.probe = $1";

const ALL_STARTED: &str =
    "SELECT /* loadtest.all_started */ s.probe, s.at FROM loadtest.starts s ORDER BY s.probe";

const COUNT: &str = "SELECT /* loadtest.probes */ count(*) FROM loadtest.starts";

/// Pause between two probes; varied to avoid synchronizing with periodic activity.
const PAUSE_MS: std::ops::Range<u64> = 5..15;

/// Interval at which the load is enqueued.
const TICK: Duration = Duration::from_millis(5);

const TIMEOUT: Duration = Duration::from_secs(30);

/// What the fleet has to do, in tasks per second.
#[derive(Clone, Copy)]
enum Load {
    /// Nothing but one probe after the other.
    Nothing,
    /// Other tasks, in addition to one probe after the other.
    Beside(f64),
    /// Probes at this rate.
    Probes(f64),
}

/// Cases with steady rates, and the number of tasks in a full and in a quick run.
const PACED: [(&str, f64, [i64; 2]); 4] = [
    ("1 per second", 1.0, [30, 4]),
    ("10 per second", 10.0, [200, 40]),
    ("100 per second", 100.0, [2_000, 300]),
    ("800 per second", 800.0, [12_000, 2_000]),
];

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let database = context.database("latency").await?;
    database.session.batch_execute(TABLE).await?;
    context.progress.stage("latency: measuring the fleet's capacity");
    database.renew(&context.progress, context.size(50_000, 10_000), EFFECT).await?;
    let capacity = drain(context, &database, &fleet_spec, Until::Empty, 0).await?.rate();
    let probes = context.tasks(3_000, 500);
    let mut kinds =
        vec![("idle", Load::Nothing, probes), ("50 % load", Load::Beside(capacity / 2.0), probes)];
    kinds.extend(
        PACED.map(|(name, rate, [full, quick])| {
            (name, Load::Probes(rate), context.size(full, quick))
        }),
    );
    let cases = kinds.iter().map(|(name, load, _)| p50_and_p99(name, *load)[0].clone()).collect();
    let mut scenario = alternate(context, cases, async |n, _| {
        let (name, load, probes) = kinds[n];
        let fleet = (&database, &fleet_spec);
        let (times, check) = round(context, fleet, load, probes).await?;
        let ([_, tail], p99) = (p50_and_p99(name, load), times.at(99.0));
        Ok(Measured::of_times(times).also(tail, p99).check(check))
    })
    .await?;
    scenario.notes = vec![
        format!("{probes} probes per round without a rate, {}", fleet_spec.describe()),
        format!(
            "load: {:.0} tasks/s, half of the rate at which the fleet drained just before",
            capacity / 2.0
        ),
    ];
    Ok(scenario)
}

/// Returns the cases for the median and for the 99th percentile.
fn p50_and_p99(name: &str, load: Load) -> [Case; 2] {
    let (p50, p99) = (format!("{name}, p50"), format!("{name}, p99"));
    match load {
        Load::Nothing => [at_most(p50, "ms", 1.0), at_most(p99, "ms", 3.0)],
        Load::Beside(_) => [
            Case { goal: None, ..at_most(p50, "ms", 0.0) },
            // At most three times the p99 of the idle fleet.
            against(at_most(p99, "ms", 0.0), "idle, p99", Some(3.0)),
        ],
        Load::Probes(_) => [at_most(p50, "ms", 2.0), at_most(p99, "ms", 20.0)],
    }
}

async fn round(
    context: &RunContext,
    (database, fleet_spec): (&Database, &FleetSpec),
    load: Load,
    probes: i64,
) -> Result<(LatencyHistogram, Check)> {
    database.empty().await?;
    database.session.batch_execute("TRUNCATE /* loadtest.no_starts */ loadtest.starts").await?;
    database.vacuum_and_checkpoint().await?;
    let mut fleet = Fleet::start(context, database, fleet_spec).await?;
    database.resume().await?;
    warm_up(database, &mut fleet).await?;
    let mut busy = JoinSet::new();
    let stop = CancellationToken::new();
    if let Load::Beside(rate) = load {
        let session = context.connect(database.url()).await?;
        busy.spawn(keep_busy(session, rate, stop.clone()));
        // Wait until the load is steady.
        sleep(Duration::from_secs(1)).await;
    }
    let mut times = LatencyHistogram::new()?;
    let session = context.connect(database.url()).await?;
    if let Load::Probes(rate) = load {
        let committed_at = enqueue_at_rate(&session, probes, rate).await?;
        fleet.until_empty().await?;
        for row in session.query_typed(ALL_STARTED, &[]).await? {
            let (n, started_at): (i64, Timestamp) = (row.get(0), row.get(1));
            // A task can start before the session has the next command.
            times.add(milliseconds(committed_at[usize::try_from(n - 1)?], started_at));
        }
    } else {
        for n in 1..=probes {
            times.add(probe(&session, n).await?);
            sleep(Duration::from_millis(PAUSE_MS.start + n.cast_unsigned() * 7 % 10)).await;
            fleet.check()?;
            context.progress.state(&format!("{n} of {probes}, p50 {:.2} ms", times.at(50.0)));
        }
    }
    stop.cancel();
    let mut sent = 0;
    while let Some(ended) = busy.join_next().await {
        sent = ended??;
    }
    fleet.until_empty().await?;
    fleet.stop().await?;
    let check = effects::all(&*database.session, 1, sent).await?;
    let ran: i64 = database.session.query_typed(COUNT, &[]).await?[0].get(0);
    let check = Check {
        passed: check.passed && ran == probes,
        detail: format!("{ran} of {probes} probes ran; load: {}", check.detail),
        ..check
    };
    Ok((times, check))
}

/// Runs a first task, and waits until the workers listen for notifications.
async fn warm_up(database: &Database, fleet: &mut Fleet<'_>) -> Result<()> {
    let first = NewTask { statement: "SELECT 1".to_owned(), ..NewTask::default() };
    enqueue(&*database.session, &first, &TaskOptions::default(), None).await?;
    fleet.until_empty().await?;
    sleep(Duration::from_millis(500)).await;
    Ok(())
}

fn milliseconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64() * 1000.0
}

/// Enqueues a probe, and returns the time of the commit.
async fn commit_probe(session: &Session, n: i64) -> Result<Timestamp> {
    let statement =
        format!("INSERT INTO loadtest.starts (probe, at) VALUES ({n}, clock_timestamp())");
    let task = NewTask { statement, ..NewTask::default() };
    let options = TaskOptions::default();
    // Sent at once, so that the server reads its clock right after the commit.
    let (enqueued, committed) = future::join(
        enqueue(&**session, &task, &options, None),
        session.query_typed(COMMITTED, &[]),
    )
    .await;
    enqueued?;
    Ok(committed?[0].get(0))
}

/// Enqueues the probes at a steady rate, and returns the times of the commits.
async fn enqueue_at_rate(session: &Session, probes: i64, rate: f64) -> Result<Vec<Timestamp>> {
    let begun = Instant::now();
    let mut committed_at = Vec::new();
    for n in 1..=probes {
        committed_at.push(commit_probe(session, n).await?);
        #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
        let due = begun + Duration::from_secs_f64(n as f64 / rate);
        sleep_until(due.into()).await;
    }
    Ok(committed_at)
}

/// Returns the milliseconds from the commit of an enqueue to the start of the task's statement.
async fn probe(session: &Session, n: i64) -> Result<f64> {
    let committed_at = commit_probe(session, n).await?;
    let begun = Instant::now();
    loop {
        // Long enough for most probes, so that this poll does not disturb the next probe.
        sleep(Duration::from_millis(4)).await;
        let rows = session.query_typed(STARTED, &[(&n, Type::INT8)]).await?;
        if let Some(row) = rows.first() {
            let started_at: Timestamp = row.get(0);
            return Ok(milliseconds(committed_at, started_at));
        }
        ensure!(begun.elapsed() < TIMEOUT, "probe {n} has not run after {TIMEOUT:?}");
    }
}

/// Enqueues numbered effects at a steady rate until the stop signal; returns their number.
#[expect(clippy::cast_possible_truncation, reason = "a rate times a time, in tasks")]
async fn keep_busy(session: Session, rate: f64, stop: CancellationToken) -> Result<i64> {
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
            sent = due;
        }
        sleep(TICK).await;
    }
    Ok(sent)
}
