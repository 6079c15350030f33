//! Measures the latency of one task at a time on an idle worker. The measurement begins when the
//! client that enqueues has the server's reply to its COMMIT, and ends when the task's statement
//! starts in the server.
//!
//! A separate process enqueues, and takes the time of the reply from its wall clock. The time of
//! the start comes from the server's clock. Both are the same clock, because both run on this
//! machine.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use queue::enqueue::{NewTask, TaskOptions, enqueue};
use tokio::time::sleep;

use super::adapter::{Committed, Installed, Step, TIMEOUT, WorkSummary};
use super::install::Participants;
use super::turns::{Candidate, Comparison};
use crate::context::RunContext;
use crate::context::database::Database;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::latency::LatencyHistogram;
use crate::measure::rounds::{Measured, case};
use crate::result::{Better, Scenario};

/// Mean pause between two tasks in milliseconds. The actual pause is between 3/4 and 5/4 of it.
const GAP_MS: i64 = 25;

/// Number of tasks at the beginning of a round that are not counted, because connections, caches
/// and runtimes warm up.
const WARM_UP: i64 = 20;

/// A worker is ready when its connections have not changed for this long. A shorter time is not
/// enough: when a task arrived while the worker of awa was starting, this worker continued without
/// LISTEN and polled five times a second.
const READY: Duration = Duration::from_secs(2);

/// Statement of pgmill's tasks. The handlers of the peers run the same statement.
const START: &str = "INSERT INTO loadtest.starts (task, at) VALUES (%s, clock_timestamp())";

const READ: &str = "SELECT /* loadtest.peer_starts */ s.task, extract(epoch FROM s.at)::float8 FROM loadtest.starts s WHERE s.task > $1";

const STARTED: &str = "SELECT /* loadtest.have_started */ count(*) >= $1 FROM loadtest.starts s";

const SESSIONS: &str = "SELECT /* loadtest.peer_sessions */ count(*) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.backend_type = 'client backend'
    AND a.pid <> pg_backend_pid()";

/// Time limit of a peer's worker per round, in seconds; five seconds suffice.
const LIMIT: u64 = 60;

/// Goal: the maximum ratio of pgmill's latency to that of the best peer.
const GOAL: f64 = 1.0;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) async fn run(context: &RunContext, participants: &Participants) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let count = WARM_UP + context.size(200, 50);
    let comparison = Comparison {
        participants,
        variants: |peer| &peer.pickup,
        case: case("", "ms", Better::Lower),
        goals: [Some(GOAL); 2],
    };
    let mut scenario = comparison
        .run(context, async |database, candidate, _| {
            let committed_at = match candidate {
                Candidate::Pgmill => of_pgmill(context, database, &fleet_spec, count).await?,
                Candidate::Peer(adapter, variant) => {
                    of_peer(database, adapter.on(database, variant), count).await?
                }
            };
            Ok(Measured::of_times(times(database, &committed_at).await?))
        })
        .await?;
    scenario.notes.push(format!(
        "pgmill: {}; {} tasks per round, one every {GAP_MS} ms, enqueued by another process; the \
         first {WARM_UP} tasks do not count; the value of a round is the median of its tasks",
        fleet_spec.describe(),
        count - WARM_UP
    ));
    Ok(scenario)
}

/// Returns the times of the commits, from task 1.
async fn of_pgmill(
    context: &RunContext,
    database: &Database,
    fleet_spec: &FleetSpec,
    count: i64,
) -> Result<Vec<f64>> {
    let mut fleet = Fleet::start(context, database, fleet_spec).await?;
    let session = context.connect(database.url()).await?;
    let mut committed_at = Vec::new();
    for n in 0..=count {
        let task = NewTask { statement: START.replace("%s", &n.to_string()), ..NewTask::default() };
        enqueue(&*session, &task, &TaskOptions::default(), None).await?;
        committed_at.push(wall_clock());
        if n == 0 {
            fleet.until(STARTED, &[&1_i64]).await?;
        }
        // As in the adapters: the pause is 12/16 to 20/16 of the gap, and the order of these
        // factors has a long period.
        let sixteenths = 12 + (n * 7 + n / 5) % 9;
        sleep(Duration::from_millis(u64::try_from(GAP_MS * sixteenths / 16)?)).await;
    }
    committed_at.remove(0);
    // A worker that is stopped runs no more tasks; the adapters of the peers wait themselves.
    fleet.until(STARTED, &[&(count + 1)]).await?;
    fleet.stop().await?;
    Ok(committed_at)
}

async fn of_peer(database: &Database, peer: Installed<'_>, count: i64) -> Result<Vec<f64>> {
    peer.set_up().await?;
    let mut worker = peer.start(&format!("work starts {} {LIMIT}", count + 1))?;
    ready(database, &mut worker).await?;
    let _: Committed = peer.step("enqueue-paced 0 1 0", TIMEOUT).await?;
    while !database.session.query_one(STARTED, &[&1_i64]).await?.get::<_, bool>(0) {
        worker.check().await?;
        sleep(POLL_INTERVAL).await;
    }
    let words = format!("enqueue-paced 1 {count} {GAP_MS}");
    let committed: Committed = peer.step(&words, TIMEOUT).await?;
    let worked: WorkSummary = worker.end(TIMEOUT * 2).await?;
    ensure!(worked.done > count, "{} of {} jobs were run", worked.done, count + 1);
    Ok(committed.committed_at)
}

/// Returns when the worker has connected and appears to wait for work.
async fn ready(database: &Database, worker: &mut Step) -> Result<()> {
    let begun = Instant::now();
    let (mut sessions, mut since) = (0, begun);
    while sessions == 0 || since.elapsed() < READY {
        worker.check().await?;
        ensure!(begun.elapsed() < TIMEOUT, "the worker is not ready after {TIMEOUT:?}");
        sleep(POLL_INTERVAL).await;
        let now: i64 = database.session.query_typed(SESSIONS, &[]).await?[0].get(0);
        if now != sessions {
            (sessions, since) = (now, Instant::now());
        }
    }
    Ok(())
}

/// Returns the latencies of the counted tasks. `committed_at` begins with task 1.
async fn times(database: &Database, committed_at: &[f64]) -> Result<LatencyHistogram> {
    let mut times = LatencyHistogram::new()?;
    let rows = database.session.query(READ, &[&WARM_UP]).await?;
    for row in &rows {
        let (task, started_at): (i64, f64) = (row.get(0), row.get(1));
        let committed_at = committed_at.get(usize::try_from(task - 1)?);
        times.add((started_at - committed_at.context("unknown task")?) * 1000.0);
    }
    let wanted = committed_at.len() - usize::try_from(WARM_UP)?;
    ensure!(rows.len() == wanted, "{} start times for {wanted} tasks", rows.len());
    Ok(times)
}

/// Returns seconds since the epoch, by the clock that the server uses too.
#[expect(
    clippy::disallowed_methods,
    reason = "the moment a reply arrives is known here only; the server is on this machine"
)]
fn wall_clock() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}
