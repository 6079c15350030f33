//! Parser of the filter language: `queue:etl state:failed since:1h sqlstate:40* nightly`.
//!
//! Terms are separated by spaces and joined by AND. `key:value` requires a value; a value with
//! spaces needs double quotes, and inside of them, two double quotes are one. Each key can be given once. Bare numbers are a list of task ids, any
//! other bare word is a part of the name.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo, Timestamp};
use queue::insight::tasks::TaskQuery;
use queue::{Outcome, State};

use crate::error::HttpError;

/// Filter keys with their help texts.
pub(crate) const KEYS: [(&str, &str); 17] = [
    (
        "state",
        "pending, running, scheduled, blocked; outcomes such as failed,timed_out; or finished",
    ),
    ("queue", "name of the queue"),
    ("name", "with * and ?"),
    ("priority", "low, normal, high, critical, reserved"),
    ("group", "name of the group"),
    ("key", "concurrency key"),
    ("run", "id of a run"),
    ("tag", "a tag of the task"),
    ("sql", "a part of the SQL"),
    ("params", "a part of the parameters"),
    ("error", "a part of the error message"),
    ("sqlstate", "of the error, such as 40* or 23505"),
    ("cause", "a cause listed on the Failures screen"),
    ("since", "enqueued or finished within 90s, 15m, 2h, 3d"),
    ("from", "enqueued or finished at this time or later, in UTC: 2026-12-01 or 2026-12-01T14:00"),
    ("to", "enqueued or finished at this time or earlier"),
    ("id", "one or more task ids: 4711,4712"),
];

pub(crate) fn invalid(message: impl Into<String>, hint: impl Into<String>) -> HttpError {
    HttpError::bad_request(message).hint(hint)
}

/// Returns the text of a parameter, trimmed; `None` if it is empty.
pub(crate) fn given(text: &str) -> Option<String> {
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Parses a filter.
pub(crate) fn parse(text: &str) -> Result<TaskQuery, HttpError> {
    let mut query = TaskQuery::default();
    let (mut live, mut keys, mut bare_ids) = (false, HashSet::new(), Vec::new());
    let terms = terms(text)?;
    for term in &terms {
        let Some((key, value)) = term.split_once(':') else {
            match term.parse() {
                Ok(id) => bare_ids.push(id),
                Err(_) => query.names.push(name_pattern(term)),
            }
            continue;
        };
        // A second value would replace the first one, although tasks have to match both.
        let key = if key == "outcome" { "state" } else { key };
        if !keys.insert(key) {
            return Err(given_twice(key));
        }
        if value.is_empty() {
            return Err(invalid(
                format!("{key}: needs a value"),
                format!("write {key}:VALUE without a space"),
            ));
        }
        let value = value.to_owned();
        match key {
            "state" => live |= parse_state(&mut query, &value)?,
            "queue" => query.queue = Some(value),
            "name" => query.names.push(value),
            "priority" => query.priority = Some(parse_value("priority", &value)?),
            "group" => query.group = Some(value),
            "key" => query.key = Some(value),
            "run" => query.run = Some(number("run", &value)?),
            "tag" => query.tag = Some(value),
            "sql" => query.sql = Some(value),
            "params" => query.params = Some(value),
            "error" => query.error = Some(value),
            "sqlstate" => query.sqlstate = Some(value.to_uppercase()),
            "cause" => query.cause = Some(value),
            "since" => query.since = Some(since(&value)?),
            "from" => query.from = Some(instant("from", &value)?),
            "to" => query.to = Some(instant("to", &value)?),
            "id" => query.ids = Some(ids(&value)?),
            other => return Err(unknown(other)),
        }
    }
    if !bare_ids.is_empty() && query.ids.replace(bare_ids).is_some() {
        return Err(given_twice("id"));
    }
    query.finished |= !query.outcomes.is_empty()
        || query.sqlstate.is_some()
        || query.cause.is_some()
        || query.error.is_some();
    if live && query.finished {
        return Err(invalid(
            "a task is either live or finished",
            "leave out state:, or the conditions for finished tasks: an outcome, an SQLSTATE, a cause",
        ));
    }
    Ok(query)
}

/// Parses a filter of the Tasks screen; public for the parser tests.
///
/// # Errors
/// Returns message and hint if the text is not a valid filter.
pub fn parse_public(text: &str) -> Result<TaskQuery, (String, String)> {
    parse(text).map_err(|it| (it.message, it.hint.unwrap_or_default()))
}

/// Returns the term of a filter that requires this value.
pub(crate) fn term(key: &str, value: impl fmt::Display) -> String {
    format!("{key}:\"{}\"", value.to_string().replace('"', "\"\""))
}

/// Splits a filter into terms and removes quotes.
fn terms(text: &str) -> Result<Vec<String>, HttpError> {
    let mut terms = Vec::new();
    let mut term = String::new();
    let (mut quoted, mut any) = (false, false);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.next_if_eq(&'"').is_some() => term.push('"'),
            '"' => (quoted, any) = (!quoted, true),
            c if c.is_whitespace() && !quoted => {
                if any {
                    terms.push(std::mem::take(&mut term));
                }
                any = false;
            }
            c => {
                term.push(c);
                any = true;
            }
        }
    }
    if quoted {
        return Err(invalid("unterminated quote", "put \" at the end of the value"));
    }
    if any {
        terms.push(term);
    }
    Ok(terms.into_iter().filter(|term| !term.is_empty()).collect())
}

/// Returns the pattern of a bare word, which is a part of the name unless it is a pattern itself.
fn name_pattern(word: &str) -> String {
    if word.contains(['*', '?']) { word.to_owned() } else { format!("*{word}*") }
}

fn given_twice(key: &str) -> HttpError {
    let hint = match key {
        "state" => "separate outcomes by commas: state:failed,timed_out",
        "id" => "separate ids by commas: id:4711,4712",
        _ => "a task has to match all terms; leave out one of the two",
    };
    invalid(format!("{key}: is given twice"), hint)
}

/// Parses a state, or one or more outcomes; returns whether the state is a live state.
fn parse_state(query: &mut TaskQuery, value: &str) -> Result<bool, HttpError> {
    if value == "finished" {
        query.finished = true;
    } else if let Ok(state) = State::from_str(value) {
        query.state = Some(state);
        return Ok(true);
    } else if let Some(outcomes) = parse_outcomes(value) {
        query.outcomes = outcomes;
    } else {
        let states = State::ALL.iter().map(|it| it.as_str());
        let all = states.chain(Outcome::ALL.iter().map(|it| it.as_str())).collect::<Vec<_>>();
        return Err(invalid(
            format!("unknown state \"{value}\""),
            format!("one of {}, finished", all.join(", ")),
        ));
    }
    Ok(false)
}

/// Parses outcomes that are separated by commas; `None` if one of them is unknown.
fn parse_outcomes(value: &str) -> Option<Vec<Outcome>> {
    value.split(',').map(|word| Outcome::from_str(&word.replace('-', "_")).ok()).collect()
}

fn parse_value<T: FromStr<Err = String>>(key: &str, value: &str) -> Result<T, HttpError> {
    value.parse().map_err(|error: String| invalid(format!("{key}: {error}"), format!("{key}:WORD")))
}

pub(crate) fn number(key: &str, value: &str) -> Result<i64, HttpError> {
    value.parse().map_err(|_| invalid(format!("\"{value}\" is not a number"), format!("{key}:12")))
}

fn ids(value: &str) -> Result<Vec<i64>, HttpError> {
    value.split(',').filter(|id| !id.is_empty()).map(|id| number("id", id)).collect()
}

/// Parses a duration with the syntax of `pgmill --since`.
pub(crate) fn since(value: &str) -> Result<Duration, HttpError> {
    let wrong = || {
        invalid(
            format!("\"{value}\" is not a duration"),
            "for example since:90s, since:15m, since:2h, since:3d",
        )
    };
    let span: Span = value.parse().map_err(|_| wrong())?;
    let span = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    // Longer than any history, and far below the range limit of timestamps.
    let longest = Duration::from_secs(3650 * 86_400);
    Duration::try_from(span).map(|span| span.min(longest)).map_err(|_| wrong())
}

/// Parses a date or a time. Without an offset it is in UTC, so that a filter means the same to all
/// users.
fn instant(key: &str, value: &str) -> Result<Timestamp, HttpError> {
    let local = |value: &str| value.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    let at = value.parse().ok().or_else(|| local(value).map(|at| at.timestamp()));
    at.ok_or_else(|| {
        let hint = format!("for example {key}:2026-12-01, {key}:2026-12-01T14:00");
        invalid(format!("\"{value}\" is not a time"), hint)
    })
}

/// Parses a date or a time of a form in a time zone, which is UTC if its name is empty; `None` for an
/// empty text.
pub(crate) fn time_in_zone(text: &str, zone: &str) -> Result<Option<Timestamp>, HttpError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let zone = match zone.trim() {
        "" => TimeZone::UTC,
        name => TimeZone::get(name).map_err(|_| {
            invalid(format!("unknown time zone \"{name}\""), "for example Europe/Berlin")
        })?,
    };
    let at = text.parse::<DateTime>().ok().and_then(|it| it.to_zoned(zone).ok());
    at.map(|at| Some(at.timestamp())).ok_or_else(|| {
        invalid(format!("invalid time \"{text}\""), "for example 2026-12-01 or 2026-12-01T14:00")
    })
}

fn unknown(key: &str) -> HttpError {
    let keys: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
    let near = keys.iter().find(|known| known.starts_with(key) || key.starts_with(*known));
    let hint = match near {
        Some(near) => format!("did you mean {near}:?"),
        None => format!("one of {}; write a name with a colon as name:\"…\"", keys.join(", ")),
    };
    invalid(format!("unknown key {key}:"), hint)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use queue::Priority;

    use super::*;

    /// Formats a query as filter text that parses to the same query.
    fn write(query: &TaskQuery) -> String {
        let mut terms = Vec::new();
        let mut add = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                let quote = value.contains(['"', ' ']);
                terms.push(if quote { term(key, value) } else { format!("{key}:{value}") });
            }
        };
        let words: Vec<String> = query.outcomes.iter().map(ToString::to_string).collect();
        let outcomes = Some(words.join(",")).filter(|words| !words.is_empty());
        let finished = query.finished.then(|| "finished".to_owned());
        add("state", query.state.map(|it| it.to_string()).or(outcomes).or(finished));
        add("queue", query.queue.clone());
        add("name", query.names.first().cloned());
        add("priority", query.priority.map(|it| it.to_string()));
        add("group", query.group.clone());
        add("key", query.key.clone());
        add("run", query.run.map(|it| it.to_string()));
        add("tag", query.tag.clone());
        add("sqlstate", query.sqlstate.clone());
        add("sql", query.sql.clone());
        add("error", query.error.clone());
        add("params", query.params.clone());
        add("since", query.since.map(|it| format!("{}s", it.as_secs())));
        let ids = query
            .ids
            .as_ref()
            .map(|ids| ids.iter().map(i64::to_string).collect::<Vec<_>>().join(","));
        add("id", ids);
        terms.join(" ")
    }

    #[test]
    fn a_filter_sets_the_fields_of_the_query() {
        let query =
            parse("queue:etl state:failed since:1h sqlstate:40* priority:high nightly").unwrap();
        assert_eq!(query.queue.as_deref(), Some("etl"));
        assert_eq!((query.outcomes, query.finished), (vec![Outcome::Failed], true));
        assert_eq!(query.since, Some(Duration::from_secs(3600)));
        assert_eq!(query.sqlstate.as_deref(), Some("40*"));
        assert_eq!(query.priority, Some(Priority::High));
        assert_eq!(query.names, ["*nightly*"]);
        let text = parse("sql:\"FROM orders\" error:duplicate").unwrap();
        assert_eq!(text.sql.as_deref(), Some("FROM orders"));
        assert_eq!((text.error.as_deref(), text.finished), (Some("duplicate"), true));
        let period = parse("from:2026-12-01 to:2026-12-01T14:00+01 params:eu").unwrap();
        let texts = [period.from, period.to].map(|at| at.unwrap().to_string());
        assert_eq!(texts, ["2026-12-01T00:00:00Z", "2026-12-01T13:00:00Z"]);
        assert_eq!(period.params.as_deref(), Some("eu"));
        let several = parse("state:failed,timed-out,lost").unwrap();
        assert_eq!(several.outcomes, [Outcome::Failed, Outcome::TimedOut, Outcome::Lost]);
        assert_eq!(parse("  ").unwrap(), TaskQuery::default());
        assert_eq!(parse("id:13,14").unwrap().ids, Some(vec![13, 14]));
        assert_eq!(parse("name:\"a b\"").unwrap().names, ["a b"]);
        for name in ["a \"b\" & c", "\"", "a\"", "\"\" \""] {
            let filter = format!("{} state:pending", term("name", name));
            assert_eq!(parse(&filter).unwrap().names, [name], "{filter}");
        }
    }

    #[test]
    fn no_term_replaces_another_one() {
        let several = parse("nightly 12 name:a* load? 13 \"b c\"").unwrap();
        assert_eq!(several.names, ["*nightly*", "a*", "load?", "*b c*"]);
        assert_eq!(several.ids, Some(vec![12, 13]));
        for (key, _) in KEYS {
            let value = match key {
                "state" => "failed",
                "priority" => "high",
                "since" => "1h",
                "from" | "to" => "2026-12-01",
                _ => "1",
            };
            let twice = parse(&format!("{key}:{value} load {key}:{value}")).unwrap_err();
            assert_eq!(twice.message, format!("{key}: is given twice"));
        }
        for (text, key) in [
            ("queue:a queue:b", "queue"),
            ("state:pending state:blocked", "state"),
            ("state:finished outcome:failed", "state"),
            ("12 id:13,14", "id"),
            ("id:13,14 12", "id"),
        ] {
            assert_eq!(
                parse(text).unwrap_err().message,
                format!("{key}: is given twice"),
                "{text}"
            );
        }
    }

    #[test]
    fn an_error_hints_at_the_correct_filter() {
        for (text, hint) in [
            ("que:etl", "did you mean queue:?"),
            ("state:dead", "one of scheduled"),
            ("state:failed,", "one of scheduled"),
            ("state:failed,pending", "one of scheduled"),
            ("since:soon", "since:15m"),
            ("from:noon", "from:2026-12-01T14:00"),
            ("queue:", "without a space"),
            ("run:x", "run:12"),
            ("name:\"a", "at the end"),
            ("state:pending sqlstate:40*", "leave out state:"),
            ("http://x", "a name with a colon"),
            ("priority:urgent", "priority:WORD"),
        ] {
            let found = parse(text).unwrap_err();
            assert!(found.hint.as_deref().is_some_and(|it| it.contains(hint)), "{text}: {found:?}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "(?s).{0,60}") {
            let _ = parse(&text);
        }

        #[test]
        fn a_formatted_query_parses_to_itself(
            queue in proptest::option::of("[a-z_]{1,8}( [a-z\"]{1,3})?\"?"), state in 0_usize..12, run in proptest::option::of(0_i64..99),
            other in 0_usize..6, seconds in proptest::option::of(1_u64..100_000), ids in proptest::option::of(proptest::collection::vec(1_i64..99, 1..4)),
        ) {
            let live = State::ALL.get(state).copied();
            let outcome = state.checked_sub(4).and_then(|it| Outcome::ALL.get(it)).copied();
            let outcomes = outcome.map(|first| vec![first, Outcome::ALL[other]]).unwrap_or_default();
            let query = TaskQuery {
                finished: outcome.is_some() || state == 10, state: live, outcomes, queue, run,
                since: seconds.map(Duration::from_secs), ids, ..TaskQuery::default()
            };
            prop_assert_eq!(parse(&write(&query)).unwrap(), query);
        }
    }
}
