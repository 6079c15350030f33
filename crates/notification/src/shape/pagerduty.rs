//! Events API v2 of `PagerDuty`: failures trigger an incident, and their end resolves it.

use serde_json::{Value, json};

use crate::text;

/// Maximum length of a summary and of a deduplication key.
const SUMMARY: usize = 1024;
const KEY: usize = 255;

/// Returns the event; `None` for an event without a meaning for `PagerDuty`.
pub(crate) fn body(document: &Value, routing_key: &str) -> Option<Value> {
    let action = match text::is_failure(document) {
        Some(false) => "resolve",
        Some(true) | None => "trigger",
    };
    let severity = match document["event"].as_str()? {
        "test" | "approval_needed" => "info",
        "attempt_failed" | "schedule_missed" | "late" => "warning",
        _ => "error",
    };
    let mut event = json!({
        "routing_key": routing_key,
        "event_action": action,
        "dedup_key": cut(&text::subject(document), KEY),
    });
    if action == "trigger" {
        event["payload"] = json!({
            "summary": cut(&text::title(document), SUMMARY),
            "source": "pgmill",
            "severity": severity,
            "timestamp": document["time"],
            "custom_details": document,
        });
    }
    Some(event)
}

fn cut(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}
