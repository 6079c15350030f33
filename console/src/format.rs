//! Spans, times, counts and links as people read them. Templates pass some values by reference and
//! others not, so that these functions take either.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use queue::{Outcome, State};
use std::fmt::Write;

pub(crate) use crate::layout::attribute_value;
use crate::layout::{Markup, escaped};

/// A small value, or any number of references to it.
pub(crate) trait ByValue<T> {
    fn value(&self) -> T;
}

macro_rules! impl_by_value {
    ($($kind:ty),+) => { $(
        impl ByValue<$kind> for $kind {
            fn value(&self) -> $kind {
                *self
            }
        }

        impl<O: ByValue<$kind>> ByValue<$kind> for &O {
            fn value(&self) -> $kind {
                (**self).value()
            }
        }
    )+ };
}

impl_by_value!(bool, f64, i64, Outcome, State, Timestamp);

/// The two largest units: `350 ms`, `12 s`, `3 min 20 s`, `2 h 5 min`, `4 d 1 h`.
pub(crate) fn span(seconds: impl ByValue<f64>) -> String {
    let seconds = seconds.value();
    if seconds < 0.9995 {
        return format!("{:.0} ms", seconds.max(0.0) * 1000.0);
    }
    if seconds < 10.0 {
        return format!("{seconds:.1} s");
    }
    let whole = SignedDuration::try_from_secs_f64(seconds.round()).unwrap_or(SignedDuration::MAX);
    let total = whole.as_secs();
    let (days, hours, minutes, seconds) =
        (total / 86_400, total / 3600 % 24, total / 60 % 60, total % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {seconds} s"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// The same, or a dash.
pub(crate) fn optional_span(seconds: &Option<f64>) -> String {
    seconds.map_or_else(|| "–".to_owned(), span)
}

/// A number with its thousands apart; `more`: there are more than were counted.
pub(crate) fn count(number: impl ByValue<i64>, more: impl ByValue<bool>) -> String {
    let (number, more) = (number.value(), more.value());
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    format!("{}{text}{}", if number < 0 { "−" } else { "" }, if more { "+" } else { "" })
}

/// A number that need not be whole, as a whole one.
pub(crate) fn rounded(number: impl ByValue<f64>) -> String {
    let number = number.value().round();
    #[expect(clippy::cast_possible_truncation, reason = "`as` goes to the nearest there is")]
    count(number as i64, false)
}

/// As a field of a form takes them.
pub(crate) fn milliseconds(seconds: impl ByValue<f64>) -> String {
    format!("{:.0}", seconds.value() * 1000.0)
}

/// `40 %`, `0.3 %`.
pub(crate) fn percent(number: impl ByValue<f64>) -> String {
    let text = format!("{:.1}", number.value());
    format!("{} %", text.trim_end_matches(".0"))
}

/// A rate: whole from ten on, else with one digit.
pub(crate) fn rate(number: impl ByValue<f64>) -> String {
    let number = number.value();
    if number < 9.95 { format!("{number:.1}") } else { rounded(number) }
}

/// `512 B`, `8 kB`, `1.4 GB`.
pub(crate) fn bytes(number: impl ByValue<i64>) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    #[expect(clippy::cast_precision_loss, reason = "a size for people")]
    let mut size = number.value() as f64;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"B");
    while let (true, Some(next)) = (size >= 1024.0, units.next()) {
        (size, unit) = (size / 1024.0, next);
    }
    if size < 10.0 && *unit != "B" {
        format!("{size:.1} {unit}")
    } else {
        format!("{size:.0} {unit}")
    }
}

/// As [`span`], and below ten milliseconds with what a plan tells.
pub(crate) fn exact_span(seconds: impl ByValue<f64>) -> String {
    let seconds = seconds.value();
    if seconds < 0.01 { format!("{:.2} ms", seconds * 1000.0) } else { span(seconds) }
}

/// `1 task`, `2 tasks`.
pub(crate) fn counted(number: impl ByValue<i64>, thing: &str) -> String {
    let number = number.value();
    format!("{} {thing}{}", count(number, false), if number == 1 { "" } else { "s" })
}

/// A time: UTC for who has no script, which puts it on the wall clock of the reader. The exact
/// instant is the title.
pub(crate) fn time(at: impl ByValue<Timestamp>) -> Markup {
    let utc = at.value().to_zoned(TimeZone::UTC);
    Markup(format!(
        "<time datetime=\"{}\" title=\"{} UTC\">{} UTC</time>",
        utc.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"),
        utc.strftime("%F %T%.6f"),
        utc.strftime("%F %T"),
    ))
}

/// How long it has gone on.
pub(crate) fn since(at: impl ByValue<Timestamp>, now: impl ByValue<Timestamp>) -> String {
    span(now.value().duration_since(at.value()).as_secs_f64())
}

/// How long ago, or in how long; the instant is the title.
pub(crate) fn ago(at: impl ByValue<Timestamp>, now: impl ByValue<Timestamp>) -> Markup {
    let (at, now) = (at.value(), now.value());
    let seconds = now.duration_since(at).as_secs_f64();
    let text = if seconds < 0.0 {
        format!("in {}", span(-seconds))
    } else {
        format!("{} ago", span(seconds))
    };
    let utc = at.to_zoned(TimeZone::UTC);
    Markup(format!("<span class=\"ago\" title=\"{} UTC\">{text}</span>", utc.strftime("%F %T%.3f")))
}

/// A state as a word; its colour comes from the style sheet.
pub(crate) fn state(state: impl ByValue<State>) -> Markup {
    let state = state.value();
    Markup(format!("<span class=\"tag {state}\">{state}</span>"))
}

/// An outcome as a word.
pub(crate) fn outcome(outcome: impl ByValue<Outcome>) -> Markup {
    let outcome = outcome.value();
    let text = outcome.as_str().replace('_', " ");
    Markup(format!("<span class=\"tag {outcome}\">{text}</span>"))
}

/// A state of a run or of a task of one, as a word.
pub(crate) fn tag(state: impl AsRef<str>) -> Markup {
    let state = state.as_ref();
    Markup(format!("<span class=\"tag {}\">{}</span>", state_class(state), escaped(state)))
}

/// What the style sheet calls it.
pub(crate) fn state_class(state: &str) -> &'static str {
    match state {
        "running" => "running",
        "succeeded" => "succeeded",
        "failed" => "failed",
        "failed, ignored" | "ignored" => "ignored",
        "cancelled" => "cancelled",
        "upstream_failed" => "upstream_failed",
        "blocked" => "blocked",
        "error" => "error",
        "disabled" | "removed" => "disabled",
        "pending" | "ready" | "released" | "scheduled" => "pending",
        _ => "waiting",
    }
}

/// The address of the list of tasks with this filter.
pub(crate) fn tasks_path(base: impl AsRef<str>, filter: impl AsRef<str>) -> String {
    format!("{}/tasks?q={}", base.as_ref(), url_encode(filter.as_ref()))
}

/// A value of a query string.
pub(crate) fn url_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The text on one line, cut at so many characters.
pub(crate) fn one_line(text: impl AsRef<str>, max_chars: usize) -> String {
    let text = text.as_ref();
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if joined.chars().count() <= max_chars {
        return joined;
    }
    let kept: String = joined.chars().take(max_chars.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_spans_are_short() {
        assert_eq!(count(1_234_567, false), "1\u{202f}234\u{202f}567");
        assert_eq!(count(10_000, true), "10\u{202f}000+");
        assert_eq!(
            [0.012, 9.94, 200.0, 350_000.0].map(span),
            ["12 ms", "9.9 s", "3 min 20 s", "4 d 1 h"]
        );
    }

    #[test]
    fn sizes_and_shares_are_short() {
        assert_eq!(
            [0, 1023, 8192, 1_503_238_553].map(bytes),
            ["0 B", "1023 B", "8.0 kB", "1.4 GB"]
        );
        assert_eq!([40.0, 40.5, 0.04].map(percent), ["40 %", "40.5 %", "0 %"]);
        assert_eq!([0.4, 9.94, 9.96, 1200.4].map(rate), ["0.4", "9.9", "10", "1\u{202f}200"]);
        assert_eq!(
            (rounded(1999.6), exact_span(0.00123)),
            ("2\u{202f}000".to_owned(), "1.23 ms".to_owned())
        );
    }

    #[test]
    fn nothing_foreign_ends_an_address() {
        assert_eq!(tasks_path("", "name:\"a b&c\""), "/tasks?q=name%3A%22a%20b%26c%22");
    }
}
