//! Checks deploy/helm: the chart rendered by Helm itself with the values of several fleets.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;

use super::manifests;
use crate::checks::kubernetes::kustomize::{self, Rendered};
use crate::documents::{self, Documents, INSTALL, files, folder, short, text};
use crate::{Check, Tools};

const SUBJECT: &str = "helm";
const TOOL: &str = "helm-python-sdk";

pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let mut checks = vec![values(tools)?, lint(tools)?, refusal(tools)?];
    let Some(plain) = render(tools, None)? else {
        checks.push(Check::skipped(SUBJECT, "the chart rendered", TOOL, INSTALL));
        return Ok(checks);
    };
    checks.extend(manifests::check(tools, SUBJECT, &plain)?);
    checks.push(same(tools, &plain)?);
    for values in files(&folder().join("helm/values")) {
        if let Some(rendered) = render(tools, Some(&short(&values)))? {
            checks.extend(manifests::check(tools, SUBJECT, &rendered)?);
        }
    }
    Ok(checks)
}

fn chart() -> String {
    folder().join("helm/pgmill").display().to_string()
}

/// Renders the objects with these values; `None` without the tool.
fn render(tools: &Tools, values: Option<&str>) -> Result<Option<Documents>> {
    let (chart, full) =
        (chart(), values.map(|path| crate::root().join(path).display().to_string()));
    let mut arguments = vec!["render", &chart, "pgmill", "pgmill"];
    arguments.extend(full.as_deref());
    let Some(output) = tools.python("chart.py", &arguments)? else { return Ok(None) };
    let name = values.unwrap_or("deploy/helm/pgmill").trim_start_matches("deploy/");
    anyhow::ensure!(output.success, "{name}: {}", output.err.trim());
    documents::parse(name, &output.out).map(Some)
}

/// Checks the defaults against the schema, and the schema itself.
fn values(tools: &Tools) -> Result<Check> {
    let (what, tool) = ("values.yaml against its schema", tools.version("check-jsonschema"));
    let schema = folder().join("helm/pgmill/values.schema.json");
    let mut first = tools.command("check-jsonschema");
    first.arg("--check-metaschema").arg(&schema);
    let mut second = tools.command("check-jsonschema");
    second.arg("--schemafile").arg(&schema).arg(folder().join("helm/pgmill/values.yaml"));
    let mut errors = Vec::new();
    for mut command in [first, second] {
        let Some(output) = tools.run(&mut command, "")? else {
            return Ok(Check::skipped(SUBJECT, what, &tool, INSTALL));
        };
        if !output.success {
            errors.push(output.combined());
        }
    }
    Ok(Check::found(SUBJECT, what, &tool, &errors))
}

fn lint(tools: &Tools) -> Result<Check> {
    let what = "helm lint";
    let Some(output) = tools.python("chart.py", &["lint", &chart()])? else {
        return Ok(Check::skipped(SUBJECT, what, TOOL, INSTALL));
    };
    let errors = if output.success { Vec::new() } else { vec![output.combined()] };
    Ok(Check::found(SUBJECT, what, TOOL, &errors))
}

/// A misspelt value must be an error, not silently ignored.
fn refusal(tools: &Tools) -> Result<Check> {
    let what = "a misspelt value is refused";
    let scratch = crate::scratch::Scratch::new("values")?;
    let path = scratch.path().join("values.yaml");
    std::fs::write(&path, "worker:\n  reders: 3\n")?;
    let arguments = ["render", &chart(), "pgmill", "pgmill", &path.display().to_string()];
    let Some(output) = tools.python("chart.py", &arguments)? else {
        return Ok(Check::skipped(SUBJECT, what, TOOL, INSTALL));
    };
    let refused = !output.success && output.err.contains("reders");
    let errors =
        if refused { Vec::new() } else { vec![format!("accepted: {}", output.combined())] };
    Ok(Check::found(SUBJECT, what, TOOL, &errors))
}

/// Checks that the chart with its defaults produces the same objects as the kustomization, so that
/// nobody changes only one of them.
fn same(tools: &Tools, plain: &Documents) -> Result<Check> {
    let what = "the chart's defaults equal kubernetes/base";
    let base = match kustomize::render(tools, "kubernetes/base")? {
        Rendered::Objects(base) => base,
        Rendered::Refused(why) => return Ok(Check::found(SUBJECT, what, "own", &[why])),
        Rendered::NoTool => return Ok(kustomize::no_tool(SUBJECT, what)),
    };
    let (chart, base) = (by_name(&plain.objects), by_name(&base.objects));
    let mut errors = Vec::new();
    for name in chart.keys().chain(base.keys().filter(|name| !chart.contains_key(*name))) {
        match (chart.get(name), base.get(name)) {
            (Some(chart), Some(base)) if chart == base => {}
            (Some(chart), Some(base)) => differences(name, chart, base, &mut errors),
            (Some(_), None) => errors.push(format!("{name} is only in the chart")),
            (None, _) => errors.push(format!("{name} is only in the kustomization")),
        }
    }
    let mut check = Check::found(SUBJECT, what, "own", &errors);
    if errors.is_empty() {
        check.detail = format!("{} objects", chart.len());
    }
    Ok(check)
}

/// Returns each object without the fields that only one installation method sets.
fn by_name(objects: &[Value]) -> BTreeMap<String, Value> {
    let name = |it: &Value| format!("{}/{}", text(it, "kind"), text(it, "metadata.name"));
    objects.iter().map(|it| (name(it), without_marks(it))).collect()
}

fn without_marks(value: &Value) -> Value {
    const MARKS: &[&str] = &[
        "app.kubernetes.io/instance",
        "app.kubernetes.io/version",
        "app.kubernetes.io/managed-by",
        "helm.sh/chart",
        "helm.sh/hook",
        "helm.sh/hook-delete-policy",
        // The default for an image with a version.
        "imagePullPolicy",
    ];
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| !MARKS.contains(&key.as_str()));
            let kept = kept.map(|(key, value)| (key.clone(), without_marks(value)));
            let empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
            Value::Object(kept.filter(|(_, value)| !empty(value)).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_marks).collect()),
        // 120s equals 2m.
        Value::String(text) => match super::objects::seconds(text) {
            Some(seconds) => Value::from(format!("{seconds} s")),
            None => value.clone(),
        },
        _ => value.clone(),
    }
}

fn differences(place: &str, chart: &Value, base: &Value, found: &mut Vec<String>) {
    match (chart, base) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            for key in keys {
                let (a, b) =
                    (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                differences(&format!("{place}.{key}"), a, b, found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (n, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{place}[{n}]"), a, b, found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => found.push(format!("{place}: {a} in the chart, {b} in the kustomization")),
    }
}
