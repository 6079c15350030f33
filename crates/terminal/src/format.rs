//! Formats durations, counts and texts for a terminal.

use jiff::{SignedDuration, SignedDurationRound, Unit};
use serde_json::Value;

use crate::attempt::value;

/// Names of milliseconds, seconds, minutes, hours and days on a terminal.
const SHORT_UNITS: [&str; 5] = ["ms", "s", "m", "h", "d"];

/// Formats a duration in its two largest units: `350ms`, `12s`, `3m 20s`, `2h 5m`, `4d 1h`.
#[must_use]
pub fn span(seconds: f64) -> String {
    span_in(seconds, SHORT_UNITS)
}

/// Like [`span`], with other names of milliseconds, seconds, minutes, hours and days.
#[must_use]
pub fn span_in(seconds: f64, [ms, s, min, h, d]: [&str; 5]) -> String {
    if seconds < 0.9995 {
        return format!("{:.0}{ms}", seconds.max(0.0) * 1000.0);
    }
    if seconds < 10.0 {
        return format!("{seconds:.1}{s}");
    }
    let whole = SignedDuration::try_from_secs_f64(seconds.round()).unwrap_or(SignedDuration::MAX);
    let total = whole.as_secs();
    let (days, hours, minutes, seconds) =
        (total / 86_400, total / 3600 % 24, total / 60 % 60, total % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}{s}"),
        (0, 0, _) => format!("{minutes}{min} {seconds}{s}"),
        (0, _, _) => format!("{hours}{h} {minutes}{min}"),
        _ => format!("{days}{d} {hours}{h}"),
    }
}

/// Formats a duration exactly: to the millisecond below a minute (`5s 20ms`), else to the second
/// (`1m 5s`).
#[must_use]
pub fn exact_span(seconds: f64) -> String {
    let exact = SignedDuration::try_from_secs_f64(seconds).unwrap_or_default();
    let unit = if seconds < 60.0 { Unit::Millisecond } else { Unit::Second };
    let rounded = exact.round(SignedDurationRound::new().smallest(unit)).unwrap_or(exact);
    format!("{rounded:#}")
}

/// Joins the lines of a text into one line, and truncates it to `max_chars` characters.
#[must_use]
pub fn one_line(text: &str, max_chars: usize) -> String {
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if joined.chars().count() <= max_chars {
        return joined;
    }
    let kept: String = joined.chars().take(max_chars.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Formats a count with its noun: `1 task`, `2 tasks`.
#[must_use]
pub fn counted(count: impl TryInto<u64>, thing: &str) -> String {
    let count = count.try_into().unwrap_or(0);
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Formats the detail of an audit entry as `name: value, …`. A value with both an old and a new
/// value becomes `old → new`.
#[must_use]
pub fn audit_detail(detail: &Value) -> String {
    let setting = |it: &Value| if it.is_null() { "not set".to_owned() } else { value(it) };
    let shown = |it: &Value| match (it.get("old"), it.get("new")) {
        (Some(old), Some(new)) => format!("{} → {}", setting(old), setting(new)),
        _ => value(it),
    };
    let Some(fields) = detail.as_object() else { return value(detail) };
    let field = |(name, it): (&String, &Value)| format!("{name}: {}", shown(it));
    fields.iter().map(field).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_at_most_two_units() {
        let shown = [0.0, 0.0123, 0.9999, 9.94, 12.4, 200.0, 7500.0, 350_000.0].map(span);
        assert_eq!(shown, ["0ms", "12ms", "1.0s", "9.9s", "12s", "3m 20s", "2h 5m", "4d 1h"]);
    }

    #[test]
    fn a_statement_becomes_one_line() {
        assert_eq!(one_line("SELECT 1\n  FROM t", 20), "SELECT 1 FROM t");
        assert_eq!(one_line("SELECT 1 FROM täble", 10), "SELECT 1…");
    }

    #[test]
    fn an_audit_detail_shows_the_old_value_if_it_has_one() {
        let detail = serde_json::json!({
            "max_running": { "old": null, "new": 4 }, "weight": { "old": 1, "new": 7 }, "kind": "queue",
        });
        assert_eq!(audit_detail(&detail), "kind: queue, max_running: not set → 4, weight: 1 → 7");
    }
}
