//! Spans, times and statements as people read them, and the caret below an error.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use queue::{Outcome, State};

use crate::output::{Tone, visible};

/// Characters of a line of SQL to either side of an error.
const CONTEXT_CHARS: usize = 60;

/// The two largest units: `350ms`, `12s`, `3m 20s`, `2h 5m`, `4d 1h`.
pub(crate) fn span(seconds: f64) -> String {
    if seconds < 0.9995 {
        return format!("{:.0}ms", seconds.max(0.0) * 1000.0);
    }
    if seconds < 10.0 {
        return format!("{seconds:.1}s");
    }
    let whole = SignedDuration::try_from_secs_f64(seconds.round()).unwrap_or(SignedDuration::MAX);
    let total = whole.as_secs();
    let (days, hours, minutes, seconds) =
        (total / 86_400, total / 3600 % 24, total / 60 % 60, total % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {seconds}s"),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// On the wall clock of the reader.
pub(crate) fn local(time: Timestamp) -> String {
    time.to_zoned(TimeZone::system()).strftime("%F %T %Z").to_string()
}

/// How long ago, or in how long.
pub(crate) fn distance(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(time).as_secs_f64();
    if seconds < 0.0 { format!("in {}", span(-seconds)) } else { format!("{} ago", span(seconds)) }
}

/// The text on one line, cut at so many characters.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if joined.chars().count() <= most {
        return joined;
    }
    let kept: String = joined.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// `1 task`, `2 tasks`.
pub(crate) fn counted(count: impl TryInto<u64>, thing: &str) -> String {
    let count = count.try_into().unwrap_or(0);
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

pub(crate) fn state_tone(state: State) -> Tone {
    match state {
        State::Running => Tone::Good,
        State::Blocked => Tone::Odd,
        State::Scheduled | State::Pending => Tone::Plain,
    }
}

pub(crate) fn outcome_tone(outcome: Outcome) -> Tone {
    match outcome {
        Outcome::Succeeded => Tone::Good,
        Outcome::Cancelled => Tone::Odd,
        Outcome::Failed | Outcome::TimedOut | Outcome::Lost | Outcome::Unknown => Tone::Bad,
    }
}

/// The line of the statement at which an error stands, and a caret below the place. `position`
/// counts characters from 1.
pub(crate) fn caret(statement: &str, position: u32) -> Option<String> {
    let before = usize::try_from(position).ok()?.checked_sub(1)?;
    let (offset, _) = statement.char_indices().chain([(statement.len(), ' ')]).nth(before)?;
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
    let column = line.chars().count();
    line.extend(right.iter().take(CONTEXT_CHARS));
    if right.len() > CONTEXT_CHARS {
        line.push_str("...");
    }
    Some(format!("{line}\n{:column$}^", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units_at_most() {
        let shown = [0.0, 0.0123, 0.9999, 9.94, 12.4, 200.0, 7500.0, 350_000.0].map(span);
        assert_eq!(shown, ["0ms", "12ms", "1.0s", "9.9s", "12s", "3m 20s", "2h 5m", "4d 1h"]);
    }

    #[test]
    fn the_future_is_told_from_the_past() {
        let now: Timestamp = "2026-12-01T03:00:00Z".parse().unwrap();
        let then: Timestamp = "2026-12-01T02:00:00Z".parse().unwrap();
        assert_eq!(distance(then, now), "1h 0m ago");
        assert_eq!(distance(now, then), "in 1h 0m");
    }

    #[test]
    fn a_statement_becomes_one_line() {
        assert_eq!(one_line("SELECT 1\n  FROM t", 20), "SELECT 1 FROM t");
        assert_eq!(one_line("SELECT 1 FROM täble", 10), "SELECT 1…");
    }

    #[test]
    fn the_caret_stands_below_the_error() {
        assert_eq!(caret("SELECT x", 8).as_deref(), Some("LINE 1: SELECT x\n               ^"));
        assert_eq!(
            caret("SELECT 1;\n\tSELECT ü, x FROM t;\r\nSELECT 2", 22).as_deref(),
            Some("LINE 2:  SELECT ü, x FROM t;\n                   ^")
        );
        assert_eq!(caret("SELECT (", 9).as_deref(), Some("LINE 1: SELECT (\n                ^"));
        assert_eq!((caret("SELECT (", 10), caret("SELECT", 0)), (None, None));
    }
}
