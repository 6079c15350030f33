//! Checks the PrometheusRule for the Prometheus operator: the rules of deploy/prometheus in a
//! wrapper.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::documents::{files, folder, short};
use crate::{Check, Tools};

const SUBJECT: &str = "rules";

const HEAD: &str = "\
# Generated from deploy/prometheus/rules by `deploy-check --write`; a check compares them.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: pgmill
  labels:
    app.kubernetes.io/name: pgmill
spec:
  groups:
";

/// A generated file: a path below deploy/, and its text.
struct GeneratedFile {
    path: PathBuf,
    text: String,
}

pub(crate) fn run(_: &Tools) -> Result<Vec<Check>> {
    let mut errors = Vec::new();
    for made in make()? {
        if fs::read_to_string(&made.path).unwrap_or_default() != made.text {
            let name = short(&made.path);
            errors.push(format!("{name} is out of date: run deploy-check --write"));
        }
    }
    Ok(vec![Check::found(SUBJECT, "PrometheusRule equals deploy/prometheus/rules", "own", &errors)])
}

/// Writes the generated files.
///
/// # Errors
/// Returns an error if there are no rules, or a file cannot be read or written.
pub(crate) fn write() -> Result<()> {
    for made in make()? {
        if let Some(folder) = made.path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&made.path, made.text).with_context(|| made.path.display().to_string())?;
        println!("wrote {}", short(&made.path));
    }
    Ok(())
}

fn make() -> Result<Vec<GeneratedFile>> {
    let rules = files(&folder().join("prometheus/rules"));
    let mut groups = String::new();
    for path in &rules {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        groups.push_str(
            under_groups(&text).with_context(|| format!("{}: no `groups:`", short(path)))?,
        );
    }
    anyhow::ensure!(!groups.is_empty(), "deploy/prometheus/rules contains no rules");
    let mut object = HEAD.to_owned();
    let deep = first_indent(&groups);
    for line in groups.lines() {
        let line = line.get(deep.min(line.len() - line.trim_start().len())..).unwrap_or_default();
        match line {
            "" => object.push('\n'),
            line => writeln!(object, "    {line}")?,
        }
    }
    let chart = object
        .trim_start_matches(HEAD)
        .lines()
        .map(|line| line.strip_prefix("    ").unwrap_or(line));
    let chart = chart.fold(String::new(), |all, line| all + line + "\n");
    Ok(vec![
        GeneratedFile { path: folder().join("kubernetes/monitoring/rules.yaml"), text: object },
        // Not a template: the braces in the file belong to Prometheus.
        GeneratedFile { path: folder().join("helm/pgmill/files/rules.yaml"), text: chart },
    ])
}

/// Returns the text below the line `groups:`.
fn under_groups(text: &str) -> Option<&str> {
    let at = if text.starts_with("groups:\n") { 0 } else { text.find("\ngroups:\n")? + 1 };
    text.get(at + "groups:\n".len()..)
}

fn first_indent(text: &str) -> usize {
    let line = text.lines().find(|line| line.trim_start().starts_with("- "));
    line.map_or(0, |line| line.len() - line.trim_start().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_groups_are_taken() {
        assert_eq!(under_groups("# note\ngroups:\n  - name: a\n"), Some("  - name: a\n"));
        assert_eq!(under_groups("rules: []\n"), None);
        assert_eq!(first_indent("  # a\n  - name: a\n"), 2);
    }
}
