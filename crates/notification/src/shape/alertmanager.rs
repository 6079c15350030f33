//! API v2 of Alertmanager: one alert per message. The end of a problem ends its alert.

use serde_json::{Map, Value, json};

use crate::text;

/// Keys of the document that identify an alert.
const LABELS: [&str; 7] = ["queue", "task", "job", "jobs", "schedule", "worker", "subscription"];

/// Returns the body of POST /api/v2/alerts.
pub(crate) fn body(document: &Value) -> Value {
    let event = document["event"].as_str().unwrap_or_default();
    // The same name for the beginning and the end of a problem.
    let name = match event {
        "run_failed" | "run_succeeded" | "run_recovered" => "PgmillRunFailed".to_owned(),
        other => format!("Pgmill{}", camel(other)),
    };
    let severity = if text::is_failure(document).is_none() { "info" } else { "warning" };
    let mut labels = Map::new();
    labels.insert("alertname".to_owned(), name.into());
    labels.insert("severity".to_owned(), severity.into());
    for key in LABELS {
        let value = text::plain(&document[key]);
        if !value.is_empty() {
            labels.insert(key.to_owned(), value.into());
        }
    }
    // A task without a name has only its id.
    let id = text::plain(&document["task_id"]);
    if event.ends_with("_failed") && !labels.contains_key("task") && !id.is_empty() {
        labels.insert("task_id".to_owned(), id.into());
    }
    let mut alert = json!({
        "labels": labels,
        "annotations": {"summary": text::title(document), "description": text::body(document)},
    });
    // Without an end, an alert ends after resolve_timeout of Alertmanager.
    if text::is_failure(document) == Some(false) {
        alert["endsAt"] = document["time"].clone();
    } else {
        alert["startsAt"] = document["time"].clone();
    }
    json!([alert])
}

fn camel(words: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters.next().map_or_else(String::new, |first| {
            first.to_ascii_uppercase().to_string() + letters.as_str()
        })
    };
    words.split('_').map(capital).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_ends_the_alert_of_the_failure() {
        let alert = |event: &str| {
            let time = "2026-01-01T00:00:00Z";
            body(&json!({"event": event, "jobs": ["a"], "subscription": "s", "time": time}))[0]
                .clone()
        };
        let (failed, recovered) = (alert("run_failed"), alert("run_recovered"));
        assert_eq!(failed["labels"], recovered["labels"]);
        assert!(failed["endsAt"].is_null() && recovered["endsAt"].is_string());
    }

    #[test]
    fn each_worker_and_each_task_without_a_name_has_an_alert_of_its_own() {
        let labels = |document| body(&document)[0]["labels"].clone();
        let lost = |worker: &str| labels(json!({"event": "worker_lost", "worker": worker}));
        assert_ne!(lost("a"), lost("b"));
        let failed = |id| labels(json!({"event": "task_failed", "queue": "q", "task_id": id}));
        assert_ne!(failed(1), failed(2));
        let named = |id| labels(json!({"event": "task_failed", "task": "t", "task_id": id}));
        assert_eq!(named(1), named(2));
    }
}
