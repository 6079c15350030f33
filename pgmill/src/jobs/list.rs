//! `pgmill job list|enable|disable`: lists jobs, and switches jobs and their tasks on and off.

use cli::{Failure, exit};
use conninfo::Client;
use queue::job::{self, Job};
use queue::task_queries;
use serde_json::{Value, json};
use terminal::visible;
use tokio_postgres::Transaction;

use crate::args::JobName;
use crate::jobs::show::unknown;
use crate::output::format::{HEAD_CHARS, one_line, relative_time, with_tags};
use crate::output::{Field, Output, Tone};
use crate::session::{begin_read_committed, commit_unless_dry_run};

/// Lists jobs with their last runs.
pub(super) async fn list(client: &Client, out: &Output) -> Result<u8, Failure> {
    let jobs = job::jobs(client).await?;
    if out.json {
        out.document(&jobs)?;
        return Ok(exit::OK);
    }
    if jobs.is_empty() {
        out.note("there are no jobs");
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
            Field::new(with_tags(job.name.clone(), &job.labels)),
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
    out.print_table(&headings, jobs.iter().map(row).collect())?;
    Ok(exit::OK)
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
) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let before = job::definition(&transaction, &args.name).await?;
    let Some(before) = before else { return Err(unknown(&args.name)) };
    let name = before["name"].as_str().unwrap_or(&args.name);
    if let Some(task) = &args.task {
        return enable_task(transaction, out, args, (&before, task), enabled).await;
    }
    let changed = before["enabled"] != enabled;
    if changed && !job::enable(&transaction, name, enabled).await? {
        return Err(unknown(name));
    }
    let schedules = job::schedules(&transaction, name).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    if out.json {
        out.document(&json!({
            "job": name, "dry_run": args.dry_run, "enabled": enabled, "changed": changed,
            "schedules": schedules,
        }))?;
        return Ok(exit::OK);
    }
    out.text(&visible(&format!("job {name} {}", result(changed, args.dry_run, enabled))))?;
    if !enabled && !schedules.is_empty() {
        out.note(visible(&format!(
            "schedules that run this job will leave it out, or fail if it is their only job: {}",
            schedules.join(", ")
        )));
    }
    Ok(exit::OK)
}

/// Enables or disables a task of the job with this definition.
async fn enable_task(
    transaction: Transaction<'_>,
    out: &Output,
    args: &JobName,
    (definition, task): (&Value, &str),
    enabled: bool,
) -> Result<u8, Failure> {
    let job = definition["name"].as_str().unwrap_or(&args.name);
    let tasks = definition["tasks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(before) = tasks.iter().find(|it| it["name"] == task) else {
        let message = format!("job {job} has no task {task}");
        return Err(Failure::not_found(message).hint(format!("pgmill job show {job}")));
    };
    let changed = before["enabled"] != enabled;
    if changed {
        job::enable_task(&transaction, job, task, enabled).await?;
    }
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let is_child = |it: &&Value| {
        it["after"].as_array().is_some_and(|after| after.iter().any(|edge| edge["task"] == task))
    };
    let children: Vec<&str> =
        tasks.iter().filter(is_child).filter_map(|it| it["name"].as_str()).collect();
    if out.json {
        out.document(&json!({
            "job": job, "task": task, "dry_run": args.dry_run, "enabled": enabled,
            "changed": changed, "children": children,
        }))?;
        return Ok(exit::OK);
    }
    let result = result(changed, args.dry_run, enabled);
    out.text(&visible(&format!("task {task} of job {job} {result}")))?;
    if !enabled && !children.is_empty() {
        out.note(visible(&format!(
            "tasks that then wait neither for it nor for the tasks before it: {}",
            children.join(", ")
        )));
    }
    Ok(exit::OK)
}

fn result(changed: bool, dry_run: bool, enabled: bool) -> String {
    let verb = match (changed, dry_run) {
        (false, _) => "is already",
        (true, true) => "would be",
        (true, false) => "is now",
    };
    format!("{verb} {}", if enabled { "enabled" } else { "disabled" })
}
