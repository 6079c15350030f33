//! Workflow webhooks of Microsoft Teams, which take adaptive cards.

use serde_json::{Value, json};

use crate::text;

/// Returns a message with one card.
pub(crate) fn body(document: &Value) -> Value {
    let colour = match text::is_failure(document) {
        Some(true) => "attention",
        Some(false) => "good",
        None => "default",
    };
    let facts: Vec<Value> = text::facts(document)
        .into_iter()
        .map(|(label, value)| json!({"title": label, "value": value}))
        .collect();
    // A text run is not parsed as Markdown, as a text block would be.
    let block = |line: &str, weight: &str, color: &str| {
        let run = json!({"type": "TextRun", "text": line, "weight": weight, "color": color});
        json!({"type": "RichTextBlock", "inlines": [run]})
    };
    let mut content = vec![block(&text::title(document), "bolder", colour)];
    if !facts.is_empty() {
        content.push(json!({"type": "FactSet", "facts": facts}));
    }
    content.extend(text::lines(document).iter().map(|line| block(line, "default", "default")));
    json!({"type": "message", "attachments": [{
        "contentType": "application/vnd.microsoft.card.adaptive",
        "content": {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": content,
        },
    }]})
}
