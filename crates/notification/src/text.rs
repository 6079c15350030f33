//! Texts for people: a title of one line, and lines with the details.

use serde_json::Value;

/// Details that a title does not contain, in the order in which they are shown.
const DETAILS: [(&str, &str); 15] = [
    ("note", "Note"),
    ("message", "Error"),
    ("sqlstate", "SQLSTATE"),
    ("queue", "Queue"),
    ("job", "Job"),
    ("schedule", "Schedule"),
    ("run_id", "Run"),
    ("attempt", "Attempt"),
    ("max_attempts", "Maximum attempts"),
    ("tasks", "Tasks"),
    ("succeeded", "Succeeded"),
    ("failed", "Failed"),
    ("not_completed", "Not completed"),
    ("tags", "Tags"),
    ("time", "Time"),
];

/// Returns a value as text; lists separated by commas, null as the empty string.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn get(document: &Value, key: &str) -> String {
    plain(&document[key])
}

/// Returns what happened, in one line.
pub(crate) fn title(document: &Value) -> String {
    let it = |key: &str| get(document, key);
    let task = match it("task") {
        name if name.is_empty() => format!("task {}", it("task_id")),
        name => format!("task {name} ({})", it("task_id")),
    };
    let run = format!("run {} of {}", it("run_id"), it("jobs"));
    let title = match document["event"].as_str().unwrap_or_default() {
        "attempt_failed" => format!("attempt {} of {task}: {}", it("attempt"), it("outcome")),
        "task_failed" => format!("{task}: {}", it("outcome")),
        "run_failed" if !it("reason").is_empty() => format!("{run} {}", it("reason")),
        "run_failed" => format!("{run} failed: {} of {} tasks failed", it("failed"), it("tasks")),
        "run_succeeded" => format!("{run} succeeded"),
        "run_recovered" => format!("{run} succeeded after a failure"),
        "schedule_missed" => format!("schedule {} missed fires: {}", it("schedule"), it("count")),
        "queue_backlog" if document["resolved"] == Value::Bool(true) => {
            format!("queue {}: the backlog has ended", it("queue"))
        }
        "queue_backlog" => format!(
            "queue {}: {} pending tasks, the oldest has waited for {} s",
            it("queue"),
            it("pending"),
            it("oldest_seconds")
        ),
        "worker_lost" => format!("worker {} on {} was lost", it("pid"), it("host")),
        "late" => format!("{} is late", if it("task_id").is_empty() { run } else { task }),
        "approval_needed" => format!("task {} of {run} needs approval", it("task")),
        "test" => format!("test of subscription {}", it("subscription")),
        "digest" => format!("{} notifications of {}", it("count"), it("subscription")),
        other => other.to_owned(),
    };
    one_line(&title)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the details as pairs of a label and a text.
pub(crate) fn facts(document: &Value) -> Vec<(&'static str, String)> {
    let present = |(key, label): &(&str, &'static str)| {
        Some((*label, get(document, key))).filter(|(_, text)| !text.is_empty())
    };
    DETAILS.iter().filter_map(present).collect()
}

/// Returns the errors of a run, or the groups and samples of a digest, one per line.
pub(crate) fn lines(document: &Value) -> Vec<String> {
    let of = |key: &str| document[key].as_array().cloned().unwrap_or_default();
    let errors = of("errors").into_iter().map(|error| {
        let (task, outcome) = (get(&error, "task"), get(&error, "outcome"));
        one_line(&format!("{task}: {outcome}: {}", get(&error, "message")))
    });
    let groups = of("events").into_iter().map(|group| {
        let (count, event) = (get(&group, "count"), get(&group, "event"));
        let what = [get(&group, "sqlstate"), get(&group, "message")].join(" ");
        one_line(&format!("{count} × {event} {what}"))
    });
    let samples = of("samples").into_iter().map(|sample| title(&sample));
    errors.chain(groups).chain(samples).collect()
}

/// Returns title, details and lines as plain text.
pub(crate) fn body(document: &Value) -> String {
    let facts = facts(document).into_iter().map(|(label, text)| format!("{label}: {text}"));
    std::iter::once(title(document))
        .chain(facts)
        .chain(lines(document))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns whether the event is a failure or the beginning of a problem; `None` if it is neither
/// good nor bad.
pub(crate) fn is_failure(document: &Value) -> Option<bool> {
    match document["event"].as_str().unwrap_or_default() {
        "run_succeeded" | "run_recovered" => Some(false),
        "queue_backlog" => Some(document["resolved"] != Value::Bool(true)),
        "test" | "approval_needed" => None,
        _ => Some(true),
    }
}

/// Returns a name for what the event is about. The end of a problem has the same name as its
/// beginning.
pub(crate) fn subject(document: &Value) -> String {
    let it = |key: &str| get(document, key);
    let schedule = it("schedule");
    let what = match document["event"].as_str().unwrap_or_default() {
        "attempt_failed" | "task_failed" if it("task").is_empty() => {
            format!("task {}", it("task_id"))
        }
        "attempt_failed" | "task_failed" => format!("task {} {}", it("queue"), it("task")),
        "run_failed" | "run_succeeded" | "run_recovered" if schedule.is_empty() => {
            format!("run {}", it("jobs"))
        }
        "run_failed" | "run_succeeded" | "run_recovered" => format!("schedule {schedule}"),
        "schedule_missed" => format!("missed {schedule}"),
        "queue_backlog" => format!("queue {}", it("queue")),
        "worker_lost" => format!("worker {}", it("worker")),
        "approval_needed" => format!("approval {} {}", it("run_id"), it("task")),
        "late" => format!("late run {}", it("run_id")),
        other => other.to_owned(),
    };
    format!("pgmill {} {what}", it("subscription"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_title_has_one_line_and_names_the_subject() {
        let task = json!({"event": "task_failed", "task_id": 42, "task": "load\nx", "outcome": "failed",
            "message": "division by zero", "sqlstate": "22012", "queue": "etl"});
        assert_eq!(title(&task), "task load x (42): failed");
        assert_eq!(
            body(&task),
            "task load x (42): failed\nError: division by zero\nSQLSTATE: 22012\nQueue: etl"
        );
        let run = json!({"event": "run_failed", "run_id": 7, "jobs": ["a", "b"], "failed": 1, "tasks": 3,
            "errors": [{"task": "t", "outcome": "failed", "message": "no"}]});
        assert_eq!(title(&run), "run 7 of a, b failed: 1 of 3 tasks failed");
        assert_eq!(lines(&run), ["t: failed: no"]);
        let approval = json!({"event": "approval_needed", "run_id": 7, "jobs": ["a"], "task": "t", "note": "look"});
        assert_eq!(body(&approval), "task t of run 7 of a needs approval\nNote: look\nRun: 7");
        let timeout = json!({"event": "run_failed", "run_id": 7, "jobs": ["a"], "reason": "timed out after 1h"});
        assert_eq!(title(&timeout), "run 7 of a timed out after 1h");
        let digest = json!({"event": "digest", "count": 412, "subscription": "ops",
            "events": [{"event": "task_failed", "count": 412, "sqlstate": "22012"}], "samples": [task]});
        assert_eq!(title(&digest), "412 notifications of ops");
        assert_eq!(lines(&digest), ["412 × task_failed 22012", "task load x (42): failed"]);
    }

    #[test]
    fn the_end_of_a_problem_has_the_subject_of_its_beginning() {
        let run =
            |event: &str| subject(&json!({"event": event, "jobs": ["a"], "subscription": "s"}));
        assert_eq!(run("run_failed"), run("run_recovered"));
        let late = |id| subject(&json!({"event": "late", "run_id": id, "subscription": "s"}));
        assert_ne!(late(1), late(2));
    }
}
