//! The results for a person at a terminal.

use std::fmt::Write as _;

use crate::result::{Case, Results, Scenario};

/// A table per scenario.
pub(crate) fn table(results: &Results) -> String {
    results.scenarios.iter().map(scenario).collect()
}

fn scenario(scenario: &Scenario) -> String {
    let mut text = format!("\n{}: {}\n", scenario.name, scenario.title);
    for case in &scenario.cases {
        text += &line(scenario, case);
    }
    for check in &scenario.checks {
        let word = if check.passed { "ok  " } else { "FAIL" };
        let _ = writeln!(text, "  {word} {}: {}", check.what, check.detail);
    }
    for note in &scenario.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}

fn line(scenario: &Scenario, case: &Case) -> String {
    let Some(median) = case.median() else { return format!("  {}\n", case.name) };
    let mut text = format!(
        "  {:<44} {median:>12.2} {:<18} spread {:>3.0} %",
        case.name,
        case.unit,
        case.spread().unwrap_or(0.0) * 100.0
    );
    if let (Some(reference), Some(ratio)) = (&case.reference, scenario.ratio(case)) {
        let _ = write!(text, "  {ratio:.2} of {reference}");
    }
    if let (Some(goal), Some(met)) = (case.goal, scenario.met(case)) {
        let _ = write!(text, "  goal {goal}: {}", if met { "met" } else { "missed" });
    }
    if let Some(p) = &case.percentiles {
        let _ = write!(
            text,
            "\n    p50 {:.2}  p90 {:.2}  p99 {:.2}  p99.9 {:.2}  max {:.2} ms of {}",
            p.p50, p.p90, p.p99, p.p999, p.max, p.count
        );
    }
    text + "\n"
}
