//! Measures the time to recover from three faults: a worker is killed, a worker is frozen as in a
//! network partition, and the database restarts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::Mode;
use jiff::Timestamp;
use queue::enqueue::{NewTask, TaskOptions, enqueue_many};
use rustix::process::Signal;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::effects;
use crate::measure::rounds::{Measured, alternate, at_most};
use crate::result::{Check, Scenario};

/// Queue that only the worker serves that is about to fail, so that its reclaimed tasks stay
/// pending.
const VICTIM: &str = "victim";

/// Number of tasks that the failing worker runs.
const HELD: usize = 8;

const HOLDS: &str = "SELECT pg_sleep(600)";

const RUNNING: &str = "SELECT /* loadtest.running */ count(*) = 8 FROM mill.tasks t WHERE t.queue = 'victim' AND t.state = 'running'";

const PENDING: &str = "SELECT /* loadtest.pending */ count(*) = 8 FROM mill.tasks t WHERE t.queue = 'victim' AND t.state = 'pending'";

/// First claim after a point in time, of running and of finished tasks.
const FIRST_CLAIM: &str = "SELECT /* loadtest.first_claim */ extract(epoch FROM least(
    (SELECT min(t.claimed_at) FROM mill.tasks t WHERE t.claimed_at > pg_postmaster_start_time()),
    (SELECT min(a.started_at) FROM mill.attempts a WHERE a.started_at > pg_postmaster_start_time())
    ) - $1)::float8";

const NOW: &str = "SELECT /* loadtest.accepts */ clock_timestamp()";

/// Duration of the drain before the restart.
const UNDER_WAY: Duration = Duration::from_secs(1);

const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let mut database = context.database("recovery").await?;
    let timeouts = context.size(Timeouts::default(), Timeouts { heartbeat: 1, orphan: 4 });
    let bounds = [5.0, f64::from(timeouts.orphan) + 5.0];
    let mut cases = vec![
        at_most("kill -9 until its tasks are pending", "s", bounds[0]),
        at_most("SIGSTOP until its tasks are pending", "s", bounds[1]),
    ];
    if context.cluster().is_some() {
        cases.push(at_most("database accepts until the first claim", "s", 2.0));
    }
    let mut scenario = alternate(context, cases, async |n, _| {
        if n == 2 {
            let (seconds, check) = restart(context, &mut database).await?;
            return Ok(Measured::new(seconds).check(check));
        }
        let signal = [Signal::KILL, Signal::STOP][n];
        let seconds = loss(context, &database, &timeouts, signal).await?;
        // The promise about dead workers holds for every round, not only for the median.
        Ok(Measured::new(seconds).check(Check {
            what: format!("within {} s", bounds[n]),
            passed: seconds <= bounds[n],
            detail: format!("{seconds:.1} s"),
        }))
    })
    .await?;
    scenario.notes = vec![format!(
        "{HELD} tasks are running when the worker is killed or stopped; the time ends when all of \
         them are pending; heartbeat {} s, orphan timeout {} s",
        timeouts.heartbeat, timeouts.orphan
    )];
    if context.cluster().is_none() {
        let note = "restart not measured: a server given by --database-url is not restarted";
        scenario.notes.push(note.to_owned());
    }
    Ok(scenario)
}

/// Timeouts in seconds: the worker's defaults, or shorter ones for a quick run.
struct Timeouts {
    heartbeat: u32,
    orphan: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { heartbeat: 5, orphan: 30 }
    }
}

impl Timeouts {
    fn fleet_spec(&self, queue: &str, readers: u32) -> FleetSpec {
        let flags = vec![
            "--queues".to_owned(),
            queue.to_owned(),
            format!("--heartbeat-interval={}s", self.heartbeat),
            format!("--orphan-timeout={}s", self.orphan),
        ];
        FleetSpec { flags, ..FleetSpec::new(1, readers) }
    }
}

/// Returns the seconds from a signal to the worker until all of its tasks are pending again.
async fn loss(
    context: &RunContext,
    database: &Database,
    timeouts: &Timeouts,
    signal: Signal,
) -> Result<f64> {
    database.empty().await?;
    database.resume().await?;
    let mut others = Fleet::start(context, database, &timeouts.fleet_spec("other", 1)).await?;
    let victim =
        Fleet::start(context, database, &timeouts.fleet_spec(VICTIM, HELD.try_into()?)).await?;
    let options = TaskOptions { queue: Some(VICTIM.to_owned()), ..TaskOptions::default() };
    let held = NewTask { statement: HOLDS.to_owned(), ..NewTask::default() };
    enqueue_many(&*database.session, &vec![held; HELD], &options).await?;
    others.until(RUNNING, &[]).await?;
    // The fault happens between two heartbeats.
    sleep(Duration::from_millis(700)).await;
    let begun = Instant::now();
    victim.signal(signal)?;
    others.until(PENDING, &[]).await?;
    let took = begun.elapsed().as_secs_f64();
    others.stop().await?;
    drop(victim);
    Ok(took)
}

/// Returns the seconds from the first connection that a restarted server accepts until the first
/// claim, and whether the interrupted drain completed correctly.
async fn restart(context: &RunContext, database: &mut Database) -> Result<(f64, Check)> {
    let tasks = context.size(50_000, 10_000);
    let cluster = Arc::clone(context.cluster().context("there is no private cluster to restart")?);
    database.renew(&context.progress, tasks, EFFECT).await?;
    let mut fleet = Fleet::start(context, database, &FleetSpec::from_options(context)).await?;
    database.resume().await?;
    sleep(UNDER_WAY).await;
    let restarting = spawn_blocking(move || {
        let mut cluster = cluster.lock();
        cluster.stop(Mode::Fast)?;
        cluster.start_again()
    });
    // The session is still open: the server may not be down yet.
    while !database.session.is_closed() {
        sleep(Duration::from_millis(1)).await;
    }
    let begun = Instant::now();
    let session = loop {
        match context.connect(database.url()).await {
            Ok(session) => break session,
            Err(error) => ensure!(begun.elapsed() < TIMEOUT, error),
        }
        sleep(Duration::from_millis(5)).await;
    };
    let accepts_at: Timestamp = session.query_typed(NOW, &[]).await?[0].get(0);
    restarting.await??;
    fleet.until_empty().await?;
    fleet.stop().await?;
    database.session = session;
    let first: Option<f64> = database.session.query_one(FIRST_CLAIM, &[&accepts_at]).await?.get(0);
    let first =
        first.context("no task was claimed after the restart: the drain had already finished")?;
    let check = effects::all(&*database.session, 1, tasks).await?;
    // The time is negative if the fleet reconnected before this function did.
    Ok((first.max(0.0), Check { what: format!("{}, after a restart", check.what), ..check }))
}
