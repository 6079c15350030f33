//! Renders one scenario: cases, plots, checks, notes.

use maud::{Markup, html};

use super::lines::{distributions, plots, styles};
use super::summary::verdict;
use crate::report::goal_check::GoalCheck;
use crate::report::number_format::{count, figure, goal, percent, ratio, with_unit};
use crate::report::plot::swatch;
use crate::result::{Case, Percentiles, Scenario};

/// Renders the section with this anchor.
pub(crate) fn section(scenario: &Scenario, anchor: &str) -> Markup {
    let figures: Vec<Markup> =
        plots(scenario).into_iter().chain(distributions(scenario)).map(|it| it.render()).collect();
    html! {
        section.scenario id=(anchor) {
            h2 { (scenario.title) " " code { (scenario.name) } }
            (cases(scenario))
            (percentiles(scenario))
            div.figures {
                @for figure in &figures { (figure) }
                (remarks(scenario, figures.len() % 2 == 1))
            }
        }
    }
}

/// Renders checks and notes; `side_by_side` places them next to the last plot.
fn remarks(scenario: &Scenario, side_by_side: bool) -> Markup {
    html! {
        @if !scenario.checks.is_empty() || !scenario.notes.is_empty() {
            div class=(if side_by_side { "remarks side-by-side" } else { "remarks" }) {
                @if !scenario.checks.is_empty() {
                    ul.checks {
                        @for check in &scenario.checks {
                            li {
                                @if check.passed { span.good { "✓ passed" } } @else { span.bad { "✗ failed" } }
                                " " (check.what)
                                @if !check.detail.is_empty() { small { (check.detail) } }
                            }
                        }
                    }
                }
                @if !scenario.notes.is_empty() {
                    ul.notes { @for note in &scenario.notes { li { (note) } } }
                }
            }
        }
    }
}

fn cases(scenario: &Scenario) -> Markup {
    let ratios = scenario.cases.iter().any(|case| case.reference.is_some());
    let goals = scenario.cases.iter().any(|case| case.goal.is_some());
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        th.case scope="col" { "case" }
                        th.number.median scope="col" { "median" }
                        th.rounds scope="col" { "rounds" }
                        th.number.spread scope="col" { "spread" }
                        @if ratios { th.number.ratio scope="col" { "ratio" } th.of scope="col" { "of" } }
                        @if goals { th.number.bound scope="col" { "goal" } th.verdict scope="col" {} }
                    }
                }
                tbody {
                    @for (case, style) in scenario.cases.iter().zip(styles(scenario)) {
                        @let goal_check = GoalCheck::new(scenario, case);
                        tr {
                            th.named scope="row" { (swatch(style)) (case.name) }
                            td.number { (case.median().map(|it| with_unit(it, &case.unit)).unwrap_or_default()) }
                            td.rounds { (rounds(scenario, case, style)) }
                            td.number.spread { (case.spread().map(percent).unwrap_or_default()) }
                            @if ratios { (against(&goal_check)) }
                            @if goals { td.number.bound { (goal(case).unwrap_or_default()) } td.verdict { (verdict(&goal_check)) } }
                        }
                    }
                }
            }
        }
    }
}

fn against(goal_check: &GoalCheck<'_>) -> Markup {
    let reference = goal_check.case.reference.as_ref();
    html! {
        @match goal_check.value.zip(reference) {
            Some((value, reference)) => { td.number { (ratio(value)) } td.of { (reference) } },
            None => { td.number {} td.of {} },
        }
    }
}

/// Draws each round as a dot on a scale from zero that all cases of one unit share.
fn rounds(scenario: &Scenario, case: &Case, style: usize) -> Markup {
    let alike = scenario.cases.iter().filter(|other| other.unit == case.unit);
    let finite = alike.flat_map(|other| &other.rounds).copied().filter(|value| value.is_finite());
    let highest = finite.fold(0.0, f64::max);
    // Keep the dots at both ends fully visible.
    let at = |value: f64| format!("{:.2}%", 2.0 + 96.0 * (value / highest).clamp(0.0, 1.0));
    html! {
        @if highest > 0.0 {
            svg class={"strip style" (style)} width="100%" height="16" role="img" aria-label={"rounds of " (case.name)} {
                line.rule x1="2%" x2="98%" y1="8" y2="8" {}
                @if let Some(median) = case.median().filter(|it| it.is_finite()) {
                    line.median x1=(at(median)) x2=(at(median)) y1="1" y2="15" {}
                }
                @for (nth, value) in case.rounds.iter().enumerate().filter(|(_, it)| it.is_finite()) {
                    circle.dot cx=(at(*value)) cy="8" r="3.5" {
                        title { "round " (nth + 1) ": " (with_unit(*value, &case.unit)) }
                    }
                }
            }
        }
    }
}

fn percentiles(scenario: &Scenario) -> Markup {
    let distributions: Vec<(&Case, &Percentiles)> =
        scenario.cases.iter().filter_map(|case| Some((case, case.percentiles.as_ref()?))).collect();
    html! {
        @if !distributions.is_empty() {
            div.scroll {
                table {
                    thead {
                        tr {
                            th scope="col" { "latency in ms" }
                            @for name in ["p50", "p90", "p99", "p99.9", "max"] {
                                th.number scope="col" { (name) }
                            }
                            th.number.timed scope="col" { "timed" }
                        }
                    }
                    tbody {
                        @for (case, Percentiles { count: timed, p50, p90, p99, p999, max, .. }) in distributions {
                            tr {
                                th scope="row" { (case.name) }
                                @for value in [p50, p90, p99, p999, max] { td.number { (figure(*value)) } }
                                td.number.timed { (count(*timed)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
