//! `pgmill job versions|diff`.

use cli::{Exit, Failure, exit};
use conninfo::Client;
use queue::insight::jobs::versions::{
    FieldChange, JobVersion, WHOLE_TASK, job_changes, job_versions,
};
use queue::{job, task_queries};
use serde_json::{Value, json};
use terminal::{counted, line_changes, visible};

use crate::args::JobDiff;
use crate::output::format::relative_time;
use crate::output::{Output, Row, Tone};
use crate::session::missing;

/// Lists the versions of a job.
///
/// # Errors
/// Fails if there is no such job.
pub(super) async fn versions(client: &Client, out: &Output, name: &str) -> Exit {
    let versions = read(client, name).await?;
    if out.json {
        return out.document(&versions);
    }
    let now = task_queries::now(client).await?;
    let row = |(place, version): (usize, &JobVersion)| {
        let changes = versions.get(place + 1).map(|before| {
            counted(job_changes(&before.definition, &version.definition).len(), "change")
        });
        Row::of("version", version.version)
            .text("changed", relative_time(version.changed_at, now))
            .text("by", &version.changed_by)
            .maybe("difference", changes)
    };
    out.print_table(versions.iter().enumerate().map(row).collect())
}

/// Shows the differences between two versions of a job.
///
/// # Errors
/// Fails if there is no such job or version.
pub(super) async fn diff(client: &Client, out: &Output, args: &JobDiff) -> Exit {
    let versions = read(client, &args.name).await?;
    let at = |wanted: Option<i32>, default: usize| match wanted {
        Some(number) => versions.iter().find(|it| it.version == number).ok_or_else(|| {
            let message = format!("job {} has no version {number}", args.name);
            Failure::not_found(message).hint(format!("pgmill job versions {}", args.name))
        }),
        None => versions.get(default).or(versions.last()).ok_or_else(|| missing("job", &args.name)),
    };
    let (from, to) = (at(args.from, 1)?, at(args.to, 0)?);
    let changes = job_changes(&from.definition, &to.definition);
    if out.json {
        return out.document(&json!({
            "job": to.job, "from": from.version, "to": to.version, "changes": changes,
        }));
    }
    if changes.is_empty() {
        out.note(visible(&format!(
            "versions {} and {} of job {} do not differ",
            from.version, to.version, to.job
        )));
        return Ok(exit::OK);
    }
    let mut lines = vec![visible(&format!(
        "job {}, version {} to version {}",
        to.job, from.version, to.version
    ))];
    let mut task = None;
    for change in &changes {
        if change.task != task {
            task.clone_from(&change.task);
            lines.extend(task.iter().map(|name| visible(&format!("task {name}"))));
        }
        lines.extend(format_change(out, change));
    }
    out.text(&lines.join("\n"))
}

/// Reads the versions of a job that exists, newest first.
async fn read(client: &Client, name: &str) -> Result<Vec<JobVersion>, Failure> {
    let versions = job_versions(client, name).await?;
    if versions.is_empty() {
        if job::definition(client, name).await?.is_none() {
            return Err(missing("job", name));
        }
        let message = format!("the database has no version of job {name}");
        return Err(Failure::not_found(message)
            .hint("a job has versions from its first change with this version of pgmill"));
    }
    Ok(versions)
}

/// Formats a change as lines with `-` and `+`.
fn format_change(out: &Output, change: &FieldChange) -> Vec<String> {
    let text = |value: &Option<Value>| match value {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let heading = match (change.field.as_str(), &change.old) {
        (WHOLE_TASK, None) => "  added".to_owned(),
        (WHOLE_TASK, Some(_)) => "  removed".to_owned(),
        (field, _) => format!("  {field}"),
    };
    let line = |(sign, line): (char, String)| {
        let tone = match sign {
            '-' => Tone::Error,
            '+' => Tone::Success,
            _ => Tone::Plain,
        };
        out.paint(&visible(&format!("    {sign} {line}")), tone)
    };
    let changed = line_changes(&text(&change.old), &text(&change.new)).into_iter().map(line);
    std::iter::once(visible(&heading)).chain(changed).collect()
}
