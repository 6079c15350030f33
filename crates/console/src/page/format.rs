//! Formats durations, times, counts and links for templates. Askama passes some values by reference
//! and others by value, so these functions accept both.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use queue::{Outcome, State};

pub(crate) use crate::escape::attribute_value;
use crate::escape::{Markup, escaped};

/// ASCII characters that a query string does not contain as they are.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A `Copy` value or a reference to one, with any number of reference levels.
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

impl ByValue<i64> for usize {
    fn value(&self) -> i64 {
        i64::try_from(*self).unwrap_or(i64::MAX)
    }
}

/// Formats a duration in its two largest units: `350 ms`, `12 s`, `3 min 20 s`, `2 h 5 min`, `4 d 1
/// h`.
pub(crate) fn span(seconds: impl ByValue<f64>) -> String {
    terminal::span_in(seconds.value(), [" ms", " s", " min", " h", " d"])
}

/// Formats a duration; `None` becomes a dash.
pub(crate) fn optional_span(seconds: &Option<f64>) -> String {
    seconds.map_or_else(|| "–".to_owned(), span)
}

/// Formats an integer with thin spaces between groups of thousands. `more` appends a `+`: counting
/// stopped at its limit.
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

/// Rounds a number and formats it as an integer.
pub(crate) fn rounded(number: impl ByValue<f64>) -> String {
    let number = number.value().round();
    #[expect(clippy::cast_possible_truncation, reason = "`as` saturates")]
    count(number as i64, false)
}

/// Formats seconds as whole milliseconds for a form field.
pub(crate) fn milliseconds(seconds: impl ByValue<f64>) -> String {
    format!("{:.0}", seconds.value() * 1000.0)
}

/// Formats a percentage: `40 %`, `0.3 %`.
pub(crate) fn percent(number: impl ByValue<f64>) -> String {
    let text = format!("{:.1}", number.value());
    format!("{} %", text.trim_end_matches(".0"))
}

/// Formats a rate: one decimal below ten, none from ten on.
pub(crate) fn rate(number: impl ByValue<f64>) -> String {
    let number = number.value();
    if number < 9.95 { format!("{number:.1}") } else { rounded(number) }
}

/// Formats a size in bytes: `512 B`, `8 kB`, `1.4 GB`.
pub(crate) fn bytes(number: impl ByValue<i64>) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    #[expect(clippy::cast_precision_loss, reason = "displayed rounded")]
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

/// Like [`span`], but with two decimals below ten milliseconds, as plans report them.
pub(crate) fn exact_span(seconds: impl ByValue<f64>) -> String {
    let seconds = seconds.value();
    if seconds < 0.01 { format!("{:.2} ms", seconds * 1000.0) } else { span(seconds) }
}

/// Formats a count with its noun: `1 task`, `2 tasks`.
pub(crate) fn counted(number: impl ByValue<i64>, thing: &str) -> String {
    let number = number.value();
    format!("{} {thing}{}", count(number, false), if number == 1 { "" } else { "s" })
}

/// Formats a time as a `<time>` element in UTC; `console.js` converts the text to local time. The
/// title has the exact time.
pub(crate) fn time(at: impl ByValue<Timestamp>) -> Markup {
    time_element(at.value(), "", "%F %T UTC")
}

/// Formats a time without its year and seconds, for narrow columns; `console.js` converts the text
/// to local time. The title has the exact time.
pub(crate) fn short_time(at: impl ByValue<Timestamp>) -> Markup {
    time_element(at.value(), " class=\"short\"", "%m-%d %H:%M")
}

fn time_element(at: Timestamp, class: &str, text: &str) -> Markup {
    let utc = at.to_zoned(TimeZone::UTC);
    Markup(format!(
        "<time{class} datetime=\"{}\" title=\"{} UTC\">{}</time>",
        utc.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"),
        utc.strftime("%F %T%.6f"),
        utc.strftime(text),
    ))
}

/// Formats the time elapsed from `at` to `now`.
pub(crate) fn since(at: impl ByValue<Timestamp>, now: impl ByValue<Timestamp>) -> String {
    span(now.value().duration_since(at.value()).as_secs_f64())
}

/// Formats a time relative to `now`: `5 s ago`, `in 5 s`. The title has the exact time.
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

/// Formats a task state as a tag; the style sheet sets its colour.
pub(crate) fn state(state: impl ByValue<State>) -> Markup {
    let state = state.value();
    Markup(format!("<span class=\"tag {state}\">{state}</span>"))
}

/// Formats an outcome as a tag.
pub(crate) fn outcome(outcome: impl ByValue<Outcome>) -> Markup {
    let outcome = outcome.value();
    let text = outcome.as_str().replace('_', " ");
    Markup(format!("<span class=\"tag {outcome}\">{text}</span>"))
}

/// Formats a state of a run or of a task of a run as a tag.
pub(crate) fn tag(state: impl AsRef<str>) -> Markup {
    let state = state.as_ref();
    Markup(format!("<span class=\"tag {}\">{}</span>", state_class(state), escaped(state)))
}

/// Returns the CSS class of a state.
pub(crate) fn state_class(state: &str) -> &'static str {
    match state {
        "running" => "running",
        "succeeded" => "succeeded",
        "failed" => "failed",
        "failed, ignored" | "ignored" => "ignored",
        "cancelled" => "cancelled",
        "upstream_failed" => "upstream_failed",
        "skipped" => "skipped",
        "blocked" | "needs_approval" => "blocked",
        "error" | "overdue" => "error",
        "disabled" | "removed" => "disabled",
        "pending" | "ready" | "released" | "queued or running" | "scheduled" => "pending",
        _ => "waiting",
    }
}

/// Returns the URL of the task list with a filter.
pub(crate) fn tasks_path(base: impl AsRef<str>, filter: impl AsRef<str>) -> String {
    format!("{}/tasks?q={}", base.as_ref(), url_encode(filter.as_ref()))
}

/// Returns the query string of these parameters, without the empty ones.
pub(crate) fn query_string(pairs: &[(&str, &str)]) -> String {
    let given = pairs.iter().filter(|(_, value)| !value.trim().is_empty());
    let query: Vec<String> = given
        .map(|(name, value)| format!("{}={}", url_encode(name), url_encode(value.trim())))
        .collect();
    query.join("&")
}

/// Percent-encodes a value for a query string.
pub(crate) fn url_encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Joins a text into one line and truncates it to `max_chars` characters.
pub(crate) fn one_line(text: impl AsRef<str>, max_chars: usize) -> String {
    terminal::one_line(text.as_ref(), max_chars)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_spans_are_short() {
        assert_eq!(count(1_234_567_i64, false), "1\u{202f}234\u{202f}567");
        assert_eq!(count(10_000_i64, true), "10\u{202f}000+");
        assert_eq!(
            [0.012, 9.94, 200.0, 350_000.0].map(span),
            ["12 ms", "9.9 s", "3 min 20 s", "4 d 1 h"]
        );
    }

    #[test]
    fn sizes_and_shares_are_short() {
        assert_eq!(
            [0_i64, 1023, 8192, 1_503_238_553].map(bytes),
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
    fn filter_values_are_percent_encoded() {
        assert_eq!(tasks_path("", "name:\"a b&c\""), "/tasks?q=name%3A%22a%20b%26c%22");
    }

    #[test]
    fn a_query_string_has_only_parameters_with_a_value() {
        let pairs = [("q", " a&b "), ("sort", " "), ("after", ""), ("zone", "Europe/Berlin")];
        assert_eq!(query_string(&pairs), "q=a%26b&zone=Europe%2FBerlin");
    }
}
