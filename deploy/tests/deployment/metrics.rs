//! Metrics and labels in rules and dashboards are those of docs/metrics.md: an unknown metric, label or
//! value selects nothing, and neither promtool nor Prometheus reports it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{read, rules};

/// Labels that Prometheus or its configuration adds.
const ADDED: [&str; 4] = ["fleet", "instance", "job", "le"];

/// Labels whose values cannot be enumerated.
const FREE: [&str; 4] = ["queue", "schedule", "sqlstate_class", "version"];

/// What docs/metrics.md lists.
struct Documented {
    /// Labels of each metric.
    labels: BTreeMap<String, BTreeSet<String>>,
    /// Values of each label, over all metrics that have the label.
    values: BTreeMap<String, BTreeSet<String>>,
}

impl Documented {
    fn read() -> Self {
        let quoted = |cell: &str| -> BTreeSet<String> {
            cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let mut documented = Self { labels: BTreeMap::new(), values: BTreeMap::new() };
        for row in read("docs/metrics.md").lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.split('|').collect();
            let [_, name, kind, labels, meaning, _] = cells[..] else { continue };
            for label in quoted(labels) {
                documented.values.entry(label).or_default().extend(quoted(meaning));
            }
            for name in quoted(name) {
                let parts: &[&str] = if kind.trim() == "histogram" {
                    &["", "_bucket", "_sum", "_count"]
                } else {
                    &[""]
                };
                for part in parts {
                    documented.labels.insert(format!("{name}{part}"), quoted(labels));
                }
            }
        }
        // The name of a recorded metric, such as fleet_queue:pgmill_x:max, begins with its labels.
        for rule in rules("record") {
            let name = rule["record"].as_str().unwrap();
            let labels = name.split(':').next().unwrap().split('_').map(str::to_owned).collect();
            documented.labels.insert(name.to_owned(), labels);
        }
        documented
    }

    /// Returns what is unknown in a text with expressions.
    fn unknown(&self, text: &str) -> Vec<String> {
        // Quotes are escaped in JSON.
        let text = text.replace("\\\"", "\"");
        let part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let words = text.split(|c| !part(c)).map(|word| word.trim_end_matches(':'));
        let ours = words.filter(|word| word.contains("pgmill_") || word.starts_with("process_"));
        let mut found: Vec<String> =
            ours.filter(|word| !self.labels.contains_key(*word)).map(str::to_owned).collect();
        for (at, _) in text.match_indices('{') {
            let name = text[..at].rsplit(|c| !part(c)).next().unwrap_or_default();
            if let (Some(labels), Some((inside, _))) =
                (self.labels.get(name), text[at + 1..].split_once('}'))
            {
                found.extend(self.unknown_labels(inside, labels));
            }
        }
        found
    }

    fn unknown_labels(&self, inside: &str, labels: &BTreeSet<String>) -> Vec<String> {
        let mut found = Vec::new();
        let mut parts = inside.split('"');
        while let (Some(before), Some(value)) = (parts.next(), parts.next()) {
            let label = before.trim_matches([',', ' ', '=', '~', '!']);
            if ADDED.contains(&label) {
                continue;
            }
            if !labels.contains(label) {
                found.push(format!("the metric has no label {label}: {inside}"));
            } else if let Some(known) =
                self.values.get(label).filter(|it| !it.is_empty() && !FREE.contains(&label))
            {
                let unknown =
                    value.split('|').filter(|it| !it.contains('$') && !known.contains(*it));
                found.extend(unknown.map(|it| format!("{label} never has the value {it}")));
            }
        }
        found
    }
}

#[test]
fn every_metric_and_label_of_rules_and_dashboards_is_documented() {
    let documented = Documented::read();
    let rules = deploy::files("deploy/prometheus/rules", ".yml").unwrap();
    let dashboards = deploy::files("deploy/grafana/dashboards", ".json").unwrap();
    for (file, text) in rules.into_iter().chain(dashboards) {
        assert_eq!(documented.unknown(&text), [""; 0], "{file}");
    }
}

#[test]
fn what_nothing_has_is_found() {
    let documented = Documented::read();
    let of = |text: &str| documented.unknown(text).join(", ");
    for known in [
        "pgmill_workers{fleet=~\"$fleet\", status=\"stale\"}",
        "fleet_queue_state:pgmill_queue_tasks:max{state=~\"pending|blocked\"}",
        "rate(pgmill_task_run_seconds_bucket[5m])",
    ] {
        assert_eq!(of(known), "");
    }
    for (text, unknown) in [
        ("pgmill_reeders", "pgmill_reeders"),
        ("pgmill_workers{state=\"stale\"}", "the metric has no label state"),
        ("pgmill_workers{status=\\\"stael\\\"}", "status never has the value stael"),
        (
            "rate(pgmill_task_run_seconds_bucket{outcome=\"suceeded\"}[5m])",
            "outcome never has the value suceeded",
        ),
        ("fleet_queue:pgmill_queue_paused:max{state=\"x\"}", "no label state"),
    ] {
        assert!(of(text).contains(unknown), "{text}: {}", of(text));
    }
}
