//! Spans, times and statements as people read them.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use queue::{Outcome, State};

use crate::output::Tone;

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
}
