//! Renders several runs on one page: the trend of each case and the changes of the latest run.

use maud::{Markup, html};

use super::lines::styles;
use super::{started, when};
use crate::report::compare::{Comparison, Judgement, compare, signed};
use crate::report::goal_check::{GoalCheck, is_reference_only};
use crate::report::number_format::{figure, percent, ratio};
use crate::report::plot::{Axis, Line, Plot, Scale};
use crate::result::{Case, Results, Scenario};

/// Renders the trend of at least two runs in chronological order.
pub(crate) fn section(runs: &[&Results]) -> Markup {
    let Some([before, latest]) = runs.last_chunk::<2>() else { return html! {} };
    let plots: Vec<Plot> =
        latest.scenarios.iter().flat_map(|scenario| plots(runs, scenario)).collect();
    html! {
        section.trend {
            h2 { "Trend" }
            (changes(&compare(before, latest), &when(before)))
            @if !plots.is_empty() {
                div.figures { @for plot in plots { (plot.render()) } }
            }
        }
    }
}

fn changes(comparison: &Comparison, before: &str) -> Markup {
    let of = |judgement| comparison.changes.iter().filter(move |it| it.judgement == judgement);
    let (worse, better) = (of(Judgement::Worse).count(), of(Judgement::Better).count());
    html! {
        p {
            "Compared with the run of " (before) ": "
            @if worse > 0 { span.bad { "✗ " (worse) " worse" } } @else { span.good { "✓ none worse" } }
            ", " (better) " better, " (of(Judgement::Same).count()) " unchanged within the noise."
        }
        @if worse + better > 0 {
            div.scroll {
                table {
                    thead { tr { th scope="col" { "case" } th.number scope="col" { "before" } th.number scope="col" { "now" } th.number scope="col" { "change" } th.number scope="col" { "noise" } } }
                    tbody {
                        @for change in of(Judgement::Worse).chain(of(Judgement::Better)) {
                            tr {
                                th scope="row" { (change.case) small { (change.scenario) } }
                                td.number { (number(change.ratio.0, change.median.0, &change.unit)) }
                                td.number { (number(change.ratio.1, change.median.1, &change.unit)) }
                                td.number { (change.gain.map(signed).unwrap_or_default()) " " (word(change.judgement)) }
                                td.number { (percent(change.noise)) }
                            }
                        }
                    }
                }
            }
        }
        @if !comparison.remarks.is_empty() {
            ul.notes { @for remark in &comparison.remarks { li { (remark) } } }
        }
    }
}

fn number(ratio_to: Option<f64>, median: Option<f64>, unit: &str) -> Markup {
    let median = median.map(figure).unwrap_or_default();
    html! {
        @match ratio_to {
            Some(value) => { (ratio(value)) small { (median) " " (unit) } },
            None => { (median) " " (unit) },
        }
    }
}

fn word(judgement: Judgement) -> Markup {
    html! {
        @match judgement {
            Judgement::Worse => span.bad { "✗ worse" },
            Judgement::Better => span.good { "✓ better" },
            Judgement::Same => {},
        }
    }
}

/// Unit of cases that have a goal but no reference.
const OF_GOAL: &str = "× goal";

/// Returns the common unit of the lines of one plot: ratios, shares of their goals, or the case's
/// unit.
fn measure(case: &Case) -> &str {
    match (&case.reference, case.goal) {
        (Some(_), _) => "× reference",
        (None, Some(goal)) if goal != 0.0 => OF_GOAL,
        _ => &case.unit,
    }
}

/// Plots the cases of a scenario that an earlier run has too. Cases that are only references are
/// omitted: they describe the conditions of the day, not the program.
fn plots(runs: &[&Results], scenario: &Scenario) -> Vec<Plot> {
    let mut plots: Vec<(&str, Vec<Line>)> = Vec::new();
    for (case, style) in scenario.cases.iter().zip(styles(scenario)) {
        let points = points(runs, scenario, case);
        if is_reference_only(scenario, case) || points.len() < 2 {
            continue;
        }
        let line = Line { name: case.name.clone(), style, points, rounds: Vec::new() };
        match plots.iter_mut().find(|(measure_of, _)| *measure_of == measure(case)) {
            Some((_, lines)) => lines.push(line),
            None => plots.push((measure(case), vec![line])),
        }
    }
    let plot = |(measure, lines): (&str, Vec<Line>)| {
        let values: Vec<f64> = lines.iter().flat_map(|it| &it.points).map(|it| it.1).collect();
        let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
        Plot {
            title: scenario.title.clone(),
            note: "median of each run".to_owned(),
            x: Axis { label: "run".to_owned(), scale: Scale::Places(names(runs)) },
            y: Axis::fitting(measure, &values, lowest),
            lines,
        }
    };
    plots.into_iter().map(plot).collect()
}

fn points(runs: &[&Results], scenario: &Scenario, case: &Case) -> Vec<(f64, f64)> {
    let in_run = |run: &Results| {
        let there = run.scenarios.iter().find(|other| other.name == scenario.name)?;
        let it = there.cases.iter().find(|it| {
            (&it.name, &it.unit, &it.reference) == (&case.name, &case.unit, &case.reference)
        })?;
        let value = GoalCheck::new(there, it).value?;
        // Use the goal of the latest run for all runs: an earlier run may have had another goal.
        Some(if measure(case) == OF_GOAL { value / case.goal? } else { value })
    };
    let numbered = (0_u32..).zip(runs);
    numbered.filter_map(|(n, run)| Some((f64::from(n), in_run(run)?))).collect()
}

/// Returns the shortest labels that distinguish the runs: day, or day and time.
fn names(runs: &[&Results]) -> Vec<String> {
    let written = |form: &str| -> Vec<String> {
        let name = |run: &&Results| {
            started(run).map_or_else(|| run.started_at.clone(), |at| at.strftime(form).to_string())
        };
        runs.iter().map(name).collect()
    };
    let days = written("%m-%d");
    if days.windows(2).any(|pair| pair[0] == pair[1]) { written("%d. %H:%M") } else { days }
}
