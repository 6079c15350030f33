//! Measures the costs that grow with the fleet: the statements that each worker sends on its own,
//! in fleets of up to 1,250 workers with 10,000 running tasks; and the cost of one task, from which
//! other loads can be computed. The fleets are rows and locks created by the workers' own
//! statements, without processes: the scenario measures the server's work for them.

use anyhow::{Result, ensure};

use crate::context::RunContext;
use crate::measure::rounds::{Measured, against, alternate, case};
use crate::result::{Better, Case, Scenario};

mod simulated_fleet;
mod task;

use simulated_fleet::{MEASURED, Operation, SimulatedFleet};

/// Readers per worker.
const READERS: u32 = 8;

/// Fleet sizes.
const SIZES: [u32; 3] = [10, 100, 1250];

/// Pending tasks in addition to the running ones.
const BACKLOG: i64 = 100_000;

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let database = context.database("scale").await?;
    ensure!(database.counts_statements, "this scenario needs pg_stat_statements on the server");
    let calls = context.size(300, 50);
    // All operations in all fleets need one fleet that grows, so they are one turn.
    let cases = vec![cost(MEASURED[0], SIZES[0])];
    let mut scenario = alternate(context, cases, async |_, _| {
        let running = i64::from(SIZES[2] * READERS);
        database.renew(&context.progress, BACKLOG + running, "SELECT %s").await?;
        database.resume().await?;
        let mut simulated_fleet = SimulatedFleet::new(context, &database).await?;
        let mut measured = Measured::default();
        for size in SIZES {
            context.progress.stage(&format!("scale: {size} workers"));
            simulated_fleet.grow(size, READERS).await?;
            for what in MEASURED {
                let buffers = simulated_fleet.cost(what, calls).await?;
                if (what, size) == (MEASURED[0], SIZES[0]) {
                    measured.value = Some(buffers);
                } else {
                    measured = measured.also(cost(what, size), buffers);
                }
            }
        }
        simulated_fleet.deregister().await?;
        Ok(measured)
    })
    .await?;
    context.drop_database(database).await?;
    task::add_costs(context, &mut scenario).await?;
    scenario.notes = vec![
        format!(
            "{calls} calls of each statement, {READERS} readers per worker, {BACKLOG} tasks pending"
        ),
        "buffers: average, without planning".to_owned(),
    ];
    Ok(scenario)
}

/// Returns the case of an operation in a fleet, compared with the smallest fleet.
fn cost(what: Operation, size: u32) -> Case {
    let name = |size| format!("{}, {size} workers, buffers", what.name());
    let case = case(name(size), "buffers", Better::Lower);
    if size == SIZES[0] { case } else { against(case, &name(SIZES[0]), None) }
}
