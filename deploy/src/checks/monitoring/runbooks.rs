//! Checks the labels and annotations of alerts and their runbooks.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use crate::rules::{alerts, files};
use crate::{Check, Tools};

const SUBJECT: &str = "runbooks";
const SEVERITIES: [&str; 3] = ["critical", "warning", "info"];
/// Headings of a runbook, in the order in which an on-call engineer needs them.
const HEADINGS: [&str; 4] = ["## Meaning", "## Diagnosis", "## Mitigation", "## False positives"];

/// Checks the alerts and the pages of `docs/runbooks`.
pub(crate) fn run(_: &Tools) -> Result<Vec<Check>> {
    let alerts = alerts()?;
    let pages = files("docs/runbooks", ".md")?;
    let mut labels = Vec::new();
    let mut errors = Vec::new();
    let mut wanted = BTreeSet::new();
    let overview = std::fs::read_to_string(crate::root().join("docs/monitoring.md"))
        .context("could not read docs/monitoring.md")?;
    for alert in &alerts {
        let (name, page) = (&alert.name, alert.runbook());
        for key in ["expr", "severity", "summary", "description", "runbook_url", "dashboard_url"] {
            if alert.get(key).is_none_or(str::is_empty) {
                labels.push(format!("{name} has no {key}"));
            }
        }
        let severity = alert.get("severity").unwrap_or_default();
        if !SEVERITIES.contains(&severity) {
            labels.push(format!(
                "{name}: severity {severity} is not one of {}",
                SEVERITIES.join(", ")
            ));
        }
        if alert.get("runbook_url") != Some(page.as_str()) {
            labels.push(format!("{name}: the runbook_url must be {page}"));
        }
        match pages.iter().find(|(file, _)| *file == page) {
            None => errors.push(format!("{name} has no page {page}")),
            Some((_, text)) => errors.extend(page_errors(name, &page, text)),
        }
        let row = format!("| [`{name}`]({}) | {severity} |", page.trim_start_matches("docs/"));
        if !overview.contains(&row) {
            errors.push(format!("docs/monitoring.md has no row {row}"));
        }
        wanted.insert(page);
    }
    let without = pages.iter().filter(|(file, _)| !wanted.contains(file));
    errors.extend(without.map(|(file, _)| format!("{file} belongs to no alert")));
    let what = "every alert has severity, texts and links";
    let both =
        "every alert has its page and its row in docs/monitoring.md, and every page its alert";
    Ok(vec![
        Check::found(SUBJECT, what, "own", &labels),
        Check::found(SUBJECT, both, "own", &errors),
    ])
}

fn page_errors(name: &str, page: &str, text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if !text.starts_with(&format!("# {name}\n")) {
        errors.push(format!("{page} does not start with the name of its alert"));
    }
    let places: Vec<Option<usize>> =
        HEADINGS.iter().map(|heading| text.find(&format!("\n{heading}\n"))).collect();
    if places.contains(&None) || !places.is_sorted() {
        errors.push(format!("{page} must have these headings: {}", HEADINGS.join(", ")));
    }
    errors
}
