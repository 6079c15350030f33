//! Compares one process with many. Drains the same backlog with fleets of more and more worker
//! processes that have the same number of readers in total.

use anyhow::Result;

use super::drain::fleet_round;
use crate::context::RunContext;
use crate::context::database::EFFECT;
use crate::fleet::FleetSpec;
use crate::measure::effects;
use crate::measure::rounds::{alternate, rate};
use crate::result::{Case, Check, Scenario};

const PROCESSES: [u32; 5] = [1, 2, 4, 16, 64];

/// Readers of the whole fleet: one per process in the largest fleet.
const READERS: u32 = 64;

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let readers = context.run.readers.unwrap_or(READERS).max(READERS);
    let tasks = context.tasks(100_000, 10_000);
    let database = context.database("fleet").await?;
    let mut cases: Vec<Case> = PROCESSES.iter().map(|workers| rate(name(*workers))).collect();
    let mut checks = Vec::new();
    alternate(context, "fleet", &mut cases, async |n, round| {
        let fleet_spec = FleetSpec::new(PROCESSES[n], readers / PROCESSES[n]);
        let drained = fleet_round(context, &database, &fleet_spec, (tasks, EFFECT), round).await?;
        let check = effects::all(&*database.session, 1, tasks).await?;
        let what = format!("{}, {}, round {round}", check.what, name(PROCESSES[n]));
        checks.push(Check { what, ..check });
        Ok(drained.into())
    })
    .await?;
    context.drop_database(database).await?;
    set_goals(&mut cases);
    let notes = vec![format!(
        "{tasks} tasks per round, {readers} readers in total; the ratio of each fleet is to the \
         fleet with the best median"
    )];
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

fn name(workers: u32) -> String {
    if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") }
}

/// Makes the best fleet the reference; the largest fleet must come close to it.
fn set_goals(cases: &mut [Case]) {
    let best = cases.iter().max_by(|a, b| {
        let medians = (a.median().unwrap_or(0.0), b.median().unwrap_or(0.0));
        medians.0.total_cmp(&medians.1)
    });
    let Some(best) = best.map(|case| case.name.clone()) else { return };
    let largest = cases.len() - 1;
    for (n, case) in cases.iter_mut().enumerate() {
        if case.name != best {
            case.reference = Some(best.clone());
            case.goal = (n == largest).then_some(0.8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_fleet_is_the_reference_of_the_others() {
        let case = |name: &str, rounds: &[f64]| Case { rounds: rounds.to_vec(), ..rate(name) };
        let mut cases =
            [case("a", &[1.0, 2.0, 3.0]), case("b", &[5.0, 1.0, 5.0]), case("c", &[4.0, 4.0, 4.0])];
        set_goals(&mut cases);
        let references: Vec<Option<&str>> =
            cases.iter().map(|case| case.reference.as_deref()).collect();
        assert_eq!(references, [Some("b"), None, Some("b")]);
        assert_eq!(cases.each_ref().map(|case| case.goal), [None, None, Some(0.8)]);
    }
}
