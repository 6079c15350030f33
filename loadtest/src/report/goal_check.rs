//! Evaluates the goal of a case, round by round.

use crate::result::{Case, Results, Scenario};

/// A case and its judged number: the ratio to the reference, or the value if there is no reference.
#[derive(Clone, Debug)]
pub(crate) struct GoalCheck<'a> {
    /// Scenario of the case.
    pub(crate) scenario: &'a Scenario,
    pub(crate) case: &'a Case,
    /// Median of [`Self::rounds`].
    pub(crate) value: Option<f64>,
    /// The judged number of each round.
    pub(crate) rounds: Vec<f64>,
    /// Whether the goal is met; `None` without a goal, or without a number to judge.
    pub(crate) goal_met: Option<bool>,
}

impl<'a> GoalCheck<'a> {
    /// Evaluates a case of the scenario.
    #[must_use]
    pub(crate) fn new(scenario: &'a Scenario, case: &'a Case) -> Self {
        let (value, rounds) = match reference(scenario, case) {
            Some(reference) => {
                let pairs = case.rounds.iter().zip(&reference.rounds);
                (scenario.ratio(case), pairs.map(|(value, reference)| value / reference).collect())
            }
            None if case.reference.is_some() => (None, Vec::new()),
            None => (case.median(), case.rounds.clone()),
        };
        let value = value.filter(|value| value.is_finite());
        let goal_met = scenario.goal_met(case).filter(|_| value.is_some());
        Self { scenario, case, value, rounds, goal_met }
    }

    /// Returns the lowest and the highest round.
    #[must_use]
    pub(crate) fn range(&self) -> Option<(f64, f64)> {
        let low = self.rounds.iter().copied().min_by(f64::total_cmp)?;
        let high = self.rounds.iter().copied().max_by(f64::total_cmp)?;
        (low.is_finite() && high.is_finite()).then_some((low, high))
    }

    /// Returns the distance between the lowest and the highest round as a share of the median.
    #[must_use]
    pub(crate) fn spread(&self) -> Option<f64> {
        Case { rounds: self.rounds.clone(), ..Case::default() }.spread()
    }
}

/// Returns whether the case only serves as a reference and has no goal, such as a ceiling or
/// another queue.
#[must_use]
pub(crate) fn is_reference_only(scenario: &Scenario, case: &Case) -> bool {
    let name = Some(&case.name);
    case.goal.is_none() && scenario.cases.iter().any(|other| other.reference.as_ref() == name)
}

/// Returns the reference of the case.
fn reference<'a>(scenario: &'a Scenario, case: &Case) -> Option<&'a Case> {
    let name = case.reference.as_ref()?;
    scenario.cases.iter().find(|other| other.name == *name)
}

/// Returns every case that has a goal, in the order of the run.
#[must_use]
pub(crate) fn goals(results: &Results) -> Vec<GoalCheck<'_>> {
    let goal_checks = results
        .scenarios
        .iter()
        .flat_map(|scenario| scenario.cases.iter().map(move |case| GoalCheck::new(scenario, case)));
    goal_checks.filter(|goal_check| goal_check.case.goal.is_some()).collect()
}

/// Returns the number of goals met and the number of goals.
#[must_use]
pub(crate) fn goals_met(results: &Results) -> (usize, usize) {
    let goals = goals(results);
    (goals.iter().filter(|goal_check| goal_check.goal_met == Some(true)).count(), goals.len())
}

/// Returns the number of checks passed and the number of checks.
#[must_use]
pub(crate) fn checks_passed(results: &Results) -> (usize, usize) {
    let checks = || results.scenarios.iter().flat_map(|scenario| &scenario.checks);
    (checks().filter(|check| check.passed).count(), checks().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_without_its_reference_is_judged_by_nothing() {
        let case = Case {
            name: "pgmill".into(),
            rounds: vec![9.0, 12.0, 10.0],
            reference: Some("ceiling".into()),
            goal: Some(0.8),
            ..Case::default()
        };
        let ceiling = Case { name: "ceiling".into(), rounds: vec![10.0; 3], ..Case::default() };
        let both = Scenario { cases: vec![ceiling, case.clone()], ..Scenario::default() };
        let goal_check = GoalCheck::new(&both, &both.cases[1]);
        assert_eq!((goal_check.value, goal_check.goal_met), (Some(1.0), Some(true)));
        assert_eq!(goal_check.range(), Some((0.9, 1.2)));

        let alone = Scenario { cases: vec![case], ..Scenario::default() };
        let goal_check = GoalCheck::new(&alone, &alone.cases[0]);
        assert_eq!((goal_check.value, goal_check.goal_met, goal_check.range()), (None, None, None));
    }

    #[test]
    fn a_ratio_to_nothing_is_no_number() {
        let zero = Case { name: "zero".into(), rounds: vec![0.0], ..Case::default() };
        let case = Case {
            rounds: vec![1.0],
            reference: Some("zero".into()),
            goal: Some(0.8),
            ..Case::default()
        };
        let scenario = Scenario { cases: vec![zero, case], ..Scenario::default() };
        let goal_check = GoalCheck::new(&scenario, &scenario.cases[1]);
        assert_eq!((goal_check.value, goal_check.goal_met), (None, None));
    }
}
