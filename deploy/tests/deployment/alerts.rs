//! Tests, texts and runbooks of the alerts.

use std::collections::BTreeSet;

use deploy::dashboard::dashboards;

use crate::{items, read, rules};

/// Headings of a runbook, in the order in which an on-call engineer needs them.
const HEADINGS: [&str; 4] = ["## Meaning", "## Diagnosis", "## Mitigation", "## False positives"];

fn names() -> BTreeSet<String> {
    rules("alert").iter().map(|rule| rule["alert"].as_str().unwrap().to_owned()).collect()
}

/// A test in which an alert fires does not test its threshold.
#[test]
fn every_alert_fires_in_a_test_and_is_quiet_in_one() {
    let (mut firing, mut quiet) = (BTreeSet::new(), BTreeSet::new());
    for test in items("deploy/prometheus/tests", "tests") {
        for case in test["alert_rule_test"].as_array().unwrap() {
            let expected = case["exp_alerts"].as_array().unwrap();
            let tested = if expected.is_empty() { &mut quiet } else { &mut firing };
            tested.insert(case["alertname"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(firing, names());
    assert_eq!(quiet, names());
}

#[test]
fn every_alert_has_texts_and_links() {
    let dashboards = dashboards().unwrap();
    let overview = read("docs/monitoring.md");
    for rule in rules("alert") {
        let name = rule["alert"].as_str().unwrap();
        let annotation =
            |key: &str| rule["annotations"][key].as_str().unwrap_or_default().to_owned();
        assert!(["summary", "description"].iter().all(|key| !annotation(key).is_empty()), "{name}");
        let url = annotation("dashboard_url");
        let known = |uid: &str| url.starts_with(&format!("/d/{uid}?"));
        assert!(dashboards.iter().any(|it| known(&it.uid)), "{name}: {url}");
        let page = page(name);
        assert_eq!(annotation("runbook_url"), format!("docs/{page}"), "{name}");
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        let row = format!("| [`{name}`]({page}) | {severity} |");
        assert!(overview.contains(&row), "docs/monitoring.md has no row {row}");
    }
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let mut pages = BTreeSet::new();
    for name in names() {
        let page = format!("docs/{}", page(&name));
        let text = read(&page);
        assert!(text.starts_with(&format!("# {name}\n")), "{page}");
        let places = HEADINGS.map(|heading| text.find(&format!("\n{heading}\n")));
        assert!(
            places[0].is_some() && places.is_sorted(),
            "{page} must have the headings {HEADINGS:?}"
        );
        pages.insert(page);
    }
    let found = deploy::files("docs/runbooks", ".md").unwrap();
    assert_eq!(found.into_iter().map(|(file, _)| file).collect::<BTreeSet<_>>(), pages);
}

/// Returns the path of an alert's runbook: runbooks/no-workers.md for `PgmillNoWorkers`.
fn page(alert: &str) -> String {
    let mut page = String::new();
    for c in alert.trim_start_matches("Pgmill").chars() {
        if c.is_ascii_uppercase() && !page.is_empty() {
            page.push('-');
        }
        page.push(c.to_ascii_lowercase());
    }
    format!("runbooks/{page}.md")
}
