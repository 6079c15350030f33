//! Cases take turns: a machine's weather (other load, the disk's mood) hits all of them alike.

use anyhow::Result;

use crate::context::RunContext;
use crate::result::{Better, Case, Series};

/// What one round of one case gave.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) value: f64,
    pub(crate) series: Vec<Series>,
}

/// A case in tasks per second.
pub(crate) fn rate(name: impl Into<String>) -> Case {
    case(name, "tasks/s", Better::Higher)
}

/// A case without rounds yet.
pub(crate) fn case(name: impl Into<String>, unit: &str, better: Better) -> Case {
    Case { name: name.into(), unit: unit.to_owned(), better, ..Case::default() }
}

/// The case as a ratio to another, with the bound for it.
pub(crate) fn against(case: Case, reference: &str, goal: Option<f64>) -> Case {
    Case { reference: Some(reference.to_owned()), goal, ..case }
}

/// Measures each case once per round, forth in odd rounds and back in even ones: what grows steadily
/// in the course of a run then weighs on all of them alike. `measure` gets the case's place and the
/// round, from 1.
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
