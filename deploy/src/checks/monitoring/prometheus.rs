//! Checks the scrape configuration, the recording and alert rules, and the tests of the rules.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::rules::{alerts, files, tested, unknown_metrics};
use crate::{Check, Tools, selectors};

const SUBJECT: &str = "prometheus";

/// Checks everything under `deploy/prometheus`.
pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let rules = files("deploy/prometheus/rules", ".yml")?;
    let tests = files("deploy/prometheus/tests", ".yml")?;
    let names = |files: &[(String, String)]| -> Vec<String> {
        files.iter().map(|(name, _)| name.clone()).collect()
    };
    let config = vec!["deploy/prometheus/prometheus.yml".to_owned()];
    let alertmanager = vec!["deploy/prometheus/alertmanager.example.yml".to_owned()];
    Ok(vec![
        ask(tools, "configuration", "promtool check config", &config)?,
        ask(tools, "example for Alertmanager", "amtool check-config", &alertmanager)?,
        ask(tools, "rules", "promtool check rules --lint=all --lint-fatal", &names(&rules))?,
        ask(tools, "tests of the rules", "promtool test rules", &names(&tests))?,
        every_alert_is_tested()?,
        Check::found(
            SUBJECT,
            "every metric of the rules is documented",
            "own",
            &unknown_metrics(&rules)?,
        ),
        Check::found(
            SUBJECT,
            "every label of the rules, and its value, is documented",
            "own",
            &selectors::unknown(&rules)?,
        ),
    ])
}

/// Runs a tool with its arguments on these files.
fn ask(tools: &Tools, what: &str, line: &str, files: &[String]) -> Result<Check> {
    let (tool, verb) = line.split_once(' ').unwrap_or((line, ""));
    let mut command = tools.command(tool);
    command.args(verb.split(' ')).args(files).current_dir(crate::root());
    let Some(output) = tools.run(&mut command, "")? else {
        let package = if tool == "amtool" { "prometheus-alertmanager" } else { "prometheus" };
        let hint = format!("install the package {package}, or put {tool} into PATH");
        return Ok(Check::skipped(SUBJECT, what, tool, &hint));
    };
    if output.success {
        return Ok(Check::passed(SUBJECT, what, tool, format!("{} files", files.len())));
    }
    Ok(Check::found(SUBJECT, what, tool, &[output.combined()]))
}

/// Checks that each alert has a test in which it fires, and a test in which it does not. A test in
/// which it fires does not test its threshold.
fn every_alert_is_tested() -> Result<Check> {
    let (firing, quiet) = tested()?;
    let alerts: BTreeSet<String> = alerts()?.into_iter().map(|alert| alert.name).collect();
    let mut errors = Vec::new();
    for alert in &alerts {
        for (tests, what) in [(&firing, "fires"), (&quiet, "is quiet")] {
            if !tests.contains(alert) {
                errors.push(format!("missing test in which {alert} {what}"));
            }
        }
    }
    let unknown = firing.union(&quiet).filter(|name| !alerts.contains(*name));
    errors.extend(unknown.map(|name| format!("a test names {name}, which is not an alert")));
    let what = "every alert fires in a test and is quiet in one";
    if errors.is_empty() {
        let count = format!("{} alerts", alerts.len());
        return Ok(Check::passed(SUBJECT, what, "own", count));
    }
    Ok(Check::found(SUBJECT, what, "own", &errors))
}
