//! What stands in the braces behind a metric: a label or a value that does not exist selects nothing,
//! and neither promtool nor Prometheus says a word about it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

/// Labels that Prometheus or its configuration adds.
const ADDED: [&str; 4] = ["fleet", "instance", "job", "le"];

/// Labels whose values nobody can list.
const FREE: [&str; 4] = ["queue", "schedule", "sqlstate_class", "version"];

/// What docs/metrics.md says of labels.
struct Documented {
    /// The labels of each metric.
    labels: BTreeMap<String, BTreeSet<String>>,
    /// The values of each label, of all metrics that have it.
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

    /// The labels of a metric or of a part of a histogram; `None`: it is neither.
    fn labels(&self, name: &str) -> Option<BTreeSet<String>> {
        // `fleet_queue:pgmill_x:max` says itself which labels are left.
        if let Some((left, _)) = name.split_once(':') {
            return Some(left.split('_').map(str::to_owned).collect());
        }
        let whole = name.strip_suffix("_bucket").unwrap_or(name);
        self.labels.get(whole).cloned()
    }
}

/// Labels and values in the selectors of these texts that docs/metrics.md does not know, each with the
/// file that it stands in.
///
/// # Errors
/// A page that cannot be read.
pub(crate) fn unknown(texts: &[(String, String)]) -> Result<Vec<String>> {
    let page = crate::root().join("docs/metrics.md");
    let page = std::fs::read_to_string(page).context("could not read docs/metrics.md")?;
    let documented = Documented::read(&page);
    let mut unknown = BTreeSet::new();
    for (file, text) in texts {
        // Quotes in JSON.
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
            found.push(format!("it has no label {label}"));
        } else if FREE.contains(&label) {
            continue;
        } else if let Some(known) = values.get(label).filter(|known| !known.is_empty()) {
            let unknown = value.split('|').filter(|it| !it.contains('$') && !known.contains(*it));
            found.extend(unknown.map(|it| format!("{label} is never {it}")));
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
        assert!(of("pgmill_workers{state=\"stale\"}").contains("it has no label state"));
        assert!(of("pgmill_workers{status=\\\"stael\\\"}").contains("status is never stael"));
        assert!(
            of("rate(pgmill_task_run_seconds_bucket{outcome=\"suceeded\"}[5m])")
                .contains("outcome is never suceeded")
        );
        assert!(of("fleet_queue:pgmill_queue_paused:max{state=\"x\"}").contains("no label state"));
    }
}
