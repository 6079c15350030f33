//! What an alert says, and the page that it leads to.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use crate::rules::{alerts, files};
use crate::{Check, Tools};

const SUBJECT: &str = "runbooks";
const SEVERITIES: [&str; 3] = ["critical", "warning", "info"];
/// What somebody who has just been woken asks, in this order.
const HEADINGS: [&str; 4] =
    ["## What it means", "## What to look at", "## What to do", "## When the alert is wrong"];

/// Alerts and the pages of `docs/runbooks`.
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
            labels.push(format!("{name}: {severity} is none of {}", SEVERITIES.join(", ")));
        }
        if alert.get("runbook_url") != Some(page.as_str()) {
            labels.push(format!("{name}: the runbook_url has to be {page}"));
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
    errors.extend(without.map(|(file, _)| format!("{file} is the page of no alert")));
    let what = "every alert has severity, words and links";
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
        errors.push(format!("{page} does not begin with its alert's name"));
    }
    let places: Vec<Option<usize>> =
        HEADINGS.iter().map(|heading| text.find(&format!("\n{heading}\n"))).collect();
    if places.contains(&None) || !places.is_sorted() {
        errors.push(format!("{page} has not these headings: {}", HEADINGS.join(", ")));
    }
    errors
}
