//! How soon work goes on after something broke: a worker killed, a worker stopped as by a partition,
//! the database restarted.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::Mode;
use jiff::Timestamp;
use queue::enqueue::{NewTask, TaskOptions, enqueue_many, notify};
use rustix::process::Signal;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::context::RunContext;
use crate::database::{Database, EFFECT};
use crate::drain::{close_queue, open_queue, until_empty};
use crate::effects;
use crate::fleet::{Fleet, FleetSpec};
use crate::result::{Better, Case, Check, Scenario};
use crate::rounds::{Measured, alternate, case};
use crate::session::Session;

/// Served by the worker that is about to fail, and by no other: what comes back stays pending.
const VICTIM: &str = "victim";

/// Tasks that the victim holds.
const HELD: i64 = 8;

const HOLDS: &str = "SELECT pg_sleep(600)";

const RUNNING: &str = "/* loadtest.running */
SELECT count(*) FROM mill.tasks t WHERE t.queue = 'victim' AND t.state = 'running'";

const PENDING: &str = "/* loadtest.pending */
SELECT count(*) FROM mill.tasks t WHERE t.queue = 'victim' AND t.state = 'pending'";

/// Claims after a moment, of tasks that still run and of those that are through.
const FIRST_CLAIM: &str = "/* loadtest.first_claim */
SELECT extract(epoch FROM least(
    (SELECT min(t.claimed_at) FROM mill.tasks t WHERE t.claimed_at > pg_postmaster_start_time()),
    (SELECT min(a.started_at) FROM mill.attempts a WHERE a.started_at > pg_postmaster_start_time())
    ) - $1)::float8";

const NOW: &str = "/* loadtest.accepts */ SELECT clock_timestamp()";

/// The drain before the restart.
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
        "{HELD} tasks held, the last one back counts; beat {} s, orphan timeout {} s",
        timeouts.heartbeat, timeouts.orphan
    )];
    if context.cluster().is_some() {
        cases.push(seconds("database accepts until the first claim", 2.0));
    } else {
        notes.push("the user's server is not restarted: that case is left out".to_owned());
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
    // What is promised of dead workers holds for each, not for the one in the middle.
    checks.extend(cases[..2].iter().map(within));
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

/// Whether each round met the goal.
fn within(case: &Case) -> Check {
    let longest = case.rounds.iter().copied().fold(0.0, f64::max);
    let bound = case.goal.unwrap_or(f64::INFINITY);
    Check {
        what: format!("{}, every time in {bound} s", case.name),
        passed: longest <= bound,
        detail: format!("at most {longest:.1} s in {} rounds", case.rounds.len()),
    }
}

/// In seconds; the worker's defaults, but for a quick run.
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

/// Seconds from a signal to the worker until all of its tasks are pending again.
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
    notify(&**session).await?;
    until(session, RUNNING, HELD).await?;
    // Somewhere between two beats.
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
        ensure!(begun.elapsed() < TIMEOUT, "the held tasks are not where they should be");
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Seconds from the first connection that a restarted server accepts until the first claim in it;
/// and whether the drain that it broke into came to its right end.
async fn restart(context: &RunContext, database: &mut Database) -> Result<(f64, Check)> {
    let tasks = context.size(50_000, 10_000);
    let cluster = Arc::clone(context.cluster().context("no cluster to restart")?);
    database.empty().await?;
    close_queue(database).await?;
    database.fill(context, (1, tasks), EFFECT).await?;
    database.vacuum_and_checkpoint().await?;
    let mut fleet = Fleet::start(context, database, &FleetSpec::from_options(context)).await?;
    open_queue(database).await?;
    sleep(UNDER_WAY).await;
    let restarting = spawn_blocking(move || {
        let mut cluster = cluster.lock().unwrap_or_else(PoisonError::into_inner);
        cluster.stop(Mode::Fast)?;
        cluster.start_again()
    });
    // Still open: the server may not be down yet.
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
        first.context("nothing was claimed after the restart: the drain was over before")?;
    let check = effects::all(&*database.session, 1, tasks).await?;
    // The fleet may have been quicker than the probe.
    Ok((first.max(0.0), Check { what: format!("{}, after a restart", check.what), ..check }))
}
