//! `pgmill schedule list`, and the search for one schedule.

use cli::{Failure, exit};
use conninfo::Client;
use jiff::Timestamp;
use schedule::describe_timing;
use schedule::queries::{self, AnnotationError, ScheduleStatus};
use serde_json::json;
use terminal::visible;

use crate::args::ScheduleList;
use crate::output::format::{one_line, relative_time, with_tags};
use crate::output::{Field, Output, Tone};

const HEADINGS: [&str; 7] =
    ["schedule", "status", "when", "next fire", "last fire", "last run", "last success"];

/// Lists schedules, and the errors of annotations.
pub(super) async fn list(
    client: &Client,
    out: &Output,
    args: &ScheduleList,
) -> Result<u8, Failure> {
    let schedules = queries::statuses(client, args.removed).await?;
    let declaration_errors = queries::annotation_errors(client).await?;
    if out.json {
        out.document(&json!({ "schedules": schedules, "declaration_errors": declaration_errors }))?;
        return Ok(exit::OK);
    }
    if schedules.is_empty() {
        out.note("there are no schedules");
    } else {
        let now = queue::task_queries::now(client).await?;
        let rows = schedules.iter().map(|it| row(it, now)).collect();
        out.print_table(&HEADINGS, rows)?;
    }
    declaration_errors.iter().for_each(|error| print_declaration_error(out, error));
    Ok(exit::OK)
}

/// Prints the error of an annotation to standard error.
pub(super) fn print_declaration_error(out: &Output, error: &AnnotationError) {
    let AnnotationError { declared_as, place, message, hint } = error;
    let hint = hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
    out.note(visible(&format!("error in the comment of {declared_as}, {place}: {message}{hint}")));
}

fn row(it: &ScheduleStatus, now: Timestamp) -> Vec<Field> {
    let tone = match it.status.as_str() {
        "error" => Tone::Error,
        "overdue" | "disabled" | "removed" => Tone::Warning,
        "running" => Tone::Success,
        _ => Tone::Plain,
    };
    let last_tone = match it.last_state.as_deref() {
        Some("succeeded") => Tone::Success,
        Some("failed") => Tone::Error,
        Some(_) => Tone::Warning,
        None => Tone::Plain,
    };
    vec![
        Field::new(with_tags(it.name.clone(), &it.labels)),
        Field::new(&it.status).tone(tone),
        Field::new(one_line(&describe_timing(&it.timing), 80)),
        Field::or_blank(it.next_fire_at.map(|at| relative_time(at, now))),
        Field::or_blank(it.last_fire_at.map(|at| relative_time(at, now))),
        Field::or_blank(it.last_state.as_deref()).tone(last_tone),
        Field::or_blank(it.last_success_at.map(|at| relative_time(at, now))),
    ]
}

/// Returns the status of a schedule.
///
/// # Errors
/// Fails if there is no such schedule.
pub(super) async fn find(client: &Client, name: &str) -> Result<ScheduleStatus, Failure> {
    queries::status(client, name).await?.ok_or_else(|| missing(name))
}

/// The error for an unknown schedule name.
pub(super) fn missing(name: &str) -> Failure {
    Failure::not_found(format!("there is no schedule \"{name}\"")).hint("pgmill schedule list")
}
