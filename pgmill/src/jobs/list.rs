//! `pgmill job list|enable|disable`: lists jobs, and switches jobs and their tasks on and off.

use cli::{Exit, Failure};
use conninfo::Client;
use queue::job::{self, Job};
use queue::task_queries;
use serde_json::{Value, json};
use terminal::visible;

use crate::args::JobName;
use crate::output::format::{HEAD_CHARS, one_line, relative_time, with_tags};
use crate::output::{Output, Row, Tone};
use crate::session::{change, missing};

/// Lists jobs with their last runs.
pub(super) async fn list(client: &Client, out: &Output) -> Exit {
    let now = task_queries::now(client).await?;
    out.list(&job::jobs(client).await?, "there are no jobs", |job: &Job| {
        let description = job.description.as_deref().map(|text| one_line(text, HEAD_CHARS));
        Row::of("job", with_tags(job.name.clone(), &job.labels))
            .text("enabled", if job.enabled { "yes" } else { "no" })
            .warn_if(!job.enabled)
            .count("tasks", job.tasks)
            .maybe("last run", job.last_run_id)
            .maybe("state", job.last_state.as_deref())
            .tone(Tone::of_end(job.last_state.as_deref().unwrap_or_default()))
            .maybe("started", job.last_started_at.map(|time| relative_time(time, now)))
            .maybe("frequency", job.frequency.as_deref())
            .maybe("description", description)
    })
}

/// Enables or disables a job, or one of its tasks.
///
/// # Errors
/// Fails if there is no such job or task.
pub(super) async fn enable(
    client: &mut Client,
    out: &Output,
    args: &JobName,
    enabled: bool,
) -> Exit {
    let JobName { task, dry_run, .. } = args;
    let (name, changed, affected) = change(client, *dry_run, async |to| {
        let definition = job::definition(to, &args.name).await?;
        let definition = definition.ok_or_else(|| missing("job", &args.name))?;
        let name = definition["name"].as_str().unwrap_or(&args.name).to_owned();
        let Some(task) = task else {
            let changed = definition["enabled"] != enabled;
            if changed && !job::enable(to, &name, enabled).await? {
                return Err(missing("job", name));
            }
            let schedules = job::schedules(to, &name).await?;
            return Ok((name, changed, schedules));
        };
        let before = tasks(&definition).iter().find(|it| it["name"] == **task);
        let before = before.ok_or_else(|| {
            Failure::not_found(format!("job {name} has no task {task}"))
                .hint(format!("pgmill job show {name}"))
        })?;
        let changed = before["enabled"] != enabled;
        if changed {
            job::enable_task(to, &name, task, enabled).await?;
        }
        Ok((name, changed, children(&definition, task)))
    })
    .await?;
    let mut document =
        json!({ "job": name, "dry_run": dry_run, "enabled": enabled, "changed": changed });
    let (what, key, note) = match task {
        Some(task) => {
            document["task"] = json!(task);
            let note = "tasks that then wait neither for it nor for the tasks before it";
            (format!("task {task} of job {name}"), "children", note)
        }
        None => {
            let note =
                "schedules that run this job will leave it out, or fail if it is their only job";
            (format!("job {name}"), "schedules", note)
        }
    };
    document[key] = json!(affected);
    let verb = if changed { dry_run.or("would be", "is now") } else { "is already" };
    let state = if enabled { "enabled" } else { "disabled" };
    let code = out.answer(document, format!("{what} {verb} {state}"))?;
    if !out.json && !enabled && !affected.is_empty() {
        out.note(visible(&format!("{note}: {}", affected.join(", "))));
    }
    Ok(code)
}

/// Returns the tasks of a job that wait for a task.
fn children(definition: &Value, task: &str) -> Vec<String> {
    let is_child = |it: &&Value| {
        it["after"].as_array().is_some_and(|after| after.iter().any(|edge| edge["task"] == task))
    };
    let children = tasks(definition).iter().filter(is_child);
    children.filter_map(|it| it["name"].as_str().map(str::to_owned)).collect()
}

fn tasks(definition: &Value) -> &[Value] {
    definition["tasks"].as_array().map(Vec::as_slice).unwrap_or_default()
}
