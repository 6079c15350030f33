//! Measures the latency of one task at a time on an idle worker. The measurement begins when the
//! client that enqueues has the server's reply to its COMMIT, and ends when the task's statement
//! starts in the server.
//!
//! A separate process enqueues, and takes the time of the reply from its wall clock. The time of
//! the start comes from the server's clock. Both are the same clock, because both run on this
//! machine. For peers, the start of the handler is reported, too; it precedes the start of the
//! statement. pgmill has no handlers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use queue::enqueue::{NewTask, TaskOptions, enqueue};
use tokio::time::sleep;

use super::adapter::{Adapter, Committed, Step, StepContext, TIMEOUT, WorkSummary};
use super::catalog::Variant;
use super::install::Participants;
use super::round::set_up;
use super::turns::{Candidate, Entry, OWN, choose_way, into_scenario, take_turns};
use crate::context::RunContext;
use crate::context::database::Database;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::latency::LatencyHistogram;
use crate::measure::rounds::case;
use crate::result::{Better, Case, Scenario};

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
const START: &str =
    "INSERT INTO loadtest.starts (task, statement_at) VALUES (%s, clock_timestamp())";

const READ: &str =
    "SELECT /* loadtest.peer_starts */ s.task, extract(epoch FROM s.statement_at)::float8,
    extract(epoch FROM coalesce(s.handler_at, s.statement_at))::float8
FROM loadtest.starts s ORDER BY s.task";

const FIRST: &str =
    "SELECT /* loadtest.first_start */ count(*) FROM loadtest.starts s WHERE s.task = 0";

const SESSIONS: &str = "SELECT /* loadtest.peer_sessions */ count(*) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.backend_type = 'client backend'
    AND a.pid <> pg_backend_pid()";

/// Time limit of a peer's worker per round, in seconds; five seconds suffice.
const LIMIT: u64 = 60;

/// Goal: the maximum ratio of pgmill's latency to that of the best peer.
const GOAL: f64 = 1.0;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) async fn run(context: &RunContext, participants: &Participants) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let count = WARM_UP + context.size(200, 50);
    let mut entries = entries(participants);
    let mut waits: Vec<Waits> = Vec::new();
    for _ in &entries {
        waits.push(Waits::new()?);
    }
    take_turns(context, "peers-latency", &mut entries, async |database, n, candidate, _| {
        let committed_at = match candidate {
            Candidate::Own(way) => {
                choose_way(database, way).await?;
                own_round(context, database, &fleet_spec, count).await?
            }
            Candidate::Peer(adapter, variant) => {
                peer_round(database, adapter, variant, count).await?
            }
        };
        let found = Waits::of(database, &committed_at).await?;
        waits[n].merge(&found)?;
        Ok(found.both().map(|times| times.at(50.0)).to_vec())
    })
    .await?;
    for (entry, waits) in entries.iter_mut().zip(&waits) {
        // Without rounds there are no percentiles.
        for (case, times) in entry.cases.iter_mut().zip(waits.both()) {
            case.percentiles = case.median().map(|_| times.percentiles());
        }
    }
    let mut scenario = into_scenario(entries);
    scenario.notes.push(format!(
        "pgmill: {}; {} tasks per round, one every {GAP_MS} ms, enqueued by another process; the \
         first {WARM_UP} tasks do not count; the value of a round is the median of its tasks",
        fleet_spec.describe(),
        count - WARM_UP
    ));
    Ok(scenario)
}

fn entries(participants: &Participants) -> Vec<Entry<'_>> {
    let new = |name: String| case(name, "ms", Better::Lower);
    let mut entries = Vec::new();
    for (way, (name, _)) in OWN.into_iter().enumerate() {
        let case = Case { goal: Some(GOAL), ..new(name.to_owned()) };
        entries.push(Entry::own(way, name, vec![case]));
    }
    for adapter in &participants.adapters {
        for variant in adapter.peer.pickup {
            entries.push(Entry::peer(adapter, variant, |name| {
                vec![new(name.to_owned()), new(format!("{name}, to its handler"))]
            }));
        }
    }
    entries
}

async fn own_round(
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
        while n == 0 && !first_has_started(database).await? {
            fleet.check()?;
            sleep(POLL_INTERVAL).await;
        }
        // As in the adapters: the pause is 12/16 to 20/16 of the gap, and the order of these
        // factors has a long period.
        let sixteenths = 12 + (n * 7 + n / 5) % 9;
        sleep(Duration::from_millis(u64::try_from(GAP_MS * sixteenths / 16)?)).await;
    }
    committed_at.remove(0);
    all_have_started(database, count).await?;
    fleet.stop().await?;
    Ok(committed_at)
}

async fn peer_round(
    database: &Database,
    adapter: &Adapter,
    variant: &'static Variant,
    count: i64,
) -> Result<Vec<f64>> {
    set_up(database, adapter, variant).await?;
    let step_context = StepContext { url: database.url(), settings: variant.settings };
    let mut worker = adapter.start(step_context, &format!("work starts {} {LIMIT}", count + 1))?;
    ready(database, &mut worker).await?;
    let _: Committed = adapter.step(step_context, "enqueue-paced 0 1 0", TIMEOUT).await?;
    while !first_has_started(database).await? {
        worker.check().await?;
        sleep(POLL_INTERVAL).await;
    }
    let words = format!("enqueue-paced 1 {count} {GAP_MS}");
    let committed: Committed = adapter.step(step_context, &words, TIMEOUT).await?;
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

async fn first_has_started(database: &Database) -> Result<bool> {
    Ok(database.session.query_typed(FIRST, &[]).await?[0].get::<_, i64>(0) > 0)
}

/// Waits until all tasks have started. Needed because pgmill's worker runs no more tasks once it is
/// stopped; the adapters of the peers wait for their tasks themselves.
async fn all_have_started(database: &Database, count: i64) -> Result<()> {
    let begun = Instant::now();
    loop {
        let started = database.session.query(READ, &[]).await?.len();
        if i64::try_from(started)? > count {
            return Ok(());
        }
        ensure!(begun.elapsed() < TIMEOUT, "{started} of {} tasks started", count + 1);
        sleep(POLL_INTERVAL).await;
    }
}

/// Latencies from the commit to the start of the statement, and to the start of the handler before
/// it.
struct Waits {
    statement: LatencyHistogram,
    handler: LatencyHistogram,
}

impl Waits {
    fn new() -> Result<Self> {
        Ok(Self { statement: LatencyHistogram::new()?, handler: LatencyHistogram::new()? })
    }

    /// Computes the latencies of the counted tasks. `committed_at` begins with task 1.
    async fn of(database: &Database, committed_at: &[f64]) -> Result<Self> {
        let rows = database.session.query(READ, &[]).await?;
        let mut waits = Self::new()?;
        for row in rows.iter().filter(|row| row.get::<_, i64>(0) > WARM_UP) {
            let index = usize::try_from(row.get::<_, i64>(0) - 1)?;
            let committed_at =
                committed_at.get(index).context("a task ran that was not enqueued")?;
            waits.statement.add((row.get::<_, f64>(1) - committed_at) * 1000.0);
            waits.handler.add((row.get::<_, f64>(2) - committed_at) * 1000.0);
        }
        let wanted = committed_at.len() as u64 - WARM_UP.cast_unsigned();
        let timed = waits.statement.percentiles().count;
        ensure!(timed == wanted, "{timed} start times for {wanted} tasks");
        Ok(waits)
    }

    fn both(&self) -> [&LatencyHistogram; 2] {
        [&self.statement, &self.handler]
    }

    fn merge(&mut self, other: &Self) -> Result<()> {
        self.statement.merge(&other.statement)?;
        self.handler.merge(&other.handler)
    }
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
