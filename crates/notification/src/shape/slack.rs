//! Incoming webhooks of Slack (also of Mattermost and Rocket.Chat).

use serde_json::{Value, json};

use crate::text;

/// Returns the message: the title, and the details as an attachment with a colour.
pub(crate) fn body(document: &Value) -> Value {
    let title = escape(&text::title(document));
    let facts: Vec<Value> = text::facts(document)
        .into_iter()
        .map(|(label, value)| json!({"title": label, "value": escape(&value), "short": value.len() < 40}))
        .collect();
    let colour = match text::is_failure(document) {
        Some(true) => "danger",
        Some(false) => "good",
        None => "#808080",
    };
    let lines = escape(&text::lines(document).join("\n"));
    json!({
        "text": title,
        "attachments": [{"color": colour, "fallback": title, "fields": facts, "text": lines}],
    })
}

/// Escapes the three characters with a meaning in Slack, so that no text is a link or a mention.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_mention_people() {
        let body = body(&json!({"event": "task_failed", "task": "<!channel>", "task_id": 1}));
        assert!(!body.to_string().contains("<!"), "{body}");
    }
}
