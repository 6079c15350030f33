//! Commands about jobs: the jobs themselves, their files, their dependencies and their lineage.

pub(crate) mod apply;
mod apply_plan;
pub(crate) mod dependencies;
pub(crate) mod job_file;
pub(crate) mod lineage;
mod merge;
mod source;
mod topology;

use std::collections::BTreeMap;

use queue::job::{self, Job};
use queue::{QueueError, exit, group, task_queries};
use serde_json::{Value, json};
use terminal::{print_stderr, visible};
use tokio_postgres::Client;

use crate::args::{JobName, JobVerb};
use crate::failure::Failure;
use crate::jobs::merge::{Merged, MergedTask, merge};
use crate::output::format::{one_line, relative_time};
use crate::output::{Field, Output, Tone};
use crate::session::commit_unless_dry_run;
use crate::tasks::list::HEAD_CHARS;

/// Runs a subcommand of `pgmill job`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &JobVerb) -> Result<u8, Failure> {
    match verb {
        JobVerb::List => list(client, out).await,
        JobVerb::Show { names } => show_merged(client, out, names).await,
        JobVerb::Enable(args) => enable(client, out, args, true).await,
        JobVerb::Disable(args) => enable(client, out, args, false).await,
    }
}

async fn list(client: &Client, out: &Output) -> Result<u8, Failure> {
    let jobs = job::jobs(client).await?;
    if out.json {
        out.document(&jobs)?;
        return Ok(exit::OK);
    }
    if jobs.is_empty() {
        print_stderr("there are no jobs");
        return Ok(exit::OK);
    }
    let now = task_queries::now(client).await?;
    let row = |job: &Job| {
        let tone = match job.last_state.as_deref() {
            Some("failed") => Tone::Error,
            Some("cancelled") => Tone::Warning,
            Some("succeeded") => Tone::Success,
            _ => Tone::Plain,
        };
        vec![
            Field::new(&job.name),
            Field::new(if job.enabled { "yes" } else { "no" }).tone(if job.enabled {
                Tone::Plain
            } else {
                Tone::Warning
            }),
            Field::count(job.tasks),
            Field::or_blank(job.last_run_id),
            Field::or_blank(job.last_state.as_deref()).tone(tone),
            Field::or_blank(job.last_started_at.map(|time| relative_time(time, now))),
            Field::or_blank(job.frequency.as_deref()),
            Field::or_blank(job.description.as_deref().map(|text| one_line(text, HEAD_CHARS))),
        ]
    };
    let headings =
        ["job", "enabled", "tasks", "last run", "state", "started", "frequency", "description"];
    out.text(&out.table(&headings, jobs.iter().map(row).collect()))?;
    Ok(exit::OK)
}

fn unknown(name: &str) -> Failure {
    Failure::not_found(format!("there is no job {name}")).hint("pgmill job list")
}

async fn show_merged(client: &Client, out: &Output, names: &[String]) -> Result<u8, Failure> {
    let mut jobs: Vec<Value> = Vec::new();
    for name in names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()) {
        let job = job::definition(client, name).await?.ok_or_else(|| unknown(name))?;
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
    if out.json {
        let head = |job: &Value| {
            let mut head = job.clone();
            if let Some(head) = head.as_object_mut() {
                head.remove("tasks");
            }
            head
        };
        let heads: Vec<Value> = jobs.iter().map(head).collect();
        out.document(&json!({
            "jobs": heads, "tasks": merged.tasks, "edges": merged.edges,
            "dropped": merged.dropped, "params": merged.params,
        }))?;
    } else {
        out.text(&format_merged(out, &jobs, &merged))?;
    }
    Ok(exit::OK)
}

fn format_merged(out: &Output, jobs: &[Value], merged: &Merged) -> String {
    let mut parts: Vec<String> = vec![jobs.iter().map(head).collect::<Vec<_>>().join("\n")];
    let mut after: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for edge in &merged.edges {
        after.entry(&edge.child).or_default().push(match edge.expected.as_str() {
            "succeeded" => edge.parent.clone(),
            expected => format!("{} ({expected})", edge.parent),
        });
    }
    let row = |task: &MergedTask| {
        let parents = after.get(task.name.as_str()).map(|parents| parents.join(", "));
        let any = if task.join == "any" { "any of " } else { "" };
        vec![
            Field::new(task.level),
            Field::new(&task.name),
            Field::new(&task.job),
            Field::new(task.priority),
            Field::new(&task.queue),
            Field::or_blank(task.group.as_deref()),
            Field::or_blank(parents.map(|parents| format!("{any}{parents}"))),
            Field::new(one_line(
                task.definition["statement"].as_str().unwrap_or_default(),
                HEAD_CHARS,
            )),
        ]
    };
    let headings = ["level", "task", "job", "priority", "queue", "group", "after", "statement"];
    parts.push(out.table(&headings, merged.tasks.iter().map(row).collect()));
    let edges = merged.edges.iter().map(|edge| {
        let expected = match edge.expected.as_str() {
            "succeeded" => String::new(),
            expected => format!("  {expected}"),
        };
        visible(&format!("[{}] >>> [{}]{expected}", edge.parent, edge.child))
    });
    parts.extend((!merged.edges.is_empty()).then(|| edges.collect::<Vec<_>>().join("\n")));
    let list = |what: &str, items: &[String]| {
        (!items.is_empty()).then(|| visible(&format!("{what}: {}", items.join(", "))))
    };
    parts.extend(list("dropped edges from tasks of other jobs", &merged.dropped));
    parts.extend(list("parameters", &merged.params));
    parts.join("\n\n")
}

fn head(job: &Value) -> String {
    let mut line = format!("job {}", job["name"].as_str().unwrap_or_default());
    if job["enabled"] != true {
        line.push_str(", disabled");
    }
    for key in ["frequency", "description"] {
        if let Some(text) = job[key].as_str() {
            line.push_str(": ");
            line.push_str(text);
        }
    }
    visible(&line)
}

async fn enable(
    client: &mut Client,
    out: &Output,
    args: &JobName,
    enabled: bool,
) -> Result<u8, Failure> {
    let transaction = client.transaction().await.map_err(QueueError::from)?;
    let before = job::definition(&transaction, &args.name).await?;
    let Some(before) = before else { return Err(unknown(&args.name)) };
    let name = before["name"].as_str().unwrap_or(&args.name);
    let changed = before["enabled"] != enabled;
    if changed && !job::enable(&transaction, name, enabled).await? {
        return Err(unknown(name));
    }
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if out.json {
        out.document(&json!({
            "job": name, "dry_run": args.dry_run, "enabled": enabled, "changed": changed,
        }))?;
        return Ok(exit::OK);
    }
    let word = if enabled { "enabled" } else { "disabled" };
    let verb = match (changed, args.dry_run) {
        (false, _) => "is already",
        (true, true) => "would be",
        (true, false) => "is now",
    };
    out.text(&visible(&format!("job {name} {verb} {word}")))?;
    Ok(exit::OK)
}
