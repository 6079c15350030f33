//! Times, activities, tasks and tags as text; tones of states and outcomes.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use queue::run_queries::Run;
use queue::task_queries::Running;
use queue::{Labels, Outcome, State};
use serde_json::Value;
use terminal::{HIDDEN, visible};

pub(crate) use terminal::{counted, one_line, span};

use crate::output::Tone;

/// Maximum characters of a statement in a list.
pub(crate) const HEAD_CHARS: usize = 60;

/// Formats a time in the local time zone.
pub(crate) fn local_time(time: Timestamp) -> String {
    time.to_zoned(TimeZone::system()).strftime("%F %T %Z").to_string()
}

/// Formats a time relative to now: `5m 0s ago`, `in 5m 0s`.
pub(crate) fn relative_time(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(time).as_secs_f64();
    if seconds < 0.0 { format!("in {}", span(-seconds)) } else { format!("{} ago", span(seconds)) }
}

pub(crate) fn state_tone(state: State) -> Tone {
    match state {
        State::Running => Tone::Success,
        State::Blocked => Tone::Warning,
        State::Scheduled | State::Pending => Tone::Plain,
    }
}

/// Describes the activity of a running task: blockers first, then cancellation, progress, and the
/// state of its backend.
pub(crate) fn activity(it: &Running) -> (String, Tone) {
    if !it.blocked_by.is_empty() {
        let pids: Vec<String> = it.blocked_by.iter().map(ToString::to_string).collect();
        return (format!("blocked by {}", pids.join(", ")), Tone::Error);
    }
    if it.cancel_requested_at.is_some() {
        return ("cancel requested".to_owned(), Tone::Warning);
    }
    if let Some(progress) = &it.progress {
        return (progress.clone(), Tone::Success);
    }
    match (&it.backend_state, &it.wait_event_type, &it.wait_event) {
        (None, ..) => ("backend not visible".to_owned(), Tone::Warning),
        (Some(_), Some(kind), Some(event)) => (format!("{kind}: {event}"), Tone::Plain),
        (Some(state), ..) => (state.clone(), Tone::Plain),
    }
}

pub(crate) fn outcome_tone(outcome: Outcome) -> Tone {
    match outcome {
        Outcome::Succeeded => Tone::Success,
        Outcome::Cancelled | Outcome::Interrupted => Tone::Warning,
        Outcome::Failed | Outcome::TimedOut | Outcome::Lost | Outcome::Unknown => Tone::Error,
    }
}

/// Formats a task's name, the beginning of its statement, and its tags.
pub(crate) fn task_label(name: Option<&str>, statement: Option<&str>, labels: &Labels) -> String {
    let statement = statement.unwrap_or(HIDDEN);
    let text = match name {
        Some(name) => one_line(&format!("{name}: {statement}"), HEAD_CHARS),
        None => one_line(statement, HEAD_CHARS),
    };
    with_tags(text, labels)
}

/// Formats the fire time and the reason of a run that a schedule has fired.
pub(crate) fn fire(run: &Run) -> Option<String> {
    let (at, reason) = (run.fire_at?, run.reason.as_deref()?);
    let backfill = run.backfill_id.map(|id| format!(" {id}")).unwrap_or_default();
    Some(format!("fired for {}: {}{backfill}", local_time(at), visible(reason)))
}

/// Appends the tags, in brackets, to the text that names a task, a run, a job or a schedule.
pub(crate) fn with_tags(mut text: String, labels: &Labels) -> String {
    text.extend(labels.tags_text().map(|tags| format!(" [{tags}]")));
    text
}

/// Returns the tags and the metadata, if there are any, each with its heading.
pub(crate) fn label_lines(labels: &Labels) -> impl Iterator<Item = (&'static str, String)> {
    let tags = labels.tags_text().map(|tags| ("tags", visible(&tags)));
    let metadata = (!labels.metadata.is_empty())
        .then(|| ("metadata", visible(&Value::from(labels.metadata.clone()).to_string())));
    tags.into_iter().chain(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn future_and_past_times_differ() {
        let now: Timestamp = "2026-12-01T03:00:00Z".parse().unwrap();
        let then: Timestamp = "2026-12-01T02:00:00Z".parse().unwrap();
        assert_eq!(relative_time(then, now), "1h 0m ago");
        assert_eq!(relative_time(now, then), "in 1h 0m");
    }
}
