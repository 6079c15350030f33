//! Compares the same drain in two databases; one contains something that must not affect the rate.

use anyhow::Result;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT, QUEUE};
use crate::fleet::FleetSpec;
use crate::measure::drain::{Until, close_queue, drain};
use crate::measure::effects;
use crate::measure::rounds::{against, alternate, rate};
use crate::result::{Check, Scenario};

/// The two cases and their size.
pub(crate) struct ControlCase {
    pub(crate) scenario: &'static str,
    /// Name of the reference case.
    pub(crate) without: String,
    pub(crate) with: String,
    /// Tasks per round.
    pub(crate) tasks: i64,
}

/// Drains both databases alternately; `lay` prepares the second database.
pub(crate) async fn compare(
    context: &RunContext,
    control_case: &ControlCase,
    lay: impl AsyncFnOnce(&Database) -> Result<()>,
) -> Result<Scenario> {
    let ControlCase { scenario, without, with, tasks } = control_case;
    // Serve only the queue of the counted tasks.
    let mut fleet_spec = FleetSpec::from_options(context);
    fleet_spec.flags.extend(["--queues".to_owned(), QUEUE.to_owned()]);
    let plain = context.database(&format!("{scenario}_without")).await?;
    let laden = context.database(&format!("{scenario}_with")).await?;
    context.progress.stage(&format!("{scenario}: preparing {with}"));
    lay(&laden).await?;
    let databases = [plain, laden];
    let mut cases = [rate(without), against(rate(with), without, Some(0.9))];
    alternate(context, scenario, &mut cases, async |n, round| {
        let database = &databases[n];
        close_queue(database).await?;
        let first = i64::try_from(round - 1)? * tasks + 1;
        database.fill(&context.progress, (first, first + tasks - 1), EFFECT).await?;
        database.vacuum_and_checkpoint().await?;
        Ok(drain(context, database, &fleet_spec, Until::Empty, round).await?.into())
    })
    .await?;
    let mut checks = Vec::new();
    let last = i64::try_from(context.rounds())? * tasks;
    for (database, case) in databases.into_iter().zip(&cases) {
        let check = effects::all(&*database.session, 1, last).await?;
        checks.push(Check { what: format!("{}, {}", check.what, case.name), ..check });
        context.drop_database(database).await?;
    }
    let notes = vec![format!("{tasks} tasks per round, {}", fleet_spec.describe())];
    Ok(Scenario { cases: cases.to_vec(), checks, notes, ..Scenario::default() })
}
