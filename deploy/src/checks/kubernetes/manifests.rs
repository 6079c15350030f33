//! Checks common to all rendered sets of objects.

use anyhow::Result;
use serde_json::Value;

use crate::checks::flags;
use crate::checks::kubernetes::objects;
use crate::documents::{self, Documents, INSTALL, list, text};
use crate::scratch::Scratch;
use crate::{Check, Tools};

/// Kinds defined by operators, each with a schema in this repository.
const FOREIGN: &[(&str, &str)] = &[
    ("PrometheusRule", "prometheus-rule.json"),
    ("ScaledObject", "scaled-object.json"),
    ("ServiceMonitor", "service-monitor.json"),
    ("TriggerAuthentication", "trigger-authentication.json"),
];

/// Returns all checks of these objects, one row each.
///
/// # Errors
/// Returns an error if a tool does not start.
pub(crate) fn check(tools: &Tools, subject: &'static str, given: &Documents) -> Result<Vec<Check>> {
    let mut errors = objects::errors(&given.objects);
    let commands = given.objects.iter().flat_map(commands).collect::<Vec<_>>();
    errors.extend(flags::errors(tools, &commands)?);
    let what = format!("{}: consistent", given.name);
    let mut own = Check::found(subject, &what, "own", &errors);
    if errors.is_empty() {
        own.detail = format!("{} objects, {} command lines", given.objects.len(), commands.len());
    }
    Ok(vec![kubernetes(tools, subject, given)?, foreign(tools, subject, given)?, own])
}

/// Returns the commands of the containers, one line each.
fn commands(object: &Value) -> Vec<String> {
    let containers = list(object, "spec.template.spec.containers").iter();
    let line = |container: &Value| {
        let parts = list(container, "command").iter().chain(list(container, "args"));
        parts.filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
    };
    containers.map(line).collect()
}

/// Validates against the schemas of Kubernetes: no unknown field, no wrong type.
fn kubernetes(tools: &Tools, subject: &'static str, given: &Documents) -> Result<Check> {
    let what = format!("{}: Kubernetes schemas", given.name);
    let tool = tools.version("kubernetes-validate");
    let scratch = Scratch::new("objects")?;
    let path = scratch.path().join("objects.yaml");
    std::fs::write(&path, &given.text)?;
    let mut command = tools.command("kubernetes-validate");
    let Some(output) = tools.run(command.arg("--strict").arg(path), "")? else {
        return Ok(Check::skipped(subject, &what, &tool, INSTALL));
    };
    let all = scratch.without(&output.combined());
    let fine = |line: &&str| line.starts_with("INFO");
    let foreign = |line: &str| {
        line.starts_with("WARN")
            && FOREIGN.iter().any(|(kind, _)| line.contains(&format!("kind {kind} ")))
    };
    let mut errors: Vec<String> =
        all.lines().filter(|line| !fine(line) && !foreign(line)).map(str::to_owned).collect();
    let ours = given
        .objects
        .iter()
        .filter(|it| !FOREIGN.iter().any(|(kind, _)| text(it, "kind") == *kind));
    let (passed, ours) = (all.lines().filter(fine).count(), ours.count());
    if errors.is_empty() && (!output.success || passed != ours) {
        errors.push(format!("{passed} of {ours} objects passed: {all}"));
    }
    let found = Check::found(subject, &what, &tool, &errors);
    Ok(if errors.is_empty() {
        Check::passed(subject, &what, &tool, format!("{passed} objects"))
    } else {
        found
    })
}

/// Validates operator kinds against this repository's schemas; Kubernetes has none for them.
fn foreign(tools: &Tools, subject: &'static str, given: &Documents) -> Result<Check> {
    let what = format!("{}: operator kinds", given.name);
    let tool = tools.version("check-jsonschema");
    let mut errors = Vec::new();
    let mut seen = 0;
    for (kind, schema) in FOREIGN {
        let of_kind: Vec<&Value> =
            given.objects.iter().filter(|it| text(it, "kind") == *kind).collect();
        if of_kind.is_empty() {
            continue;
        }
        seen += of_kind.len();
        match documents::validate(tools, schema, &of_kind)? {
            Some(found) => errors.extend(found),
            None => return Ok(Check::skipped(subject, &what, &tool, INSTALL)),
        }
    }
    let mut check = Check::found(subject, &what, &tool, &errors);
    if errors.is_empty() {
        check.detail = format!("{seen} objects");
    }
    Ok(check)
}
