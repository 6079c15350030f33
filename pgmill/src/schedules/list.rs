//! `pgmill schedule list`, and the search for one schedule.

use cli::{Exit, Failure};
use conninfo::Client;
use jiff::Timestamp;
use schedule::describe_timing;
use schedule::queries::{self, AnnotationError, ScheduleStatus};
use serde_json::json;
use terminal::visible;

use crate::args::ScheduleList;
use crate::output::format::{one_line, relative_time, with_tags};
use crate::output::{Output, Row, Tone};

/// Lists schedules, and the errors of annotations.
pub(super) async fn list(client: &Client, out: &Output, args: &ScheduleList) -> Exit {
    let schedules = queries::statuses(client, args.removed).await?;
    let declaration_errors = queries::annotation_errors(client).await?;
    if out.json {
        let document = json!({ "schedules": schedules, "declaration_errors": declaration_errors });
        return out.document(&document);
    }
    let now = queue::task_queries::now(client).await?;
    let code = out.list(&schedules, "there are no schedules", |it| row(it, now))?;
    declaration_errors.iter().for_each(|error| print_declaration_error(out, error));
    Ok(code)
}

/// Prints the error of an annotation to standard error.
pub(super) fn print_declaration_error(out: &Output, error: &AnnotationError) {
    let AnnotationError { declared_as, place, message, hint } = error;
    let hint = hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
    out.note(visible(&format!("error in the comment of {declared_as}, {place}: {message}{hint}")));
}

fn row(it: &ScheduleStatus, now: Timestamp) -> Row {
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
    let relative = |at: Option<Timestamp>| at.map(|at| relative_time(at, now));
    Row::of("schedule", with_tags(it.name.clone(), &it.labels))
        .text("status", &it.status)
        .tone(tone)
        .text("when", one_line(&describe_timing(&it.timing), 80))
        .maybe("next fire", relative(it.next_fire_at))
        .maybe("last fire", relative(it.last_fire_at))
        .maybe("last run", it.last_state.as_deref())
        .tone(last_tone)
        .maybe("last success", relative(it.last_success_at))
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
