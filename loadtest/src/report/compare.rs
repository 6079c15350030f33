//! Compares two runs: lists the changes and flags regressions.
//!
//! The comparison uses the ratio to the reference, because both sides of a ratio ran under the same
//! conditions. It uses the value itself only if the value has a goal or the scenario has no ratio.
//! A change counts if it exceeds the spread of both runs and [`LEAST`].

use crate::report::number_format::{figure, percent, ratio};
use crate::report::table::{Cell, Table, Tone};
use crate::result::{Better, Case, Results, Scenario, spread};

/// Smallest share that counts as a change; below it, noise is possible even if three rounds agree.
const LEAST: f64 = 0.10;

/// All differences between two runs.
pub(crate) struct Comparison {
    /// Cases that both runs have, in the order of the new run.
    changes: Table,
    /// Caveats: another machine, other settings, missing cases.
    remarks: Vec<String>,
    /// Number of cases that are worse than noise explains.
    pub(crate) regressions: usize,
}

/// Classification of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    /// Worse than noise explains.
    Worse,
    /// Within the noise, or not comparable.
    Same,
    /// Better than noise explains.
    Better,
}

/// A case of a run.
type Measured<'a> = (&'a Scenario, &'a Case);

/// Compares two runs case by case. Scenario, name and unit identify a case.
pub(crate) fn compare(old: &Results, new: &Results) -> Comparison {
    let find = |results| {
        move |(scenario, case): &Measured<'_>| {
            Results::cases(results).find(|(there, it)| {
                (&there.name, &it.name, &it.unit) == (&scenario.name, &case.name, &case.unit)
            })
        }
    };
    let (in_old, in_new) = (find(old), find(new));
    let mut remarks = differences(old, new);
    let mut rows = Vec::new();
    let mut regressions = 0;
    for after in new.cases() {
        let Some(before) = in_old(&after) else {
            remarks.push(format!("new: {}, {}", after.0.name, after.1.name));
            continue;
        };
        let (judgement, gain, noise) = judge(before, after);
        regressions += usize::from(judgement == Judgement::Worse);
        rows.push(row(before, after, (judgement, gain, noise)));
    }
    let gone = old.cases().filter(|case| in_new(case).is_none());
    remarks.extend(gone.map(|(scenario, case)| format!("gone: {}, {}", scenario.name, case.name)));
    let headings =
        ["scenario", "case", "before:", "now:", "ratio:", "now:", "change:", "noise:", ""];
    Comparison { changes: Table::new(&headings, rows), remarks, regressions }
}

/// Returns the judgement with the relative change, positive if better, and the share that it must
/// exceed to count.
fn judge(old: Measured<'_>, new: Measured<'_>) -> (Judgement, Option<f64>, f64) {
    let ratios = old.0.ratio(old.1).zip(new.0.ratio(new.1));
    let finite = |(_, case): Measured<'_>| case.median().filter(|value| value.is_finite());
    let values = ratios.or_else(|| finite(old).zip(finite(new)));
    let spreads = [old, new].map(|(scenario, case)| match ratios {
        Some(_) => spread(&scenario.judged(case)),
        None => spread(&case.rounds),
    });
    let noise = spreads.into_iter().flatten().fold(LEAST, f64::max);
    let gain = values.map(|(before, after)| match new.1.better {
        Better::Higher => (after - before) / before,
        Better::Lower => (before - after) / before,
    });
    let gain = gain.filter(|gain| gain.is_finite());
    // A case that is not judged only serves as a reference: a lower ceiling on a slow day is not a
    // regression.
    let judged = new.1.reference.is_some()
        || new.1.goal.is_some()
        || new.0.cases.iter().all(|case| case.reference.is_none());
    let met = [old, new].map(|(scenario, case)| scenario.goal_met(case));
    let judgement = match gain {
        _ if !judged => Judgement::Same,
        Some(gain) if gain < -noise => Judgement::Worse,
        Some(gain) if gain > noise => Judgement::Better,
        // A relative change from zero is undefined; only a goal that is no longer met counts.
        None if met == [Some(true), Some(false)] => Judgement::Worse,
        _ => Judgement::Same,
    };
    (judgement, gain, noise)
}

fn row(
    old: Measured<'_>,
    new: Measured<'_>,
    (judgement, gain, noise): (Judgement, Option<f64>, f64),
) -> Vec<Cell> {
    let word = match judgement {
        Judgement::Worse => ("WORSE", Tone::Bad),
        Judgement::Same => ("", Tone::Plain),
        Judgement::Better => ("better", Tone::Good),
    };
    let signed = |share: f64| format!("{}{}", if share > 0.0 { "+" } else { "" }, percent(share));
    vec![
        new.0.name.clone().into(),
        new.1.name.clone().into(),
        old.1.median().map(figure).into(),
        new.1.median().map(|value| format!("{} {}", figure(value), new.1.unit)).into(),
        old.0.ratio(old.1).map(ratio).into(),
        new.0.ratio(new.1).map(ratio).into(),
        gain.map(signed).into(),
        percent(noise).into(),
        word.into(),
    ]
}

/// Lists the differences in machine, server and settings.
fn differences(old: &Results, new: &Results) -> Vec<String> {
    let mut found = Vec::new();
    let mut differs = |what: &str, old: &str, new: &str| {
        if old != new {
            found.push(format!("{what}: {old} before, {new} now"));
        }
    };
    differs("processor", &old.machine.processor, &new.machine.processor);
    differs("processors", &old.machine.cores.to_string(), &new.machine.cores.to_string());
    differs("server", &old.server.version, &new.server.version);
    for (name, value) in &new.server.settings {
        let before = old.server.settings.iter().find(|(other, _)| other == name);
        if let Some((_, before)) = before {
            differs(name, before, value);
        }
    }
    found
}

impl Comparison {
    /// Returns the comparison as a table followed by the remarks.
    pub(crate) fn text(&self) -> String {
        let remarks = self.remarks.iter().map(|remark| terminal::visible(remark) + "\n");
        self.changes.text() + &remarks.collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns results with a case whose reference is 100.
    fn results(rounds: &[f64], better: Better) -> Results {
        let reference = vec![100.0; rounds.len()];
        let reference = Case { name: "ceiling".into(), rounds: reference, ..Case::default() };
        let case = Case {
            name: "pgmill".into(),
            reference: Some("ceiling".into()),
            rounds: rounds.to_vec(),
            better,
            ..Case::default()
        };
        let scenario = Scenario { cases: vec![reference, case], ..Scenario::default() };
        Results { scenarios: vec![scenario], ..Results::default() }
    }

    /// Judges a case whose rounds change from `old` to `new`.
    fn judgement_of(old: &[f64], new: &[f64], better: Better) -> Judgement {
        let (old, new) = (results(old, better), results(new, better));
        judge(old.cases().last().unwrap(), new.cases().last().unwrap()).0
    }

    #[test]
    fn less_than_a_tenth_is_noise() {
        let old = [80.0, 80.0, 80.0];
        assert_eq!(judgement_of(&old, &[73.0, 73.0, 73.0], Better::Higher), Judgement::Same);
        assert_eq!(judgement_of(&old, &[71.0, 71.0, 71.0], Better::Higher), Judgement::Worse);
        assert_eq!(judgement_of(&old, &[89.0, 89.0, 89.0], Better::Higher), Judgement::Better);
        assert_eq!(judgement_of(&old, &[89.0, 89.0, 89.0], Better::Lower), Judgement::Worse);
    }

    #[test]
    fn the_greater_spread_of_both_is_noise() {
        let (calm, wild) = ([80.0, 80.0, 80.0], [55.0, 65.0, 85.0]);
        assert_eq!(judgement_of(&calm, &wild, Better::Higher), Judgement::Same);
        assert_eq!(judgement_of(&wild, &calm, Better::Higher), Judgement::Same);
    }

    #[test]
    fn a_slow_day_is_no_regression() {
        let old = results(&[80.0], Better::Higher);
        let mut new = old.clone();
        for case in &mut new.scenarios[0].cases {
            case.rounds[0] /= 3.0;
        }
        assert_eq!(compare(&old, &new).regressions, 0);
        // Without ratios, the value itself is compared.
        let mut without = [old, new];
        for results in &mut without {
            results.scenarios[0].cases[1].reference = None;
        }
        assert_eq!(compare(&without[0], &without[1]).regressions, 2);
    }

    #[test]
    fn zero_has_no_shares() {
        let with_goal = |value| {
            let mut results = results(&[value], Better::Lower);
            let case = &mut results.scenarios[0].cases[1];
            (case.reference, case.goal) = (None, Some(10.0));
            results
        };
        assert_eq!(compare(&with_goal(0.0), &with_goal(9.0)).regressions, 0);
        assert_eq!(compare(&with_goal(0.0), &with_goal(11.0)).regressions, 1);
    }

    #[test]
    fn what_is_not_comparable_is_reported() {
        let mut old = results(&[80.0], Better::Higher);
        old.server.settings.push(("fsync".into(), "on".into()));
        let mut new = old.clone();
        new.machine.cores = 64;
        new.server.settings[0].1 = "off".into();
        new.scenarios[0].cases[0].unit = "tasks/min".into();
        let printed = compare(&old, &new).text();
        for remark in [
            "processors: 0 before, 64 now",
            "fsync: on before, off now",
            "gone: , ceiling",
            "new: , ceiling",
        ] {
            assert!(printed.contains(remark), "{printed}");
        }
    }
}
