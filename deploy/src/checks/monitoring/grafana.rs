//! Checks the dashboards: their structure, and every expression.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::dashboard::{Dashboard, dashboards};
use crate::rules::{alerts, files, unknown_metrics};
use crate::{Check, Tools, selectors};

const SUBJECT: &str = "grafana";

/// Checks everything under `deploy/grafana`.
pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let dashboards = dashboards()?;
    let texts = files("deploy/grafana/dashboards", ".json")?;
    let found = |what: &str, errors: &[String]| Check::found(SUBJECT, what, "own", errors);
    Ok(vec![
        form(&dashboards),
        expressions(tools, &dashboards)?,
        found("every metric of the panels is documented", &unknown_metrics(&texts)?),
        found(
            "every label of the panels, and its value, is documented",
            &selectors::unknown(&texts)?,
        ),
        found("links lead to dashboards and pages that exist", &links(&dashboards)?),
    ])
}

fn form(dashboards: &[Dashboard]) -> Check {
    let mut errors = Vec::new();
    let mut uids = BTreeSet::new();
    let mut panels = 0;
    for dashboard in dashboards {
        let file = &dashboard.file;
        if dashboard.uid.is_empty() || !uids.insert(&dashboard.uid) {
            errors.push(format!("{file}: the uid is missing or taken"));
        }
        if !dashboard.json["id"].is_null() {
            errors.push(format!("{file}: remove the id; it is specific to one Grafana instance"));
        }
        sources(&dashboard.json, file, &mut errors);
        let mut ids = BTreeSet::new();
        let all = dashboard.json["panels"].as_array().into_iter().flatten();
        for id in all.map(|panel| panel["id"].as_i64()) {
            if id.is_none_or(|id| !ids.insert(id)) {
                errors.push(format!("{file}: the panel id {id:?} is missing or taken"));
            }
        }
        for panel in &dashboard.panels {
            panels += 1;
            let place = format!("{file}: panel {} \"{}\"", panel.id, panel.title);
            let empty = [
                ("title", panel.title.is_empty()),
                ("description", panel.description.is_empty()),
                ("unit", panel.unit.is_empty()),
                ("expr", panel.targets.is_empty()),
                ("expr", panel.targets.iter().any(|target| target.expr.is_empty())),
            ];
            let missing = empty.into_iter().filter(|(_, empty)| *empty);
            errors.extend(missing.map(|(what, _)| format!("{place} has no {what}")));
        }
    }
    let what =
        "unique ids; data source is a variable; each panel has unit, description, expression";
    if errors.is_empty() {
        let count = format!("{} dashboards, {panels} panels", dashboards.len());
        return Check::passed(SUBJECT, what, "own", count);
    }
    Check::found(SUBJECT, what, "own", &errors)
}

/// Checks that every data source is the variable, so that a dashboard works in any Grafana.
fn sources(json: &Value, file: &str, errors: &mut Vec<String>) {
    match json {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "datasource" && value["uid"] != "${datasource}" {
                    errors.push(format!("{file}: data source is not a variable: {value}"));
                }
                sources(value, file, errors);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| sources(item, file, errors)),
        _ => {}
    }
}

/// Writes each expression as a recording rule and checks them with promtool.
fn expressions(tools: &Tools, dashboards: &[Dashboard]) -> Result<Check> {
    const WHAT: &str = "every expression is PromQL";
    let mut rules = String::from("groups:\n- name: panels\n  rules:\n");
    let mut count = 0;
    let mut left = Vec::new();
    for dashboard in dashboards {
        for panel in &dashboard.panels {
            for target in &panel.targets {
                let query = target.query("5m");
                if query.contains('$') {
                    left.push(format!("{}: unresolved variable in {query}", dashboard.file));
                }
                count += 1;
                // promtool reports only the line: the rule name identifies the panel.
                let uid = dashboard.uid.replace('-', "_");
                let quoted = Value::from(query).to_string();
                writeln!(
                    rules,
                    "  - record: {uid}:panel_{}:{count}\n    expr: {quoted}",
                    panel.id
                )?;
            }
        }
    }
    if !left.is_empty() {
        return Ok(Check::found(SUBJECT, WHAT, "own", &left));
    }
    let name = format!("pgmill-panels-{}.yml", std::process::id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, rules).context("could not write the rules of the panels")?;
    let mut command = tools.command("promtool");
    let output = tools.run(command.args(["check", "rules"]).arg(&file), "");
    let _ = std::fs::remove_file(&file);
    let Some(output) = output? else {
        let hint = "install the package prometheus, or put promtool into PATH";
        return Ok(Check::skipped(SUBJECT, WHAT, "promtool", hint));
    };
    if output.success {
        return Ok(Check::passed(SUBJECT, WHAT, "promtool", format!("{count} expressions")));
    }
    Ok(Check::found(SUBJECT, WHAT, "promtool", &[output.combined()]))
}

fn links(dashboards: &[Dashboard]) -> Result<Vec<String>> {
    let known = |url: &str| {
        let uid = url.trim_start_matches("/d/").split(['?', '/']).next().unwrap_or_default();
        dashboards.iter().any(|dashboard| dashboard.uid == uid)
    };
    let mut errors = Vec::new();
    for dashboard in dashboards {
        for link in dashboard.json["links"].as_array().into_iter().flatten() {
            let url = link["url"].as_str().unwrap_or_default();
            if !known(url) {
                errors.push(format!("{}: unexpected link to {url}", dashboard.file));
            }
        }
        for panel in &dashboard.panels {
            let words = panel.description.split_whitespace();
            for page in words.filter(|word| word.starts_with("docs/")) {
                let page = page.trim_end_matches('.');
                if !crate::root().join(page).is_file() {
                    errors.push(format!("{}: {page} does not exist", dashboard.file));
                }
            }
        }
    }
    for alert in alerts()? {
        let url = alert.get("dashboard_url").unwrap_or_default();
        if !known(url) {
            errors.push(format!("{}: dashboard_url {url} does not exist", alert.name));
        }
    }
    Ok(errors)
}
