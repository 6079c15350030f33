//! Alternates the cases, so that other load and changes in disk speed affect all cases alike.

use anyhow::Result;

use crate::context::RunContext;
use crate::result::{Better, Case, Series};

/// Result of one round of one case.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) value: f64,
    pub(crate) series: Vec<Series>,
}

/// Returns a case in tasks per second.
pub(crate) fn rate(name: impl Into<String>) -> Case {
    case(name, "tasks/s", Better::Higher)
}

/// Returns a case without rounds.
pub(crate) fn case(name: impl Into<String>, unit: &str, better: Better) -> Case {
    Case { name: name.into(), unit: unit.to_owned(), better, ..Case::default() }
}

/// Sets the reference of a case, to which its ratio is reported, and the goal for this ratio.
pub(crate) fn against(case: Case, reference: &str, goal: Option<f64>) -> Case {
    Case { reference: Some(reference.to_owned()), goal, ..case }
}

/// Measures each case once per round, in order in odd rounds and in reverse order in even rounds,
/// so that a steady trend during the run affects all cases alike. `measure` receives the index of
/// the case and the round, from 1.
pub(crate) async fn alternate(
    context: &RunContext,
    scenario: &str,
    cases: &mut [Case],
    mut measure: impl AsyncFnMut(usize, usize) -> Result<Measured>,
) -> Result<()> {
    let rounds = context.rounds();
    for round in 1..=rounds {
        let mut order: Vec<usize> = (0..cases.len()).collect();
        if round % 2 == 0 {
            order.reverse();
        }
        for n in order {
            let case = &mut cases[n];
            let stage = format!("{scenario}: {}, round {round} of {rounds}", case.name);
            context.progress.stage(&stage);
            let measured = measure(n, round).await?;
            context.progress.line(&format!("{stage}: {:.1} {}", measured.value, case.unit));
            case.rounds.push(measured.value);
            case.series.extend(measured.series);
            context.keep(cases);
        }
    }
    Ok(())
}
