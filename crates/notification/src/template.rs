//! Templates: JSON whose strings contain placeholders such as `{queue}`.
//!
//! The template is parsed as JSON first, and values are inserted into its strings afterwards. So no
//! value can change the structure of the message.

use serde_json::Value;

use crate::error::SettingsError;
use crate::text;

/// Names that a placeholder can have: keys of documents, the texts, and the whole document.
const NAMES: [&str; 51] = [
    "attempt",
    "count",
    "document",
    "errors",
    "event",
    "events",
    "failed",
    "final",
    "fire_at",
    "first_at",
    "heartbeat_at",
    "host",
    "job",
    "jobs",
    "last_at",
    "late_since",
    "max_attempts",
    "message",
    "message_id",
    "missed_from",
    "missed_to",
    "not_completed",
    "note",
    "notification_id",
    "oldest_seconds",
    "open",
    "outcome",
    "pending",
    "pid",
    "queue",
    "readers",
    "reason",
    "requested_by",
    "resolved",
    "run_id",
    "samples",
    "schedule",
    "seconds",
    "sqlstate",
    "started_at",
    "subscription",
    "succeeded",
    "tags",
    "task",
    "task_id",
    "tasks",
    "text",
    "time",
    "title",
    "traceparent",
    "worker",
];

/// A parsed template.
#[derive(Debug)]
pub(crate) struct Template(Value);

impl Template {
    /// Parses the JSON and checks the names of the placeholders.
    pub(crate) fn parse(text: &str) -> Result<Self, SettingsError> {
        let json = serde_json::from_str(text)
            .map_err(|error| SettingsError(format!("template is not JSON: {error}")))?;
        check(&json)?;
        Ok(Self(json))
    }

    /// Returns the message for a document.
    pub(crate) fn render(&self, document: &Value) -> Value {
        fill(&self.0, document)
    }
}

fn check(json: &Value) -> Result<(), SettingsError> {
    match json {
        Value::String(text) => {
            let unknown = pieces(text).find_map(|piece| match piece {
                Piece::Key(key) if !NAMES.contains(&key) => Some(key),
                _ => None,
            });
            unknown.map_or(Ok(()), |key| {
                Err(SettingsError(format!("template has the unknown placeholder {{{key}}}")))
            })
        }
        Value::Array(items) => items.iter().try_for_each(check),
        Value::Object(entries) => entries.values().try_for_each(check),
        _ => Ok(()),
    }
}

/// A part of a string: text, or the name in a placeholder.
#[derive(Debug, PartialEq)]
enum Piece<'a> {
    Text(&'a str),
    Key(&'a str),
}

/// Splits a string at its placeholders. Braces around anything but a name are text.
fn pieces(mut rest: &str) -> impl Iterator<Item = Piece<'_>> {
    let is_name =
        |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let key = rest.strip_prefix('{').and_then(|after| after.split_once('}'));
        if let Some((key, after)) = key.filter(|(key, _)| is_name(key)) {
            rest = after;
            return Some(Piece::Key(key));
        }
        // A brace at the beginning is not that of a placeholder.
        let end =
            rest.char_indices().skip(1).find(|(_, c)| *c == '{').map_or(rest.len(), |it| it.0);
        let (text, after) = rest.split_at(end);
        rest = after;
        Some(Piece::Text(text))
    })
}

fn fill(json: &Value, document: &Value) -> Value {
    match json {
        Value::String(text) => {
            let all: Vec<Piece<'_>> = pieces(text).collect();
            // A string that is one placeholder keeps the type of the value.
            if let [Piece::Key(key)] = all[..] {
                return value(key, document);
            }
            let filled = all.iter().map(|piece| match piece {
                Piece::Text(text) => (*text).to_owned(),
                Piece::Key(key) => text::plain(&value(key, document)),
            });
            Value::String(filled.collect())
        }
        Value::Array(items) => items.iter().map(|item| fill(item, document)).collect(),
        Value::Object(entries) => Value::Object(
            entries.iter().map(|(key, item)| (key.clone(), fill(item, document))).collect(),
        ),
        other => other.clone(),
    }
}

fn value(key: &str, document: &Value) -> Value {
    match key {
        "document" => document.clone(),
        "title" => text::title(document).into(),
        "text" => text::body(document).into(),
        key => document.get(key).cloned().unwrap_or(Value::Null),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_inserted_into_strings_and_cannot_change_the_structure() {
        let template = Template::parse(
            r#"{"summary": "{queue}: {message} {", "id": "{task_id}", "all": ["{tags}", 1], "é": "é{queue}"}"#,
        )
        .unwrap();
        let hostile = "\", \"admin\": true, \"x\": \"{queue}";
        let document = json!({"queue": "etl", "message": hostile, "task_id": 7, "tags": ["a"]});
        assert_eq!(
            template.render(&document),
            json!({"summary": format!("etl: {hostile} {{"), "id": 7, "all": [["a"], 1], "é": "éetl"})
        );
    }

    #[test]
    fn an_unknown_placeholder_is_an_error() {
        let error = Template::parse(r#"["{que}"]"#).unwrap_err().to_string();
        assert_eq!(error, "template has the unknown placeholder {que}");
        assert!(Template::parse("{").is_err());
    }

    #[test]
    fn a_placeholder_can_have_the_name_of_each_key_that_only_some_events_have() {
        for key in ["late_since", "note", "open", "reason", "started_at", "traceparent"] {
            let template = Template::parse(&format!("[\"{{{key}}}\"]")).unwrap();
            assert_eq!(template.render(&json!({key: 7})), json!([7]), "{key}");
        }
    }
}
