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
    match &args.task {
        Some(task) => enable_task(client, out, (args, task), enabled).await,
        None => enable_job(client, out, args, enabled).await,
    }
}

async fn enable_job(client: &mut Client, out: &Output, args: &JobName, enabled: bool) -> Exit {
    let (name, changed, schedules) = change(client, args.dry_run, async |to| {
        let before = job::definition(to, &args.name).await?;
        let before = before.ok_or_else(|| missing("job", &args.name))?;
        let name = before["name"].as_str().unwrap_or(&args.name).to_owned();
        let changed = before["enabled"] != enabled;
        if changed && !job::enable(to, &name, enabled).await? {
            return Err(missing("job", name));
        }
        let schedules = job::schedules(to, &name).await?;
        Ok((name, changed, schedules))
    })
    .await?;
    let code = out.answer(
        json!({
            "job": name, "dry_run": args.dry_run, "enabled": enabled, "changed": changed,
            "schedules": schedules,
        }),
        format!("job {name} {}", result(changed, args, enabled)),
    )?;
    if !out.json && !enabled && !schedules.is_empty() {
        out.note(visible(&format!(
            "schedules that run this job will leave it out, or fail if it is their only job: {}",
            schedules.join(", ")
        )));
    }
    Ok(code)
}

/// Enables or disables a task of a job.
async fn enable_task(
    client: &mut Client,
    out: &Output,
    (args, task): (&JobName, &str),
    enabled: bool,
) -> Exit {
    let (definition, changed) = change(client, args.dry_run, async |to| {
        let definition = job::definition(to, &args.name).await?;
        let definition = definition.ok_or_else(|| missing("job", &args.name))?;
        let job = definition["name"].as_str().unwrap_or(&args.name);
        let before = tasks(&definition).iter().find(|it| it["name"] == task);
        let before = before.ok_or_else(|| {
            Failure::not_found(format!("job {job} has no task {task}"))
                .hint(format!("pgmill job show {job}"))
        })?;
        let changed = before["enabled"] != enabled;
        if changed {
            job::enable_task(to, job, task, enabled).await?;
        }
        Ok((definition, changed))
    })
    .await?;
    let job = definition["name"].as_str().unwrap_or(&args.name);
    let is_child = |it: &&Value| {
        it["after"].as_array().is_some_and(|after| after.iter().any(|edge| edge["task"] == task))
    };
    let children = tasks(&definition).iter().filter(is_child);
    let children: Vec<&str> = children.filter_map(|it| it["name"].as_str()).collect();
    let code = out.answer(
        json!({
            "job": job, "task": task, "dry_run": args.dry_run, "enabled": enabled,
            "changed": changed, "children": children,
        }),
        format!("task {task} of job {job} {}", result(changed, args, enabled)),
    )?;
    if !out.json && !enabled && !children.is_empty() {
        out.note(visible(&format!(
            "tasks that then wait neither for it nor for the tasks before it: {}",
            children.join(", ")
        )));
    }
    Ok(code)
}

fn tasks(definition: &Value) -> &[Value] {
    definition["tasks"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn result(changed: bool, args: &JobName, enabled: bool) -> String {
    let verb = if changed { args.dry_run.or("would be", "is now") } else { "is already" };
    format!("{verb} {}", if enabled { "enabled" } else { "disabled" })
}
