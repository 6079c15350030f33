//! Formats attempts in the style of psql: errors with their position, notices and values.

use queue::attempt::Attempt;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::text::visible;

/// Number of characters of a line of SQL that are shown on either side of an error.
const CONTEXT_CHARS: usize = 60;

/// Text that is shown in place of a text that only operators may see.
pub const HIDDEN: &str = "(hidden)";

/// Formats the error of an attempt. The lines are: message with SQLSTATE, position in the
/// statement, detail, hint, context. Returns `None` if the attempt has no message.
#[must_use]
pub fn format_error(attempt: &Attempt) -> Option<String> {
    let code =
        attempt.sqlstate.as_ref().map(|code| format!(" ({})", visible(code))).unwrap_or_default();
    let hidden = attempt.sqlstate.as_ref().map(|_| HIDDEN);
    let mut text = format!("{}{code}", visible(attempt.message.as_deref().or(hidden)?));
    let place = attempt.position.and_then(|it| caret(attempt.statement.as_deref()?, it));
    text.extend(place.map(|place| format!("\n{place}")));
    let more =
        [("detail", &attempt.detail), ("hint", &attempt.hint), ("context", &attempt.context)];
    for (word, value) in more {
        text.extend(value.as_ref().map(|value| format!("\n{word}: {}", visible(value))));
    }
    Some(text)
}

/// Returns the line of the statement that contains the error, and a caret below the position.
/// `position` counts characters from 1.
#[must_use]
pub fn caret(statement: &str, position: u32) -> Option<String> {
    let before = usize::try_from(position).ok()?.checked_sub(1)?;
    let (offset, _) = statement
        .char_indices()
        .chain([(statement.len(), ' ')])
        .nth(before)
        .filter(|_| !statement.is_empty())?;
    let start = statement[..offset].rfind('\n').map_or(0, |newline| newline + 1);
    let end = statement[offset..].find('\n').map_or(statement.len(), |length| offset + length);
    let number = statement[..start].matches('\n').count() + 1;

    let shown = |text: &str| visible(&text.replace('\t', " "));
    let left: Vec<char> = shown(&statement[start..offset]).chars().collect();
    let right: Vec<char> = shown(statement[offset..end].trim_end()).chars().collect();
    let mut line = format!("LINE {number}: ");
    if left.len() > CONTEXT_CHARS {
        line.push_str("...");
    }
    line.extend(&left[left.len().saturating_sub(CONTEXT_CHARS)..]);
    let column = line.width();
    line.extend(right.iter().take(CONTEXT_CHARS));
    if right.len() > CONTEXT_CHARS {
        line.push_str("...");
    }
    Some(format!("{line}\n{:column$}^", ""))
}

/// Formats notices, one line each.
#[must_use]
pub fn notices(notices: &Value) -> Vec<String> {
    let Some(notices) = notices.as_array() else { return Vec::new() };
    let line = |notice: &Value| {
        if let Some(dropped) = notice.get("dropped") {
            return match dropped.as_u64() {
                Some(1) => "(1 more notice was not kept)".to_owned(),
                _ => format!("({dropped} more notices were not kept)"),
            };
        }
        let text = |key| notice.get(key).and_then(Value::as_str).unwrap_or_default();
        visible(&format!("{}: {}", text("severity"), text("message")))
    };
    notices.iter().map(line).collect()
}

/// Formats one value of a result row.
#[must_use]
pub fn value(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::String(text) => visible(text),
        other => visible(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_caret_is_below_the_error() {
        assert_eq!(caret("SELECT x", 8).as_deref(), Some("LINE 1: SELECT x\n               ^"));
        assert_eq!(
            caret("SELECT 1;\n\tSELECT ü, x FROM t;\r\nSELECT 2", 22).as_deref(),
            Some("LINE 2:  SELECT ü, x FROM t;\n                   ^")
        );
        assert_eq!(
            caret("SELECT '漢字', x", 14).as_deref(),
            Some("LINE 1: SELECT '漢字', x\n                       ^")
        );
        // The position is at the end of the input, or after it.
        assert_eq!(caret("SELECT (", 9).as_deref(), Some("LINE 1: SELECT (\n                ^"));
        assert_eq!(caret("SELECT (", 10), None);
        assert_eq!(caret("SELECT", 0), None);
        assert_eq!(caret("", 1), None);
    }

    #[test]
    fn a_long_line_is_shown_around_the_error() {
        let statement = format!("SELECT {}x{}", "1, ".repeat(1000), ", 1".repeat(1000));
        let shown = caret(&statement, 3008).unwrap();
        let (line, below) = shown.split_once('\n').unwrap();
        assert!(line.len() < 150, "{line}");
        assert_eq!(line.as_bytes()[below.len() - 1], b'x');
    }

    #[test]
    fn each_notice_is_one_line() {
        let kept = json!([{"severity": "NOTICE", "message": "half"}, {"dropped": 7}]);
        assert_eq!(notices(&kept), ["NOTICE: half", "(7 more notices were not kept)"]);
        assert!(notices(&json!({"odd": 1})).is_empty());
    }

    proptest! {
        #[test]
        fn no_position_panics(statement in "(?s).{0,40}", position in 0_u32..50) {
            let _ = caret(&statement, position);
        }
    }
}
