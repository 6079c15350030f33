//! What grows with the fleet, counted: the statements that each worker sends by itself, in fleets of up
//! to 1,250 workers with 10,000 tasks running; and what one task costs, from which the rest is worked
//! out. The fleets are rows and locks as the workers' own statements make them, and no processes: what
//! is measured is what the server does for them.

use anyhow::{Result, ensure};

use crate::bench::Bench;
use crate::result::{Better, Case, Scenario};
use crate::rounds::{against, case};

mod crowd;
mod task;

use crowd::{Crowd, MEASURED};

/// Of each worker.
const READERS: u32 = 8;

/// Workers of the fleets.
const SIZES: [u32; 3] = [10, 100, 1250];

/// Tasks that wait behind those that run.
const BACKLOG: i64 = 100_000;

pub(crate) async fn run(bench: &Bench) -> Result<Scenario> {
    let database = bench.database("scale").await?;
    ensure!(
        database.counts_statements,
        "the server has no pg_stat_statements, and this scenario counts by it"
    );
    let (mut times, mut buffers) = cases();
    let running = i64::from(SIZES[2] * READERS);
    for round in 1..=bench.rounds() {
        database.empty().await?;
        database.fill(bench, (1, BACKLOG + running), "SELECT %s").await?;
        database.settle().await?;
        let mut crowd = Crowd::new(bench, &database).await?;
        for (n, size) in SIZES.into_iter().enumerate() {
            bench.progress.stage(&format!("scale: {size} workers, round {round}"));
            crowd.grow(size, READERS).await?;
            for (m, what) in MEASURED.iter().enumerate() {
                let cost = crowd.cost(*what, bench.size(300, 50)).await?;
                times[m * SIZES.len() + n].rounds.push(cost.ms);
                buffers[m * SIZES.len() + n].rounds.push(cost.buffers);
            }
        }
        crowd.leave().await?;
        bench.keep(&times);
    }
    bench.drop_database(database).await?;
    let (tasks, checks) = task::costs(bench).await?;
    let notes = vec![
        format!(
            "{} calls of each statement, {READERS} readers a worker, {BACKLOG} tasks pending",
            bench.size(300, 50)
        ),
        "ms: as the client sees it, one round trip, median; buffers: average, without planning"
            .to_owned(),
    ];
    let cases = times.into_iter().chain(buffers).chain(tasks).collect();
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

/// Times and buffers: each statement in each fleet, held against the smallest.
fn cases() -> (Vec<Case>, Vec<Case>) {
    let all = |unit: &str| {
        let unit = unit.to_owned();
        MEASURED.iter().flat_map(move |what| {
            let named = |size: u32, unit: &str| format!("{}, {size} workers, {unit}", what.name());
            let smallest = named(SIZES[0], &unit);
            let unit = unit.clone();
            SIZES.into_iter().map(move |size| {
                let one = case(named(size, &unit), &unit, Better::Lower);
                if size == SIZES[0] { one } else { against(one, &smallest, None) }
            })
        })
    };
    (all("ms").collect(), all("buffers").collect())
}
