//! From the reply to the enqueue's commit to the start of the statement in the server, one task at a
//! time, on a worker that waits.
//!
//! Who enqueues is a process of its own. When the reply came is its wall clock, when the statement
//! started is the server's: the two are one, for both run on this machine.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use queue::enqueue::{NewTask, TaskOptions, enqueue, ring};
use tokio::time::sleep;

use super::adapter::{Adapter, Committed, PATIENCE, Place, Worked};
use super::catalog::Variant;
use super::{Entry, Field, conclude, fresh_database, set_up, take_turns};
use crate::bench::Bench;
use crate::database::Database;
use crate::fleet::{Crew, Fleet};
use crate::result::{Better, Percentiles, Scenario};
use crate::rounds::case;

/// Between two tasks: three to five quarters of it.
const GAP_MS: i64 = 25;

/// Of a round, not counted: connections, caches and runtimes warm up.
const WARM_UP: i64 = 20;

/// What the peers' adapters do, without a handler.
const START: &str =
    "INSERT INTO loadtest.starts (task, statement_at) VALUES (%s, clock_timestamp())";

const READ: &str = "/* loadtest.starts */
SELECT s.task, extract(epoch FROM s.statement_at)::float8 FROM loadtest.starts s ORDER BY s.task";

const FIRST: &str =
    "/* loadtest.first_start */ SELECT count(*) FROM loadtest.starts s WHERE s.task = 0";

/// Not above the best peer.
const GOAL: Option<f64> = Some(1.0);

pub(super) async fn run(bench: &Bench, field: &Field) -> Result<Scenario> {
    let crew = Crew::usual(bench);
    let count = WARM_UP + bench.size(200, 50);
    let new = |name: String| vec![case(name, "ms", Better::Lower)];
    let mut entries = vec![Entry::own(new(format!("pgmill, {}", crew.words())))];
    for adapter in &field.adapters {
        for variant in adapter.peer.pickup {
            entries.push(Entry::peer(adapter, variant, new(adapter.peer.case(variant))));
        }
    }
    let mut waits: Vec<Vec<f64>> = vec![Vec::new(); entries.len()];
    take_turns(bench, "peers-latency", &mut entries, async |n, round, peer| {
        let database = fresh_database(bench, n, round).await?;
        let committed_at = match peer {
            None => own_round(bench, &database, &crew, count).await?,
            Some((adapter, variant)) => peer_round(&database, adapter, variant, count).await?,
        };
        let mut round = waits_of(&database, &committed_at).await?;
        waits[n].extend(&round);
        bench.drop_database(database).await?;
        round.sort_by(f64::total_cmp);
        Ok(vec![at(&round, 0.5)])
    })
    .await?;
    for (entry, waits) in entries.iter_mut().zip(waits) {
        if entry.failed.is_none() {
            entry.cases[0].percentiles = percentiles(waits);
        }
    }
    let mut scenario = conclude(entries, &[(0, GOAL)]);
    scenario.name = "peers-latency".to_owned();
    scenario.title = "from the enqueue's commit to the statement's start, idle worker".to_owned();
    scenario.notes.push(format!(
        "{} tasks a round, one every {GAP_MS} ms, enqueued by another process; the first {WARM_UP} \
         do not count; a round's value is its median",
        count - WARM_UP
    ));
    Ok(scenario)
}

async fn own_round(
    bench: &Bench,
    database: &Database,
    crew: &Crew,
    count: i64,
) -> Result<Vec<f64>> {
    let fleet = Fleet::start(bench, database, crew).await?;
    let session = bench.connect(database.url()).await?;
    let mut committed_at = Vec::new();
    for n in 0..=count {
        let task = NewTask { statement: START.replace("%s", &n.to_string()), ..NewTask::default() };
        enqueue(&*session, &task, &TaskOptions::default(), None).await?;
        committed_at.push(wall_clock());
        ring(&*session).await?;
        if n == 0 {
            first_start(database).await?;
        }
        // As the adapters: sixteenths of the gap, in no order that repeats soon.
        let sixteenths = 12 + (n * 7 + n / 5) % 9;
        sleep(Duration::from_millis(u64::try_from(GAP_MS * sixteenths / 16)?)).await;
    }
    committed_at.remove(0);
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
    let place = Place { url: database.url(), settings: variant.settings };
    let limit = PATIENCE.as_secs();
    let worker = adapter.start(place, &format!("work starts {} {limit}", count + 1))?;
    let _: Committed = adapter.step(place, "enqueue-paced 0 1 0", PATIENCE).await?;
    first_start(database).await?;
    let words = format!("enqueue-paced 1 {count} {GAP_MS}");
    let committed: Committed = adapter.step(place, &words, PATIENCE).await?;
    let worked: Worked = worker.end(PATIENCE * 2).await?;
    ensure!(worked.done > count, "{} of {} jobs were run", worked.done, count + 1);
    Ok(committed.committed_at)
}

/// The worker is there and has run task 0; then it is given a moment to fall asleep.
async fn first_start(database: &Database) -> Result<()> {
    let begun = Instant::now();
    while database.session.query_typed(FIRST, &[]).await?[0].get::<_, i64>(0) == 0 {
        ensure!(begun.elapsed() < PATIENCE, "the first task was not run in {PATIENCE:?}");
        sleep(Duration::from_millis(20)).await;
    }
    sleep(Duration::from_millis(500)).await;
    Ok(())
}

/// Milliseconds for each task that counts. `committed_at` begins with task 1.
async fn waits_of(database: &Database, committed_at: &[f64]) -> Result<Vec<f64>> {
    let rows = database.session.query(READ, &[]).await?;
    let mut waits = Vec::new();
    for row in &rows {
        let (task, started_at): (i64, f64) = (row.get(0), row.get(1));
        if task > WARM_UP {
            let place = usize::try_from(task - 1)?;
            let committed_at = committed_at.get(place).context("a task that nobody enqueued")?;
            waits.push((started_at - committed_at) * 1000.0);
        }
    }
    let wanted = committed_at.len() - usize::try_from(WARM_UP)?;
    ensure!(waits.len() == wanted, "{} of {wanted} tasks started", waits.len());
    Ok(waits)
}

/// Seconds since the epoch, by the clock that the server reads too.
#[expect(
    clippy::disallowed_methods,
    reason = "the moment a reply arrives is known here only; the server is on this machine"
)]
fn wall_clock() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// The value that this share of the sorted ones does not exceed.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a place in a list"
)]
fn at(sorted: &[f64], share: f64) -> f64 {
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(place.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

fn percentiles(mut waits: Vec<f64>) -> Option<Percentiles> {
    waits.sort_by(f64::total_cmp);
    let max = *waits.last()?;
    let points = [0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 100.0];
    Some(Percentiles {
        count: waits.len().try_into().ok()?,
        p50: at(&waits, 0.5),
        p90: at(&waits, 0.9),
        p99: at(&waits, 0.99),
        p999: at(&waits, 0.999),
        max,
        curve: points.iter().map(|&point| (point, at(&waits, point / 100.0))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_list() {
        let waits: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        let found = percentiles(waits).unwrap();
        assert_eq!((found.count, found.p50, found.p99, found.p999), (1000, 500.0, 990.0, 999.0));
        assert_eq!((found.max, found.curve[0]), (1000.0, (0.0, 1.0)));
        assert_eq!(percentiles(Vec::new()), None);
        assert_eq!(percentiles(vec![7.0]).unwrap().p90, 7.0);
    }
}
