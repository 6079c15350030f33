//! Renders the summary of a run: goals met, and the distance of each case from its goal.

use maud::{Markup, html};

use super::anchor;
use crate::report::goal_check::{GoalCheck, checks_passed, goals, goals_met};
use crate::report::number_format::{figure, goal, percent, ratio, with_unit};
use crate::result::{Better, Results};

/// Multiple of the goal at which bars are cut off and marked.
const MAX_GOAL_RATIO: f64 = 2.1;

/// Renders four key numbers of the run.
pub(crate) fn tiles(run: &Results) -> Markup {
    let ((met, goals), (passed, checks)) = (goals_met(run), checks_passed(run));
    html! {
        ul.tiles {
            (tile("goals met", met, goals))
            (tile("checks passed", passed, checks))
            li {
                b { (run.machine.cores) @if run.machine.cores == 1 { " core" } @else { " cores" } }
                span { (run.machine.processor) ", PostgreSQL " (run.server.version) }
            }
            li { b { (figure(run.server.commit_ms)) " ms" } span { "for a durable commit of one row" } }
        }
    }
}

fn tile(what: &str, count: usize, all: usize) -> Markup {
    html! {
        li class=[(all > 0).then_some(if count == all { "good" } else { "bad" })] {
            b { (count) small { " of " (all) } }
            span { (what) }
        }
    }
}

/// Renders the failed checks above everything else: rates of wrong results are worthless.
pub(crate) fn failed_checks(run: &Results) -> Markup {
    let checks = run.scenarios.iter().flat_map(|scenario| {
        scenario.checks.iter().filter(|check| !check.passed).map(move |check| (scenario, check))
    });
    let failed: Vec<_> = checks.collect();
    html! {
        @if !failed.is_empty() {
            div.alarm role="alert" {
                strong { "Failed checks" }
                ul {
                    @for (scenario, check) in failed {
                        li { (check.what) @if !check.detail.is_empty() { " (" (check.detail) ")" } ", in: " (scenario.title) }
                    }
                }
            }
        }
    }
}

/// Renders every goal with a bar.
pub(crate) fn goals_table(run: &Results) -> Markup {
    let goals = goals(run);
    let of = |better| goals.iter().filter(move |goal_check| goal_check.case.better == better);
    html! {
        @if !goals.is_empty() {
            section.goals {
                h2 { "Goals" }
                p.key {
                    span { (sample("bar good")) "median, met" }
                    span { (sample("bar bad")) "median, missed" }
                    span { (sample("range")) "lowest and highest round" }
                    span { (sample("goal")) "goal" }
                    span { (sample("reference")) "reference (1 ×)" }
                }
                @for (better, title) in [(Better::Higher, "At least: the bar must reach the line"), (Better::Lower, "At most: the bar must end before the line")] {
                    @if of(better).next().is_some() {
                        table.goals {
                            caption { (title) }
                            thead { tr { th scope="col" { "what" } th scope="col" { "result" } th.axis scope="col" { (scale()) } th scope="col" { "goal" } th scope="col" {} } }
                            tbody { @for goal_check in of(better) { (row(run, goal_check)) } }
                        }
                    }
                }
            }
        }
    }
}

fn row(run: &Results, goal_check: &GoalCheck<'_>) -> Markup {
    let GoalCheck { scenario, case, .. } = goal_check;
    let nth = run.scenarios.iter().position(|other| other.name == scenario.name);
    html! {
        tr {
            th.what scope="row" {
                a href={"#" (anchor(nth.unwrap_or_default()))} { (case.name) }
                small { (scenario.title) }
            }
            td.result { (result(goal_check)) }
            td.bar { (bar(goal_check)) }
            td.goal { (goal(case).unwrap_or_default()) @if let Some(margin) = margin(goal_check) { small { (margin) } } }
            td.verdict { (verdict(goal_check)) }
        }
    }
}

fn result(goal_check: &GoalCheck<'_>) -> Markup {
    let case = goal_check.case;
    let median = case.median().map(|median| with_unit(median, &case.unit)).unwrap_or_default();
    html! {
        @match (goal_check.value, &case.reference) {
            (Some(value), Some(reference)) => { b { (ratio(value)) } small { "of " (reference) " · " (median) } },
            (Some(value), None) => b { (with_unit(value, &case.unit)) },
            (None, _) => "–",
        }
    }
}

/// Returns the distance from the goal as a share of the goal.
fn margin(goal_check: &GoalCheck<'_>) -> Option<String> {
    let margin = share(goal_check, goal_check.value?)? - 1.0;
    let side = if margin < 0.0 { "below" } else { "above" };
    Some(if margin.abs() < 0.0005 {
        "exactly at the goal".to_owned()
    } else {
        format!("{} {side}", percent(margin.abs()))
    })
}

/// Returns the value as a multiple of the goal.
fn share(goal_check: &GoalCheck<'_>, value: f64) -> Option<f64> {
    let share = value / goal_check.case.goal?;
    share.is_finite().then_some(share)
}

/// Renders the verdict: symbol, word and colour.
pub(crate) fn verdict(goal_check: &GoalCheck<'_>) -> Markup {
    html! {
        @match (goal_check.case.goal, goal_check.goal_met) {
            (None, _) => {},
            (_, Some(true)) => span.good { "✓ met" },
            (_, Some(false)) => span.bad { "✗ missed" },
            (_, None) => span.bad { "not measured" },
        }
    }
}

/// Returns the position of a multiple of the goal on the bars.
fn at(share: f64) -> String {
    format!("{:.2}%", share.clamp(0.0, MAX_GOAL_RATIO) / MAX_GOAL_RATIO * 100.0)
}

fn bar(goal_check: &GoalCheck<'_>) -> Markup {
    let case = goal_check.case;
    let value = goal_check.value.and_then(|value| share(goal_check, value));
    let range = goal_check
        .range()
        .and_then(|(low, high)| share(goal_check, low).zip(share(goal_check, high)));
    let reference = case.reference.as_ref().zip(share(goal_check, 1.0));
    let (from, width) = match case.better {
        Better::Higher => (at(1.0), at(MAX_GOAL_RATIO - 1.0)),
        Better::Lower => (at(0.0), at(1.0)),
    };
    let style = if goal_check.goal_met == Some(true) { "bar good" } else { "bar bad" };
    html! {
        svg.bar width="100%" height="34" aria-hidden="true" {
            rect.wanted x=(from) y="0" width=(width) height="34" {}
            @if let Some(value) = value {
                rect class=(style) x="0" y="8" width=(at(value)) height="14" {
                    title { (percent(value)) " of the goal" }
                }
                @if value > MAX_GOAL_RATIO { text.cut x="99.5%" y="19.5" text-anchor="end" { "▸" } }
            }
            @if let Some((low, high)) = range.filter(|(low, high)| high > low && *low < MAX_GOAL_RATIO) {
                line.range x1=(at(low)) x2=(at(high)) y1="27" y2="27" {
                    title { "rounds: " (percent(low)) " to " (percent(high)) " of the goal" }
                }
            }
            @if let Some((name, share)) = reference.filter(|(_, share)| *share <= MAX_GOAL_RATIO) {
                line.reference x1=(at(share)) x2=(at(share)) y1="3" y2="31" { title { (name) " = 1 ×" } }
            }
            line.goal x1=(at(1.0)) x2=(at(1.0)) y1="0" y2="34" {}
        }
    }
}

/// Draws the scale above the bars.
fn scale() -> Markup {
    html! {
        svg.bar width="100%" height="18" role="img" aria-label="share of the goal" {
            @for (share, text) in [(0.0, "0"), (0.5, "½"), (1.0, "goal"), (1.5, "1½"), (2.0, "2")] {
                text.tick x=(at(share)) y="13" text-anchor=(if share == 0.0 { "start" } else { "middle" }) { (text) }
            }
        }
    }
}

/// Draws one symbol of the legend.
fn sample(class: &str) -> Markup {
    html! {
        svg.sample width="22" height="14" aria-hidden="true" {
            @match class {
                "range" => line.range x1="1" x2="21" y1="7" y2="7" {},
                "goal" | "reference" => line class=(class) x1="11" x2="11" y1="0" y2="14" {},
                _ => rect class=(class) x="0" y="2" width="22" height="10" {},
            }
        }
    }
}
