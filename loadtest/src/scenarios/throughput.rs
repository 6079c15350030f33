//! Scenarios about throughput: drains of a backlog, and things that must not slow them down.
//!
//! | scenario | file |
//! |---|---|
//! | backlog of INSERTs: one commit per task and shared commits, with their ceilings | `drain` |
//! | heads of a small and of large backlogs | `backlog` |
//! | drain with an empty and with a long history | `history` |
//! | drain with and without scheduled tasks, and tasks of a run at its limit | `unaffected` |
//! | long drain while an old snapshot keeps dead rows | `pinned` |
//! | drain in the queue's database and in a target | `targets` |
//! | drain without tracing, and with tracing of no, some and all tasks | `tracing` |
//! | one backlog for 1 to 64 worker processes | `fleet` |

pub(crate) mod backlog;
pub(crate) mod drain;
pub(crate) mod fleet;
pub(crate) mod history;
pub(crate) mod pinned;
pub(crate) mod targets;
pub(crate) mod tracing;
pub(crate) mod unaffected;

use anyhow::Result;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT, QUEUE};
use crate::fleet::FleetSpec;
use crate::measure::drain::{Until, drain};
use crate::measure::effects;
use crate::measure::rounds::{Measured, against, alternate, rate};
use crate::result::{Case, Scenario};

/// A case of a comparison: a prepared database, and its fleet.
struct Arm {
    case: Case,
    database: Database,
    /// Database of the effects, if it is another one.
    target: Option<Database>,
    fleet_spec: FleetSpec,
}

/// Drains the same backlog with each of these arms.
async fn compare(context: &RunContext, tasks: i64, arms: Vec<Arm>) -> Result<Scenario> {
    let cases = arms.iter().map(|arm| arm.case.clone()).collect();
    let mut scenario = alternate(context, cases, async |n, round| {
        let Arm { database, target, fleet_spec, .. } = &arms[n];
        let last = i64::try_from(round)? * tasks;
        database.refill(&context.progress, (last - tasks + 1, last), EFFECT).await?;
        let drained = drain(context, database, fleet_spec, Until::Empty, round).await?;
        let effects_in = target.as_ref().unwrap_or(database);
        let check = effects::all(&*effects_in.session, 1, last).await?;
        Ok(Measured::from(drained).check(check))
    })
    .await?;
    scenario.notes = vec![format!("{tasks} tasks per round, {}", arms[0].fleet_spec.describe())];
    Ok(scenario)
}

/// Compares two databases, of which `prepare` fills one with something that must not matter.
async fn with_and_without(
    context: &RunContext,
    tasks: i64,
    [without, with]: [String; 2],
    prepare: impl AsyncFnOnce(&Database) -> Result<()>,
) -> Result<Scenario> {
    // Serve only the queue of the counted tasks.
    let mut fleet_spec = FleetSpec::from_options(context);
    fleet_spec.flags.extend(["--queues".to_owned(), QUEUE.to_owned()]);
    context.progress.stage(&format!("preparing {with}"));
    let laden = context.database("with").await?;
    prepare(&laden).await?;
    let cases = [rate(&without), against(rate(with), &without, Some(0.9))];
    let databases = [context.database("without").await?, laden];
    let arms = cases.into_iter().zip(databases).map(|(case, database)| Arm {
        case,
        database,
        target: None,
        fleet_spec: fleet_spec.clone(),
    });
    compare(context, tasks, arms.collect()).await
}
