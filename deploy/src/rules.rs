//! Parses the alert rules, their tests and the list of metrics. The files are read line by line,
//! only for the few keys needed; promtool checks that they are valid YAML and PromQL.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// One alert.
#[derive(Debug, Default)]
pub struct Alert {
    /// Name, such as `PgmillNoWorkers`.
    pub name: String,
    /// Keys below the alert with a value on the same line.
    pub keys: Vec<(String, String)>,
}

impl Alert {
    /// Returns the value of a key without quotes.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.keys.iter().find(|(name, _)| name == key).map(|(_, value)| value.trim_matches('"'))
    }

    /// Returns the path of the alert's runbook.
    #[must_use]
    pub fn runbook(&self) -> String {
        let mut page = String::from("docs/runbooks/");
        for (n, c) in self.name.trim_start_matches("Pgmill").chars().enumerate() {
            if n > 0 && c.is_ascii_uppercase() {
                page.push('-');
            }
            page.push(c.to_ascii_lowercase());
        }
        page + ".md"
    }
}

/// Returns the text files of a repository folder with this extension, ordered by path from the
/// root.
///
/// # Errors
/// Returns an error if a folder or file cannot be read.
pub fn files(folder: &str, ending: &str) -> Result<Vec<(String, String)>> {
    let place = crate::root().join(folder);
    let entries = std::fs::read_dir(&place).with_context(|| format!("could not read {folder}"))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.with_context(|| format!("could not read {folder}"))?.path());
    }
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{folder}/{name}");
        let text = std::fs::read_to_string(path).with_context(|| format!("could not read {name}"));
        Ok((name, text?))
    };
    paths.iter().map(read).collect()
}

/// Returns every alert of `deploy/prometheus/rules`.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub fn alerts() -> Result<Vec<Alert>> {
    let mut alerts: Vec<Alert> = Vec::new();
    for (_, text) in files("deploy/prometheus/rules", ".yml")? {
        let mut inside = false;
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("- alert: ") {
                alerts.push(Alert { name: name.to_owned(), keys: Vec::new() });
                inside = true;
            } else if line.starts_with("- ") {
                inside = false;
            } else if let (true, Some(alert)) = (inside, alerts.last_mut())
                && let Some((key, value)) = line.split_once(": ")
                && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
            {
                alert.keys.push((key.to_owned(), value.to_owned()));
            }
        }
    }
    Ok(alerts)
}

/// Returns the alerts that a test expects to fire, and those that a test expects to be quiet.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub fn tested() -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let (mut firing, mut quiet) = (BTreeSet::new(), BTreeSet::new());
    for (_, text) in files("deploy/prometheus/tests", ".yml")? {
        let mut name = "";
        for line in text.lines().map(str::trim) {
            if let Some(alert) = line.strip_prefix("alertname: ") {
                name = alert;
            } else if line == "exp_alerts: []" {
                quiet.insert(name.to_owned());
            } else if line == "exp_alerts:" {
                firing.insert(name.to_owned());
            }
        }
    }
    Ok((firing, quiet))
}

/// Returns words that look like pgmill metrics but are neither in docs/metrics.md nor recorded by a
/// rule, each with its file.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub fn unknown_metrics(texts: &[(String, String)]) -> Result<Vec<String>> {
    let mut known: BTreeSet<String> = BTreeSet::new();
    let page = crate::root().join("docs/metrics.md");
    let page = std::fs::read_to_string(page).context("could not read docs/metrics.md")?;
    for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        let Some((name, rest)) = row.split_once('`') else { continue };
        known.insert(name.to_owned());
        if rest.starts_with(" | histogram") {
            known.extend(["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}")));
        }
    }
    for (_, text) in files("deploy/prometheus/rules", ".yml")? {
        let records = text.lines().filter_map(|line| line.trim().strip_prefix("- record: "));
        known.extend(records.map(str::to_owned));
    }
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut unknown = BTreeSet::new();
    for (file, text) in texts {
        for word in text.split(|c: char| !part(c)).map(|word| word.trim_end_matches(':')) {
            let ours = word.contains("pgmill_") || word.starts_with("process_");
            if ours && !known.contains(word) {
                unknown.insert(format!("{file}: {word} is not in docs/metrics.md"));
            }
        }
    }
    Ok(unknown.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_leads_to_its_page() {
        let alert = Alert { name: "PgmillNoWorkers".into(), keys: Vec::new() };
        assert_eq!(alert.runbook(), "docs/runbooks/no-workers.md");
    }

    #[test]
    fn alerts_and_their_keys_are_found() {
        let alerts = alerts().unwrap();
        let found = alerts.iter().find(|alert| alert.name == "PgmillHorizonPinned").unwrap();
        assert_eq!(found.get("severity"), Some("warning"));
        assert_eq!(found.get("for"), Some("1m"));
        assert_eq!(found.get("runbook_url"), Some(found.runbook().as_str()));
    }

    #[test]
    fn a_misspelt_metric_is_found_and_parts_of_histograms_are_not() {
        let text = "rate(pgmill_task_run_seconds_bucket[5m]) + pgmill_reeders";
        let unknown = unknown_metrics(&[("a".into(), text.into())]).unwrap();
        assert_eq!(unknown, ["a: pgmill_reeders is not in docs/metrics.md"]);
    }
}
