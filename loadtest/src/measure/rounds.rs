//! Alternates the cases, so that other load and changes in disk speed affect all cases alike, and
//! collects what the rounds have measured.

use anyhow::Result;

use crate::context::RunContext;
use crate::measure::latency::LatencyHistogram;
use crate::result::{Better, Case, Check, Scenario, Series};

/// Result of one round of one case.
#[derive(Default)]
pub(crate) struct Measured {
    /// Number of the case; `None` if a note explains why there is none.
    pub(crate) value: Option<f64>,
    pub(crate) series: Vec<Series>,
    pub(crate) times: Option<LatencyHistogram>,
    /// Further cases, each with the number of this round.
    pub(crate) also: Vec<Case>,
    /// The round adds its case and number to the descriptions.
    pub(crate) checks: Vec<Check>,
    pub(crate) note: Option<String>,
}

impl Measured {
    pub(crate) fn new(value: f64) -> Self {
        Self { value: Some(value), ..Self::default() }
    }

    /// Single events, whose median is the number of the case.
    pub(crate) fn of_times(times: LatencyHistogram) -> Self {
        Self { value: Some(times.at(50.0)), times: Some(times), ..Self::default() }
    }

    /// Adds the number of another case, which is reported after the cases of the scenario.
    pub(crate) fn also(mut self, case: Case, value: f64) -> Self {
        self.also.push(Case { rounds: vec![value], ..case });
        self
    }

    pub(crate) fn check(mut self, check: Check) -> Self {
        self.checks.push(check);
        self
    }
}

/// Returns a case in tasks per second.
pub(crate) fn rate(name: impl Into<String>) -> Case {
    case(name, "tasks/s", Better::Higher)
}

/// Returns a case without rounds.
pub(crate) fn case(name: impl Into<String>, unit: &str, better: Better) -> Case {
    Case { name: name.into(), unit: unit.to_owned(), better, ..Case::default() }
}

/// Returns a case whose value has an upper bound.
pub(crate) fn at_most(name: impl Into<String>, unit: &str, goal: f64) -> Case {
    Case { goal: Some(goal), ..case(name, unit, Better::Lower) }
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
    cases: Vec<Case>,
    mut measure: impl AsyncFnMut(usize, usize) -> Result<Measured>,
) -> Result<Scenario> {
    let rounds = context.rounds();
    let mut times: Vec<Option<LatencyHistogram>> = cases.iter().map(|_| None).collect();
    let mut scenario = Scenario { cases, ..context.so_far() };
    for (round, n) in turns(rounds, scenario.cases.len()) {
        let case = &mut scenario.cases[n];
        let name = case.name.clone();
        let stage = format!("{}: {name}, round {round} of {rounds}", scenario.name);
        context.progress.stage(&stage);
        let measured = measure(n, round).await?;
        if let Some(value) = measured.value {
            context.progress.line(&format!("{stage}: {value:.2} {}", case.unit));
            case.rounds.push(value);
        }
        case.series.extend(measured.series);
        if let Some(of_round) = measured.times {
            let all = times[n].get_or_insert(LatencyHistogram::new()?);
            all.merge(&of_round)?;
            case.percentiles = Some(all.percentiles());
        }
        for also in measured.also {
            match scenario.cases.iter_mut().find(|known| known.name == also.name) {
                Some(known) => known.rounds.extend(also.rounds),
                None => scenario.cases.push(also),
            }
        }
        scenario.checks.extend(measured.checks.into_iter().map(|check| Check {
            what: format!("{}, {name}, round {round}", check.what),
            ..check
        }));
        scenario.notes.extend(measured.note);
        context.keep(&scenario);
    }
    Ok(scenario)
}

/// Yields the turns: each is a round, counted from 1, and the index of a case.
fn turns(rounds: usize, cases: usize) -> impl Iterator<Item = (usize, usize)> {
    (1..=rounds).flat_map(move |round| {
        (0..cases).map(move |n| (round, if round % 2 == 1 { n } else { cases - 1 - n }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_rounds_go_forth_and_even_ones_back() {
        let all: Vec<_> = turns(2, 3).collect();
        assert_eq!(all, [(1, 0), (1, 1), (1, 2), (2, 2), (2, 1), (2, 0)]);
    }
}
