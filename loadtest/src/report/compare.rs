//! Compares two runs: lists the changes and flags regressions.
//!
//! The comparison uses the ratio to the reference, because both sides of a ratio ran under the same
//! conditions. It uses the value itself only if the value has a goal or the scenario has no ratio.
//! A change counts if it exceeds the spread of both runs and [`LEAST`].

use std::io;

use comfy_table::Cell;

use crate::report::goal_check::GoalCheck;
use crate::report::number_format::{figure, percent, ratio};
use crate::report::table::{self, Tone};
use crate::result::{Better, Case, Results, Scenario};

/// Smallest share that counts as a change; below it, noise is possible even if three rounds agree.
pub(crate) const LEAST: f64 = 0.10;

/// Classification of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Worse than noise explains.
    Worse,
    /// Within the noise, or not comparable.
    Same,
    /// Better than noise explains.
    Better,
}

/// One case as measured by both runs.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Scenario name.
    pub(crate) scenario: String,
    /// Case name.
    pub(crate) case: String,
    /// Unit of the medians.
    pub(crate) unit: String,
    /// Medians, old and new.
    pub(crate) median: (Option<f64>, Option<f64>),
    /// Ratios to the reference, old and new.
    pub(crate) ratio: (Option<f64>, Option<f64>),
    /// Relative change, positive if better; `None` unless both numbers exist and the old one is not
    /// zero.
    pub(crate) gain: Option<f64>,
    /// Share that a gain or loss must exceed to count.
    pub(crate) noise: f64,
    pub(crate) judgement: Judgement,
}

/// All differences between two runs.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    /// Cases that both runs have, in the order of the new run.
    pub(crate) changes: Vec<Change>,
    /// Caveats: another machine, other settings, missing cases.
    pub(crate) remarks: Vec<String>,
}

/// Compares two runs case by case; scenario and case names identify a case.
#[must_use]
pub(crate) fn compare(old: &Results, new: &Results) -> Comparison {
    let mut changes = Vec::new();
    let mut remarks = differences(old, new);
    for (scenario, case) in cases(new) {
        match find(old, scenario, case) {
            Some(before) => changes.push(change(&before, &GoalCheck::new(scenario, case))),
            None => remarks.push(format!("new: {}, {}", scenario.name, case.name)),
        }
    }
    let gone = cases(old).filter(|(scenario, case)| find(new, scenario, case).is_none());
    remarks.extend(gone.map(|(scenario, case)| format!("gone: {}, {}", scenario.name, case.name)));
    Comparison { changes, remarks }
}

fn cases(results: &Results) -> impl Iterator<Item = (&Scenario, &Case)> {
    results
        .scenarios
        .iter()
        .flat_map(|scenario| scenario.cases.iter().map(move |it| (scenario, it)))
}

fn find<'a>(results: &'a Results, scenario: &Scenario, case: &Case) -> Option<GoalCheck<'a>> {
    let mut all = cases(results);
    // A case whose unit changed is a different case.
    all.find(|(there, it)| {
        there.name == scenario.name && it.name == case.name && it.unit == case.unit
    })
    .map(|(there, it)| GoalCheck::new(there, it))
}

fn change(old: &GoalCheck<'_>, new: &GoalCheck<'_>) -> Change {
    let ratio = (old.scenario.ratio(old.case), new.scenario.ratio(new.case));
    let ratio = (finite(ratio.0), finite(ratio.1));
    let median = (finite(old.case.median()), finite(new.case.median()));
    // Compare ratios if both runs have one, else the values.
    let (before, after, spreads) = match ratio {
        (Some(before), Some(after)) => (Some(before), Some(after), [old.spread(), new.spread()]),
        _ => (median.0, median.1, [old.case.spread(), new.case.spread()]),
    };
    let noise = spreads.into_iter().flatten().fold(LEAST, f64::max);
    let gain = before.zip(after).and_then(|(before, after)| gain(new.case.better, before, after));
    let judgement = match gain {
        // A case that is not judged only serves as a reference: a lower ceiling on a slow day is
        // not a regression.
        _ if !judgement_of(new) => Judgement::Same,
        Some(gain) if gain < -noise => Judgement::Worse,
        Some(gain) if gain > noise => Judgement::Better,
        // A relative change from zero is undefined; only a goal that is no longer met counts.
        None if old.goal_met == Some(true) && new.goal_met == Some(false) => Judgement::Worse,
        _ => Judgement::Same,
    };
    Change {
        scenario: new.scenario.name.clone(),
        case: new.case.name.clone(),
        unit: new.case.unit.clone(),
        median,
        ratio,
        gain,
        noise,
        judgement,
    }
}

fn judgement_of(goal_check: &GoalCheck<'_>) -> bool {
    let GoalCheck { scenario, case, .. } = goal_check;
    case.reference.is_some()
        || case.goal.is_some()
        || scenario.cases.iter().all(|case| case.reference.is_none())
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

fn gain(better: Better, before: f64, after: f64) -> Option<f64> {
    let share = (after - before) / before;
    let gain = match better {
        Better::Higher => share,
        Better::Lower => -share,
    };
    gain.is_finite().then_some(gain)
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
    /// Returns the cases that are worse than noise explains.
    pub(crate) fn regressions(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.judgement == Judgement::Worse)
    }

    /// Returns the exit code of a comparison: [`cli::exit::OK`], or [`cli::exit::FAILURE`] if
    /// there is a regression.
    #[must_use]
    pub(crate) fn exit_code(&self) -> u8 {
        if self.regressions().next().is_some() { cli::exit::FAILURE } else { cli::exit::OK }
    }

    /// Returns the comparison as a table followed by the remarks.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        let headings = ["scenario", "case", "median", "", "ratio", "", "change", "noise", ""];
        let mut table = table::plain(&headings, &[2, 3, 4, 5, 6, 7]);
        for change in &self.changes {
            let shown = |value: Option<f64>, as_text: fn(f64) -> String| {
                value.map(as_text).unwrap_or_default()
            };
            let (word, tone) = change.judgement.word();
            let texts = [
                change.scenario.clone(),
                change.case.clone(),
                shown(change.median.0, figure),
                format!("→ {} {}", shown(change.median.1, figure), change.unit),
                shown(change.ratio.0, ratio),
                shown(change.ratio.1, |value| format!("→ {}", ratio(value))),
                change.gain.map(signed).unwrap_or_default(),
                percent(change.noise),
            ];
            let mut row: Vec<Cell> =
                texts.iter().map(|text| table::cell(text, Tone::Plain)).collect();
            row.push(table::cell(word, tone));
            table.add_row(row);
        }
        let mut text = table.trim_fmt();
        for remark in &self.remarks {
            text += &format!("\n{}", terminal::visible(remark));
        }
        text
    }

    /// Prints [`Self::text`].
    ///
    /// # Errors
    /// Returns an error if standard output cannot be written; a closed pipe is not an error.
    pub(crate) fn print(&self) -> io::Result<()> {
        table::write(&self.text())
    }
}

impl Judgement {
    /// Label and tone for display.
    #[must_use]
    pub(crate) fn word(self) -> (&'static str, Tone) {
        match self {
            Self::Worse => ("WORSE", Tone::Bad),
            Self::Same => ("", Tone::Plain),
            Self::Better => ("better", Tone::Good),
        }
    }
}

/// Formats a share with its sign: `+3.2 %`, `-12 %`.
fn signed(share: f64) -> String {
    let sign = if share > 0.0 { "+" } else { "" };
    format!("{sign}{}", percent(share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_report;

    /// Judges a case whose rounds change from `old` to `new` with a reference of 100.
    fn judgement_of(old: &[f64], new: &[f64], better: Better) -> Judgement {
        let results = |rounds: &[f64]| {
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
        };
        compare(&results(old), &results(new)).changes[1].judgement
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
        let old = sample_report::results();
        let mut new = old.clone();
        for case in &mut new.scenarios[0].cases {
            case.rounds.iter_mut().for_each(|value| *value /= 3.0);
        }
        assert_eq!(compare(&old, &new).regressions().count(), 0);
        // Without ratios, the value itself is compared.
        for case in &mut new.scenarios[3].cases {
            case.goal = None;
            case.rounds.iter_mut().for_each(|value| *value *= 3.0);
        }
        assert_eq!(compare(&old, &new).regressions().count(), 2);
    }

    #[test]
    fn zero_has_no_shares() {
        let mut new = sample_report::results();
        new.scenarios[3].cases[1].rounds = vec![9.0];
        let judgement_of = |new: &Results| compare(&sample_report::results(), new).exit_code();
        assert_eq!(judgement_of(&new), cli::exit::OK);
        new.scenarios[3].cases[1].rounds = vec![11.0];
        assert_eq!(judgement_of(&new), cli::exit::FAILURE);
    }

    #[test]
    fn what_is_not_comparable_is_reported() {
        let old = sample_report::results();
        let mut new = old.clone();
        new.machine.cores = 64;
        new.server.settings[0].1 = "off".into();
        new.scenarios[0].cases.truncate(2);
        new.scenarios[4].cases[0].unit = "tasks/min".into();
        let printed = compare(&old, &new).text();
        for remark in [
            "processors: 2 before, 64 now",
            "fsync: on before, off now",
            "gone: drain, pgmill, shared",
            "new: fleet, 1 worker",
        ] {
            assert!(printed.contains(remark), "{printed}");
        }
    }
}
