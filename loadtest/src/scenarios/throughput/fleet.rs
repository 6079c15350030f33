//! Compares one process with many. Drains the same backlog with fleets of more and more worker
//! processes that have the same number of readers in total.

use anyhow::Result;

use super::{Arm, compare};
use crate::context::RunContext;
use crate::fleet::FleetSpec;
use crate::measure::rounds::rate;
use crate::result::{Case, Scenario};

const PROCESSES: [u32; 5] = [1, 2, 4, 16, 64];

/// Readers of the whole fleet: one per process in the largest fleet.
const READERS: u32 = 64;

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let readers = context.run.common.readers.unwrap_or(READERS).max(READERS);
    let tasks = context.tasks(100_000, 10_000);
    let mut arms = Vec::new();
    for workers in PROCESSES {
        arms.push(Arm {
            case: rate(terminal::counted(workers, "worker")),
            database: context.database(&format!("fleet_{workers}")).await?,
            target: None,
            fleet_spec: FleetSpec::new(workers, readers / workers),
        });
    }
    let mut scenario = compare(context, tasks, arms).await?;
    set_goals(&mut scenario.cases);
    scenario.notes = vec![format!(
        "{tasks} tasks per round, {readers} readers in total; the ratio of each fleet is to the \
         fleet with the best median"
    )];
    Ok(scenario)
}

/// Makes the best fleet the reference; the largest fleet must come close to it.
fn set_goals(cases: &mut [Case]) {
    let median = |case: &Case| case.median().unwrap_or(0.0);
    let best = cases.iter().max_by(|a, b| median(a).total_cmp(&median(b)));
    let Some(best) = best.map(|case| case.name.clone()) else { return };
    let largest = cases.len() - 1;
    for (n, case) in cases.iter_mut().enumerate().filter(|(_, case)| case.name != best) {
        case.reference = Some(best.clone());
        case.goal = (n == largest).then_some(0.8);
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
