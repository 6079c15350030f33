//! A backlog of `SELECT 1`: what the queue itself costs, beside the same transactions without it.

use anyhow::Result;

use super::drain::{ceiling_round, fleet_round};
use crate::bench::Bench;
use crate::ceiling::Ceiling;
use crate::fleet::Crew;
use crate::result::{Check, Scenario};
use crate::rounds::{against, alternate, rate};

const CEILING: &str = "ceiling, one commit per task";
const FLEET: &str = "one commit per task";

const NOTHING: &str = "SELECT 1";

pub(crate) async fn run(bench: &Bench) -> Result<Scenario> {
    let crew = Crew::usual(bench);
    let tasks = bench.tasks(100_000, 20_000);
    let database = bench.database("noop").await?;
    let mut cases = [rate(CEILING), against(rate(FLEET), CEILING, None)];
    let mut checks = Vec::new();
    alternate(bench, "noop", &mut cases, async |n, round| {
        if n == 0 {
            let connections = crew.readers();
            let ceiling = Ceiling { connections, group: 1, last: tasks, statement: NOTHING };
            return Ok(ceiling_round(bench, &database, ceiling, round).await?.into());
        }
        let drained = fleet_round(bench, &database, &crew, (tasks, NOTHING), round).await?;
        checks.push(Check {
            what: format!("every task succeeded, round {round}"),
            passed: drained.tasks == tasks,
            detail: format!("{tasks} tasks, {} succeeded", drained.tasks),
        });
        Ok(drained.into())
    })
    .await?;
    bench.drop_database(database).await?;
    let notes = vec![format!("{tasks} tasks a round, {}", crew.words())];
    Ok(Scenario { cases: cases.to_vec(), checks, notes, ..Scenario::default() })
}
