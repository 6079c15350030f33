//! A backlog of tasks, each of which inserts one row, until the queue is empty; afterwards every row
//! has to be there once. Beside it the ceiling: the same transactions with no queue around them.

use anyhow::Result;

use crate::bench::Bench;
use crate::ceiling::Ceiling;
use crate::database::{Database, EFFECT};
use crate::drain::{Drained, Until, close_queue, drain};
use crate::effects;
use crate::fleet::Crew;
use crate::result::{Check, Scenario};
use crate::rounds::{against, alternate, rate};

const CEILING: &str = "ceiling, one commit per task";
const FLEET: &str = "one commit per task";
const SHARED_CEILING: &str = "ceiling, 32 tasks per commit";

/// Tasks in one transaction of the ceiling for shared commits.
const GROUP: usize = 32;

pub(crate) async fn run(bench: &Bench) -> Result<Scenario> {
    let crew = Crew::usual(bench);
    let tasks = bench.tasks(100_000, 20_000);
    let database = bench.database("drain").await?;
    let mut cases = [
        rate(CEILING),
        against(rate(FLEET), CEILING, Some(0.85)),
        against(rate(SHARED_CEILING), CEILING, None),
    ];
    let mut checks = Vec::new();
    alternate(bench, "drain", &mut cases, async |n, round| {
        let connections = crew.readers();
        let ceiling = Ceiling { connections, group: 1, last: tasks, statement: EFFECT };
        let drained = match n {
            0 => ceiling_round(bench, &database, ceiling, round).await?,
            1 => fleet_round(bench, &database, &crew, (tasks, EFFECT), round).await?,
            _ => {
                let shared = Ceiling { group: GROUP, ..ceiling };
                ceiling_round(bench, &database, shared, round).await?
            }
        };
        let check = effects::all(&*database.session, 1, tasks).await?;
        checks
            .push(Check { what: format!("{}, {}, round {round}", check.what, NAMES[n]), ..check });
        Ok(drained.into())
    })
    .await?;
    bench.drop_database(database).await?;
    let notes = vec![format!("{tasks} tasks a round, {}", crew.words())];
    Ok(Scenario { cases: cases.to_vec(), checks, notes, ..Scenario::default() })
}

const NAMES: [&str; 3] = [CEILING, FLEET, SHARED_CEILING];

/// Fills the queue with so many tasks and lets a fleet loose on them.
pub(crate) async fn fleet_round(
    bench: &Bench,
    database: &Database,
    crew: &Crew,
    (tasks, statement): (i64, &str),
    round: usize,
) -> Result<Drained> {
    database.empty().await?;
    close_queue(database).await?;
    database.fill(bench, (1, tasks), statement).await?;
    database.settle().await?;
    drain(bench, database, crew, Until::Empty, round).await
}

/// The same without a queue.
pub(crate) async fn ceiling_round(
    bench: &Bench,
    database: &Database,
    ceiling: Ceiling,
    round: usize,
) -> Result<Drained> {
    database.empty().await?;
    database.fill_bare(bench, (1, ceiling.last), ceiling.statement).await?;
    database.settle().await?;
    ceiling.run(bench, database, round).await
}
