//! `pgmill job show`: the tasks and edges of one job, or of several jobs merged into one run.

use std::collections::BTreeMap;

use cli::{Exit, Failure, exit};
use conninfo::Client;
use queue::run::Expected;
use queue::{Labels, group, job};
use serde::Deserialize;
use serde_json::{Value, json};
use terminal::visible;

use crate::jobs::merge::{Merged, MergedTask, merge};
use crate::output::format::{HEAD_CHARS, label_lines, one_line};
use crate::output::{Output, Row};
use crate::session::missing;

/// Shows jobs as the run that they would become.
///
/// # Errors
/// Fails if there is no such job, or if the dependencies of the jobs form a cycle.
pub(super) async fn show(client: &Client, out: &Output, names: &[String]) -> Exit {
    let mut jobs: Vec<Value> = Vec::new();
    for name in names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()) {
        let job = job::definition(client, name).await?.ok_or_else(|| missing("job", name))?;
        if !jobs.iter().any(|known| known["name"] == job["name"]) {
            jobs.push(job);
        }
    }
    if jobs.is_empty() {
        return Err(Failure::usage("expected at least one job name"));
    }
    let dependencies = job::dependencies(client).await?;
    let groups = group::groups(client).await?;
    let priorities: BTreeMap<_, _> =
        groups.into_iter().filter_map(|group| Some((group.name, group.priority?))).collect();
    let merged = merge(&jobs, &dependencies, &priorities).map_err(|path| {
        Failure::new(exit::REFUSED, format!("dependency cycle: {path}"))
            .hint("pgmill lineage shows the job or dependency of each edge.")
    })?;
    for head in jobs.iter_mut().filter_map(Value::as_object_mut) {
        head.remove("tasks");
    }
    let document = json!({
        "jobs": jobs, "tasks": merged.tasks, "edges": merged.edges,
        "dropped": merged.dropped, "params": merged.params, "disabled": merged.disabled,
    });
    out.shown(&document, || format_merged(out, &jobs, &merged))
}

fn format_merged(out: &Output, jobs: &[Value], merged: &Merged) -> String {
    let mut parts: Vec<String> = vec![jobs.iter().map(head).collect::<Vec<_>>().join("\n")];
    let mut after: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for edge in &merged.edges {
        after.entry(&edge.child).or_default().push(match edge.expected {
            Expected::Succeeded => edge.parent.clone(),
            expected => format!("{} ({expected})", edge.parent),
        });
    }
    let row = |task: &MergedTask| {
        let parents = after.get(task.name.as_str()).map(|parents| parents.join(", "));
        let any = if task.join == "any" { "any of " } else { "" };
        let parents = parents.map(|parents| one_line(&format!("{any}{parents}"), HEAD_CHARS));
        let statement = task.definition["statement"].as_str().unwrap_or_default();
        Row::of("level", task.level)
            .text("task", &task.name)
            .text("job", &task.job)
            .text("priority", task.priority)
            .text("queue", &task.queue)
            .maybe("group", task.group.as_deref())
            .maybe("after", parents)
            .text("statement", one_line(statement, HEAD_CHARS))
    };
    parts.push(out.table(merged.tasks.iter().map(row).collect()));
    let edges = merged.edges.iter().map(|edge| {
        let expected = match edge.expected {
            Expected::Succeeded => String::new(),
            expected => format!("  {expected}"),
        };
        visible(&format!("[{}] >>> [{}]{expected}", edge.parent, edge.child))
    });
    parts.extend((!merged.edges.is_empty()).then(|| edges.collect::<Vec<_>>().join("\n")));
    let list = |what: &str, items: &[String]| {
        (!items.is_empty()).then(|| visible(&format!("{what}: {}", items.join(", "))))
    };
    parts.extend(list("disabled tasks", &merged.disabled));
    parts.extend(list("dropped edges from tasks outside of the run", &merged.dropped));
    parts.extend(list("parameters", &merged.params));
    parts.join("\n\n")
}

fn head(job: &Value) -> String {
    let mut line = format!("job {}", job["name"].as_str().unwrap_or_default());
    if job["enabled"] != true {
        line.push_str(", disabled");
    }
    let texts = ["frequency", "description"].into_iter().filter_map(|key| job[key].as_str());
    line.extend(texts.map(|text| format!(": {text}")));
    let labels = Labels::deserialize(job).unwrap_or_default();
    line.extend(label_lines(&labels).map(|(word, value)| format!("; {word} {value}")));
    visible(&line)
}
