//! Measures the costs that grow with the fleet: the statements that each worker sends on its own,
//! in fleets of up to 1,250 workers with 10,000 running tasks; and the cost of one task, from which
//! other loads can be computed. The fleets are rows and locks created by the workers' own
//! statements, without processes: the scenario measures the server's work for them.

use anyhow::{Result, ensure};

use crate::context::RunContext;
use crate::result::{Better, Case, Scenario};
use crate::rounds::{against, case};

mod simulated_fleet;
mod task;

use simulated_fleet::{MEASURED, SimulatedFleet};

/// Readers per worker.
const READERS: u32 = 8;

/// Fleet sizes.
const SIZES: [u32; 3] = [10, 100, 1250];

/// Pending tasks in addition to the running ones.
const BACKLOG: i64 = 100_000;

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let database = context.database("scale").await?;
    ensure!(database.counts_statements, "this scenario needs pg_stat_statements on the server");
    let (mut times, mut buffers) = cases();
    let running = i64::from(SIZES[2] * READERS);
    for round in 1..=context.rounds() {
        database.empty().await?;
        database.fill(context, (1, BACKLOG + running), "SELECT %s").await?;
        database.vacuum_and_checkpoint().await?;
        let mut simulated_fleet = SimulatedFleet::new(context, &database).await?;
        for (n, size) in SIZES.into_iter().enumerate() {
            context.progress.stage(&format!("scale: {size} workers, round {round}"));
            simulated_fleet.grow(size, READERS).await?;
            for (m, what) in MEASURED.iter().enumerate() {
                let cost = simulated_fleet.cost(*what, context.size(300, 50)).await?;
                times[m * SIZES.len() + n].rounds.push(cost.ms);
                buffers[m * SIZES.len() + n].rounds.push(cost.buffers);
            }
        }
        simulated_fleet.deregister().await?;
        context.keep(&times);
    }
    context.drop_database(database).await?;
    let (tasks, checks) = task::costs(context).await?;
    let notes = vec![
        format!(
            "{} calls of each statement, {READERS} readers per worker, {BACKLOG} tasks pending",
            context.size(300, 50)
        ),
        "ms: median at the client, one round trip; buffers: average, without planning".to_owned(),
    ];
    let cases = times.into_iter().chain(buffers).chain(tasks).collect();
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

/// Returns latencies and buffers of each statement in each fleet, compared with the smallest fleet.
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
