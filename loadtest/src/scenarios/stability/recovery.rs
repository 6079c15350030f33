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
use crate::context::session::Session;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::{close_queue, open_queue, until_empty};
use crate::measure::effects;
use crate::measure::rounds::{Measured, alternate, case};
use crate::result::{Better, Case, Check, Scenario};

/// Queue that only the worker serves that is about to fail, so that its reclaimed tasks stay
/// pending.
const VICTIM: &str = "victim";

/// Number of tasks that the failing worker runs.
const HELD: i64 = 8;

const HOLDS: &str = "SELECT pg_sleep(600)";

const RUNNING: &str = "SELECT /* loadtest.running */ count(*) FROM mill.tasks t WHERE t.queue = 'victim' AND t.state = 'running'";

const PENDING: &str = "SELECT /* loadtest.pending */ count(*) FROM mill.tasks t WHERE t.queue = 'victim' AND t.state = 'pending'";

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
    let seconds = |name: &str, goal| Case { goal: Some(goal), ..case(name, "s", Better::Lower) };
    let mut cases = vec![
        seconds("kill -9 until its tasks are pending", 5.0),
        seconds("SIGSTOP until its tasks are pending", f64::from(timeouts.orphan) + 5.0),
    ];
    let mut notes = vec![format!(
        "{HELD} tasks are running when the worker is killed or stopped; the time ends when all of them are pending; heartbeat {} s, orphan timeout {} s",
        timeouts.heartbeat, timeouts.orphan
    )];
    if context.cluster().is_some() {
        cases.push(seconds("database accepts until the first claim", 2.0));
    } else {
        notes.push(
            "restart not measured: a server given by --database-url is not restarted".to_owned(),
        );
    }
    let mut checks = Vec::new();
    alternate(context, "recovery", &mut cases, async |n, round| {
        let value = match n {
            0 => loss(context, &database, &timeouts, Signal::KILL).await?,
            1 => loss(context, &database, &timeouts, Signal::STOP).await?,
            _ => {
                let (value, check) = restart(context, &mut database).await?;
                checks.push(Check { what: format!("{}, round {round}", check.what), ..check });
                value
            }
        };
        Ok(Measured { value, ..Measured::default() })
    })
    .await?;
    context.drop_database(database).await?;
    // The promise about dead workers holds for every round, not only for the median.
    checks.extend(cases[..2].iter().map(within));
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

/// Checks that every round met the goal.
fn within(case: &Case) -> Check {
    let longest = case.rounds.iter().copied().fold(0.0, f64::max);
    let bound = case.goal.unwrap_or(f64::INFINITY);
    Check {
        what: format!("{}, every round within {bound} s", case.name),
        passed: longest <= bound,
        detail: format!("at most {longest:.1} s in {} rounds", case.rounds.len()),
    }
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
    let session = &database.session;
    database.empty().await?;
    open_queue(database).await?;
    let others = Fleet::start(context, database, &timeouts.fleet_spec("other", 1)).await?;
    let mut victim =
        Fleet::start(context, database, &timeouts.fleet_spec(VICTIM, HELD.try_into()?)).await?;
    let options = TaskOptions { queue: Some(VICTIM.to_owned()), ..TaskOptions::default() };
    let held = NewTask { statement: HOLDS.to_owned(), ..NewTask::default() };
    enqueue_many(&**session, &vec![held; usize::try_from(HELD)?], &options).await?;
    until(session, RUNNING, HELD).await?;
    // The fault happens between two heartbeats.
    sleep(Duration::from_millis(700)).await;
    let begun = Instant::now();
    if signal == Signal::KILL {
        victim.kill_oldest().await?;
    } else {
        victim.signal(signal)?;
    }
    until(session, PENDING, HELD).await?;
    let took = begun.elapsed().as_secs_f64();
    others.stop().await?;
    drop(victim);
    Ok(took)
}

async fn until(session: &Session, count: &str, wanted: i64) -> Result<()> {
    let begun = Instant::now();
    while session.query_typed(count, &[]).await?[0].get::<_, i64>(0) != wanted {
        ensure!(begun.elapsed() < TIMEOUT, "the held tasks did not reach the expected state");
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Returns the seconds from the first connection that a restarted server accepts until the first
/// claim, and whether the interrupted drain completed correctly.
async fn restart(context: &RunContext, database: &mut Database) -> Result<(f64, Check)> {
    let tasks = context.size(50_000, 10_000);
    let cluster = Arc::clone(context.cluster().context("there is no private cluster to restart")?);
    database.empty().await?;
    close_queue(database).await?;
    database.fill(&context.progress, (1, tasks), EFFECT).await?;
    database.vacuum_and_checkpoint().await?;
    let mut fleet = Fleet::start(context, database, &FleetSpec::from_options(context)).await?;
    open_queue(database).await?;
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
    until_empty(context, database, &mut fleet).await?;
    fleet.stop().await?;
    database.session = session;
    let first: Option<f64> = database.session.query_one(FIRST_CLAIM, &[&accepts_at]).await?.get(0);
    let first =
        first.context("no task was claimed after the restart: the drain had already finished")?;
    let check = effects::all(&*database.session, 1, tasks).await?;
    // The time is negative if the fleet reconnected before this function did.
    Ok((first.max(0.0), Check { what: format!("{}, after a restart", check.what), ..check }))
}
