//! The same drain in two databases: in one of them something lies beside the queue's way that must
//! not matter.

use anyhow::Result;

use crate::bench::Bench;
use crate::database::{Database, EFFECT, QUEUE};
use crate::drain::{Until, close_queue, drain};
use crate::effects;
use crate::fleet::Crew;
use crate::result::{Check, Scenario};
use crate::rounds::{against, alternate, rate};

/// What is compared.
pub(crate) struct Beside {
    pub(crate) scenario: &'static str,
    /// The case that is the reference.
    pub(crate) without: String,
    pub(crate) with: String,
    /// In a round.
    pub(crate) tasks: i64,
}

/// Drains in turns; `lay` puts the matter into the second database.
pub(crate) async fn compare(
    bench: &Bench,
    beside: &Beside,
    lay: impl AsyncFnOnce(&Database) -> Result<()>,
) -> Result<Scenario> {
    let Beside { scenario, without, with, tasks } = beside;
    // Nothing but the queue of the tasks that are counted.
    let mut crew = Crew::usual(bench);
    crew.flags.extend(["--queues".to_owned(), QUEUE.to_owned()]);
    let plain = bench.database(&format!("{scenario}_without")).await?;
    let laden = bench.database(&format!("{scenario}_with")).await?;
    bench.progress.stage(&format!("{scenario}: preparing {with}"));
    lay(&laden).await?;
    let databases = [plain, laden];
    let mut cases = [rate(without), against(rate(with), without, Some(0.9))];
    alternate(bench, scenario, &mut cases, async |n, round| {
        let database = &databases[n];
        close_queue(database).await?;
        let first = i64::try_from(round - 1)? * tasks + 1;
        database.fill(bench, (first, first + tasks - 1), EFFECT).await?;
        database.settle().await?;
        Ok(drain(bench, database, &crew, Until::Empty, round).await?.into())
    })
    .await?;
    let mut checks = Vec::new();
    let last = i64::try_from(bench.rounds())? * tasks;
    for (database, case) in databases.into_iter().zip(&cases) {
        let check = effects::all(&*database.session, 1, last).await?;
        checks.push(Check { what: format!("{}, {}", check.what, case.name), ..check });
        bench.drop_database(database).await?;
    }
    let notes = vec![format!("{tasks} tasks a round, {}", crew.words())];
    Ok(Scenario { cases: cases.to_vec(), checks, notes, ..Scenario::default() })
}
