//! The result of a check, and the table of all results.

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The check passed.
    Passed,
    /// The tool reported an error.
    Failed,
    /// The tool is not installed.
    Skipped,
    /// The tool is not installed and cannot be installed automatically: not a failure even with
    /// `--strict`.
    Unavailable,
}

/// One row of the report.
#[derive(Debug, Serialize)]
pub struct Check {
    /// Part of `deploy/`.
    pub subject: &'static str,
    /// What was checked.
    pub what: String,
    /// Tool that checked: a program with its version, or `own`.
    pub tool: String,
    /// Outcome of the check.
    pub outcome: Outcome,
    /// Counts, errors reported by the tool, or how to install the tool.
    pub detail: String,
}

impl Check {
    /// Creates a passed check; `detail` gives the amount checked.
    #[must_use]
    pub fn passed(subject: &'static str, what: &str, tool: &str, detail: String) -> Self {
        Self { subject, what: what.into(), tool: tool.into(), outcome: Outcome::Passed, detail }
    }

    /// Creates a check from errors, one per line; without errors the check has passed.
    #[must_use]
    pub fn found(subject: &'static str, what: &str, tool: &str, errors: &[String]) -> Self {
        let outcome = if errors.is_empty() { Outcome::Passed } else { Outcome::Failed };
        let detail = errors.join("\n");
        Self { subject, what: what.into(), tool: tool.into(), outcome, detail }
    }

    /// Creates a check skipped because its tool is missing.
    #[must_use]
    pub fn skipped(subject: &'static str, what: &str, tool: &str, hint: &str) -> Self {
        let (outcome, detail) = (Outcome::Skipped, hint.to_owned());
        Self { subject, what: what.into(), tool: tool.into(), outcome, detail }
    }

    /// Creates a check whose tool is not available as a package.
    #[must_use]
    pub fn unavailable(subject: &'static str, what: &str, tool: &str, hint: &str) -> Self {
        Self { outcome: Outcome::Unavailable, ..Self::skipped(subject, what, tool, hint) }
    }

    /// Creates a failed check for a subject whose checks could not run.
    #[must_use]
    pub fn broken(subject: &'static str, error: &anyhow::Error) -> Self {
        Self::found(subject, "the checks themselves", "own", &[format!("{error:#}")])
    }
}

/// Returns whether no check failed and, if strict, none was skipped.
pub(crate) fn all_passed(checks: &[Check], strict: bool) -> bool {
    let bad = |check: &Check| match check.outcome {
        Outcome::Passed | Outcome::Unavailable => false,
        Outcome::Failed => true,
        Outcome::Skipped => strict,
    };
    !checks.iter().any(bad)
}

/// Prints the table, or one JSON document, on standard output.
pub(crate) fn print(checks: &[Check], json: bool) {
    if json {
        println!("{}", serde_json::json!({ "checks": checks }));
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["subject", "checked", "tool", "", "detail"]);
    for check in checks {
        let mark = match check.outcome {
            Outcome::Passed => "ok",
            Outcome::Failed => "FAILED",
            Outcome::Skipped | Outcome::Unavailable => "skipped",
        };
        table.add_row([check.subject, &check.what, &check.tool, mark, &check.detail]);
    }
    println!("{table}");
    let count = |outcome| checks.iter().filter(|check| check.outcome == outcome).count();
    println!(
        "{} checks: {} passed, {} failed, {} skipped",
        checks.len(),
        count(Outcome::Passed),
        count(Outcome::Failed),
        count(Outcome::Skipped) + count(Outcome::Unavailable)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_fails_only_in_strict_mode() {
        let skipped = [Check::skipped("a", "b", "c", "install it")];
        assert!(all_passed(&skipped, false) && !all_passed(&skipped, true));
        let failed = [Check::found("a", "b", "c", &["wrong".into()])];
        assert!(!all_passed(&failed, false));
        assert!(all_passed(&[Check::unavailable("a", "b", "c", "none")], true));
        assert!(all_passed(&[Check::found("a", "b", "c", &[])], true));
    }
}
