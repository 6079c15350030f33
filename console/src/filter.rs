//! The filter language: `queue:etl state:failed since:1h sqlstate:40* nightly`.
//!
//! Words are apart by spaces and joined by AND. `key:value` asks for a value, in double quotes if it
//! has spaces; a bare number is an id, another bare word part of a name.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use queue::insight::tasks::TaskQuery;
use queue::{Outcome, State};

/// What may be asked for, as help shows it.
pub(crate) const KEYS: [(&str, &str); 11] = [
    ("state", "pending, running, scheduled, blocked; failed, succeeded, … or ended"),
    ("queue", "its name"),
    ("name", "with * and ?"),
    ("priority", "low, normal, high, critical, reserved"),
    ("group", "its name"),
    ("key", "concurrency key"),
    ("run", "number of a run"),
    ("sqlstate", "of the error, as 40* or 23505"),
    ("cause", "a line of the screen Failures"),
    ("since", "enqueued or ended within 90s, 15m, 2h, 3d"),
    ("id", "one or several: 4711,4712"),
];

/// What is wrong with a filter, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilterError {
    pub(crate) message: String,
    pub(crate) hint: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

fn invalid(message: impl Into<String>, hint: impl Into<String>) -> FilterError {
    FilterError { message: message.into(), hint: hint.into() }
}

/// Reads a filter.
pub(crate) fn parse(text: &str) -> Result<TaskQuery, FilterError> {
    let mut query = TaskQuery::default();
    let mut live = false;
    for term in terms(text)? {
        let Some((key, value)) = term.split_once(':') else {
            bare(&mut query, &term);
            continue;
        };
        if value.is_empty() {
            return Err(invalid(
                format!("{key}: has no value"),
                format!("write {key}:something, without a space"),
            ));
        }
        let value = value.to_owned();
        match key {
            "state" | "outcome" => live |= parse_state(&mut query, &value)?,
            "queue" => query.queue = Some(value),
            "name" => query.name = Some(value),
            "priority" => query.priority = Some(parse_value("priority", &value)?),
            "group" => query.group = Some(value),
            "key" => query.key = Some(value),
            "run" => query.run = Some(number("run", &value)?),
            "sqlstate" => query.sqlstate = Some(value.to_uppercase()),
            "cause" => query.cause = Some(value),
            "since" => query.since = Some(since(&value)?),
            "id" => query.ids = Some(ids(&value)?),
            other => return Err(unknown(other)),
        }
    }
    query.ended |= query.outcome.is_some() || query.sqlstate.is_some() || query.cause.is_some();
    if live && query.ended {
        return Err(invalid(
            "a task is either live or has ended",
            "leave out state:, or what only ended tasks have: an outcome, an SQLSTATE, a cause",
        ));
    }
    Ok(query)
}

/// The filter of Tasks, or what is wrong with it and what to do about it: for the tests of parsers.
///
/// # Errors
/// It is none.
pub fn parse_public(text: &str) -> Result<TaskQuery, (String, String)> {
    parse(text).map_err(|it| (it.message, it.hint))
}

/// Words, with quotes taken off.
fn terms(text: &str) -> Result<Vec<String>, FilterError> {
    let mut terms = Vec::new();
    let mut term = String::new();
    let (mut quoted, mut any) = (false, false);
    for character in text.chars() {
        match character {
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
        return Err(invalid("a quote is not closed", "put \" at the end of the value"));
    }
    if any {
        terms.push(term);
    }
    Ok(terms.into_iter().filter(|term| !term.is_empty()).collect())
}

/// A number is an id, anything else a part of the name.
fn bare(query: &mut TaskQuery, term: &str) {
    match term.parse::<i64>() {
        Ok(id) => query.ids.get_or_insert_default().push(id),
        Err(_) if term.contains(['*', '?']) => query.name = Some(term.to_owned()),
        Err(_) => query.name = Some(format!("*{term}*")),
    }
}

/// Whether it asks for a live state.
fn parse_state(query: &mut TaskQuery, value: &str) -> Result<bool, FilterError> {
    if value == "ended" || value == "finished" {
        query.ended = true;
    } else if let Ok(state) = State::from_str(value) {
        query.state = Some(state);
        return Ok(true);
    } else if let Ok(outcome) = Outcome::from_str(&value.replace('-', "_")) {
        query.outcome = Some(outcome);
    } else {
        let states = State::ALL.iter().map(|it| it.as_str());
        let all = states.chain(Outcome::ALL.iter().map(|it| it.as_str())).collect::<Vec<_>>();
        return Err(invalid(
            format!("there is no state \"{value}\""),
            format!("one of {}, ended", all.join(", ")),
        ));
    }
    Ok(false)
}

fn parse_value<T: FromStr<Err = String>>(key: &str, value: &str) -> Result<T, FilterError> {
    value.parse().map_err(|error: String| invalid(format!("{key}: {error}"), format!("{key}:WORD")))
}

pub(crate) fn number(key: &str, value: &str) -> Result<i64, FilterError> {
    value.parse().map_err(|_| invalid(format!("\"{value}\" is no number"), format!("{key}:12")))
}

fn ids(value: &str) -> Result<Vec<i64>, FilterError> {
    value.split(',').filter(|id| !id.is_empty()).map(|id| number("id", id)).collect()
}

/// A span as `pgmill --since` takes it.
pub(crate) fn since(value: &str) -> Result<Duration, FilterError> {
    let wrong = || {
        invalid(
            format!("\"{value}\" is no span of time"),
            "as in since:90s, since:15m, since:2h, since:3d",
        )
    };
    let span: Span = value.parse().map_err(|_| wrong())?;
    let span = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    // Further back than any history, and far from what the clock cannot hold.
    let longest = Duration::from_secs(3650 * 86_400);
    Duration::try_from(span).map(|span| span.min(longest)).map_err(|_| wrong())
}

fn unknown(key: &str) -> FilterError {
    let keys: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
    let near = keys.iter().find(|known| known.starts_with(key) || key.starts_with(*known));
    let hint = match near {
        Some(near) => format!("did you mean {near}:?"),
        None => format!("one of {}; a name with a colon goes in as name:\"…\"", keys.join(", ")),
    };
    invalid(format!("nothing is called {key}:"), hint)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use queue::Priority;

    use super::*;

    /// The filter as text, so that it reads back as the same.
    fn write(query: &TaskQuery) -> String {
        let mut terms = Vec::new();
        let mut add = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                let quote = value.contains(char::is_whitespace);
                terms.push(if quote {
                    format!("{key}:\"{value}\"")
                } else {
                    format!("{key}:{value}")
                });
            }
        };
        let ended = (query.ended && query.outcome.is_none()).then(|| "ended".to_owned());
        let standing =
            query.state.map(|it| it.to_string()).or(query.outcome.map(|it| it.to_string()));
        add("state", standing.or(ended));
        add("queue", query.queue.clone());
        add("name", query.name.clone());
        add("priority", query.priority.map(|it| it.to_string()));
        add("group", query.group.clone());
        add("key", query.key.clone());
        add("run", query.run.map(|it| it.to_string()));
        add("sqlstate", query.sqlstate.clone());
        add("since", query.since.map(|it| format!("{}s", it.as_secs())));
        let ids = query
            .ids
            .as_ref()
            .map(|ids| ids.iter().map(i64::to_string).collect::<Vec<_>>().join(","));
        add("id", ids);
        terms.join(" ")
    }

    #[test]
    fn a_filter_says_what_is_asked_for() {
        let query =
            parse("queue:etl state:failed since:1h sqlstate:40* priority:high nightly").unwrap();
        assert_eq!(query.queue.as_deref(), Some("etl"));
        assert_eq!((query.outcome, query.ended), (Some(Outcome::Failed), true));
        assert_eq!(query.since, Some(Duration::from_secs(3600)));
        assert_eq!(query.sqlstate.as_deref(), Some("40*"));
        assert_eq!(query.priority, Some(Priority::High));
        assert_eq!(query.name.as_deref(), Some("*nightly*"));
        assert_eq!(parse("  ").unwrap(), TaskQuery::default());
        assert_eq!(parse("12 id:13,14").unwrap().ids, Some(vec![13, 14]));
        assert_eq!(parse("name:\"a b\"").unwrap().name.as_deref(), Some("a b"));
    }

    #[test]
    fn a_mistake_says_what_would_be_right() {
        for (text, hint) in [
            ("que:etl", "did you mean queue:?"),
            ("state:dead", "one of scheduled"),
            ("since:soon", "since:15m"),
            ("queue:", "without a space"),
            ("run:x", "run:12"),
            ("name:\"a", "at the end"),
            ("state:pending sqlstate:40*", "leave out state:"),
            ("http://x", "a name with a colon"),
            ("priority:urgent", "priority:WORD"),
        ] {
            let found = parse(text).unwrap_err();
            assert!(found.hint.contains(hint), "{text}: {found:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(?s).{0,60}") {
            let _ = parse(&text);
        }

        #[test]
        fn what_is_written_reads_back(
            queue in proptest::option::of("[a-z_]{1,8}( [a-z]{1,3})?"), state in 0_usize..12, run in proptest::option::of(0_i64..99),
            seconds in proptest::option::of(1_u64..100_000), ids in proptest::option::of(proptest::collection::vec(1_i64..99, 1..4)),
        ) {
            let live = State::ALL.get(state).copied();
            let outcome = state.checked_sub(4).and_then(|it| Outcome::ALL.get(it)).copied();
            let query = TaskQuery {
                ended: outcome.is_some() || state == 10, state: live, outcome, queue, run,
                since: seconds.map(Duration::from_secs), ids, ..TaskQuery::default()
            };
            prop_assert_eq!(parse(&write(&query)).unwrap(), query);
        }
    }
}
