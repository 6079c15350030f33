//! Checks the label selectors of metrics: an unknown label or value selects nothing, and neither
//! promtool nor Prometheus reports it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

/// Labels added by Prometheus or its configuration.
const ADDED: [&str; 4] = ["fleet", "instance", "job", "le"];

/// Labels whose values cannot be enumerated.
const FREE: [&str; 4] = ["queue", "schedule", "sqlstate_class", "version"];

/// Labels documented in docs/metrics.md.
struct Documented {
    /// Labels of each metric.
    labels: BTreeMap<String, BTreeSet<String>>,
    /// Values of each label, over all metrics that have the label.
    values: BTreeMap<String, BTreeSet<String>>,
}

impl Documented {
    fn read(page: &str) -> Self {
        let quoted = |cell: &str| -> BTreeSet<String> {
            cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let (mut all, mut values) = (BTreeMap::new(), BTreeMap::new());
        for row in page.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.split('|').collect();
            let [_, name, _, labels, meaning, _] = cells[..] else { continue };
            let (names, labels) = (quoted(name), quoted(labels));
            for label in &labels {
                let known: &mut BTreeSet<String> = values.entry(label.clone()).or_default();
                known.extend(quoted(meaning));
            }
            all.extend(names.into_iter().map(|name| (name, labels.clone())));
        }
        Self { labels: all, values }
    }

    /// Returns the labels of a metric or of a series of a histogram; `None` if unknown.
    fn labels(&self, name: &str) -> Option<BTreeSet<String>> {
        // The name of a recorded metric, such as `fleet_queue:pgmill_x:max`, begins with its
        // labels.
        if let Some((left, _)) = name.split_once(':') {
            return Some(left.split('_').map(str::to_owned).collect());
        }
        let whole = name.strip_suffix("_bucket").unwrap_or(name);
        self.labels.get(whole).cloned()
    }
}

/// Returns labels and values in the selectors of these texts that docs/metrics.md does not list,
/// each with its file.
///
/// # Errors
/// Returns an error if a page cannot be read.
pub(crate) fn unknown(texts: &[(String, String)]) -> Result<Vec<String>> {
    let page = crate::root().join("docs/metrics.md");
    let page = std::fs::read_to_string(page).context("could not read docs/metrics.md")?;
    let documented = Documented::read(&page);
    let mut unknown = BTreeSet::new();
    for (file, text) in texts {
        // Unescape quotes in JSON.
        let text = text.replace("\\\"", "\"");
        for (at, _) in text.match_indices('{') {
            let part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
            let name = text[..at].rsplit(|c| !part(c)).next().unwrap_or_default();
            let (Some(labels), Some((inside, _))) =
                (documented.labels(name), text[at + 1..].split_once('}'))
            else {
                continue;
            };
            for error in errors(inside, &labels, &documented.values) {
                unknown.insert(format!("{file}: {name}{{{inside}}}: {error}"));
            }
        }
    }
    Ok(unknown.into_iter().collect())
}

fn errors(
    inside: &str,
    labels: &BTreeSet<String>,
    values: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut parts = inside.split('"');
    while let (Some(before), Some(value)) = (parts.next(), parts.next()) {
        let label = before.trim_matches([',', ' ', '=', '~', '!']);
        if ADDED.contains(&label) {
            continue;
        }
        if !labels.contains(label) {
            found.push(format!("the metric has no label {label}"));
        } else if FREE.contains(&label) {
            continue;
        } else if let Some(known) = values.get(label).filter(|known| !known.is_empty()) {
            let unknown = value.split('|').filter(|it| !it.contains('$') && !known.contains(*it));
            found.extend(unknown.map(|it| format!("{label} never has the value {it}")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_values_that_nothing_has_are_found() {
        let of = |text: &str| unknown(&[("a".into(), text.into())]).unwrap().join(", ");
        assert_eq!(of("pgmill_workers{fleet=~\"$fleet\", status=\"stale\"}"), "");
        assert_eq!(of("fleet_queue_state:pgmill_queue_tasks:max{state=~\"pending|blocked\"}"), "");
        assert!(of("pgmill_workers{state=\"stale\"}").contains("the metric has no label state"));
        assert!(
            of("pgmill_workers{status=\\\"stael\\\"}").contains("status never has the value stael")
        );
        assert!(
            of("rate(pgmill_task_run_seconds_bucket{outcome=\"suceeded\"}[5m])")
                .contains("outcome never has the value suceeded")
        );
        assert!(of("fleet_queue:pgmill_queue_paused:max{state=\"x\"}").contains("no label state"));
    }
}
