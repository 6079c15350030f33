//! Triggers: schedules that fire because of rows. They fire on the number of rows, on the age of
//! the oldest row, or on new rows. The rows are those of a table, or the result of a probe, which
//! is a query that the schedule contains.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::error::ValidationError;
use crate::timing::arguments::{self, DAY_SECS};
use crate::timing::call::{Call, quoted};
use crate::timing::duration;

const NAMES: &[&str] = &[
    "table", "filter", "age", "probe", "rows", "idle", "new_rows", "debounce", "every", "timeout",
    "key",
];

const DEBOUNCE: Duration = Duration::from_secs(60);
const EVERY: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(5);
const PROBE_INTERVALS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(DAY_SECS);
const PROBE_TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(300);
const MAX_DURATION: Duration = Duration::from_secs(10_000 * DAY_SECS);
const MAX_ROWS: u64 = 1_000_000_000_000;

/// The rows that a schedule checks, and the conditions on which it fires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    pub(crate) source: Source,
    pub(crate) rows: Option<u64>,
    pub(crate) idle: Option<Duration>,
    /// Minimum time between two fires on new rows; `None` if the schedule does not fire on new
    /// rows.
    pub(crate) new_rows: Option<Duration>,
    every: Duration,
    timeout: Duration,
    pub(crate) key: Option<String>,
}

/// Source of the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A table: its name in one or two parts, a condition, and the column that has the arrival time
    /// of a row.
    Table {
        name: Vec<String>,
        filter: Option<String>,
        age: Option<String>,
    },
    Probe(String),
}

impl Trigger {
    /// Returns the interval between two checks.
    #[must_use]
    pub fn every(&self) -> Duration {
        self.every
    }

    /// Returns the timeout of a check.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn read(call: &Call) -> Result<Self, ValidationError> {
        call.only(NAMES)?;
        call.no_positional()?;
        let source = source(call)?;
        let rows = call.number("rows", 1..=MAX_ROWS)?;
        let idle = call.length("idle", Duration::ZERO..=MAX_DURATION)?;
        let new_rows = call.boolean("new_rows")?.unwrap_or(false);
        if rows.is_none() && idle.is_none() && !new_rows {
            let message = "trigger needs a condition";
            return Err(ValidationError::new(call.at, message).hint("add rows, idle or new_rows"));
        }
        if let (Some(arg), Source::Table { age: None, .. }) = (call.named("idle"), &source) {
            return Err(ValidationError::new(arg.at, "idle requires age")
                .hint("set age to the column that holds the time at which a row arrived"));
        }
        let debounce = call.length("debounce", Duration::ZERO..=MAX_DURATION)?;
        if let (Some(arg), false) = (call.named("debounce"), new_rows) {
            return Err(ValidationError::new(arg.at, "debounce requires new_rows")
                .hint("write new_rows: true, debounce: 60 s, or remove debounce"));
        }
        Ok(Self {
            source,
            rows,
            idle,
            new_rows: new_rows.then(|| debounce.unwrap_or(DEBOUNCE)),
            every: call.length("every", PROBE_INTERVALS)?.unwrap_or(EVERY),
            timeout: call.length("timeout", PROBE_TIMEOUTS)?.unwrap_or(TIMEOUT),
            key: arguments::key(call)?,
        })
    }

    /// Returns the trigger in the format of the schema. Its keys are either `table` (parts of the
    /// name), `filter` and `age`, or `probe`; then `rows`, `idle_secs`, `new_rows` and
    /// `debounce_secs`, each if it is set; and `every_secs` and `timeout_secs`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut json = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                json.insert(name.to_owned(), value);
            }
        };
        let seconds = |span: Duration| Value::from(span.as_secs_f64());
        match &self.source {
            Source::Table { name, filter, age } => {
                put("table", Some(json!(name)));
                put("filter", filter.clone().map(Value::from));
                put("age", age.clone().map(Value::from));
            }
            Source::Probe(query) => put("probe", Some(Value::from(query.as_str()))),
        }
        put("rows", self.rows.map(Value::from));
        put("idle_secs", self.idle.map(seconds));
        put("new_rows", self.new_rows.map(|_| Value::from(true)));
        put("debounce_secs", self.new_rows.map(seconds));
        put("every_secs", Some(seconds(self.every)));
        put("timeout_secs", Some(seconds(self.timeout)));
        Value::Object(json)
    }
}

fn source(call: &Call) -> Result<Source, ValidationError> {
    let text = |name: &str| match call.named(name) {
        Some(arg) if arg.value.trim().is_empty() => {
            Err(ValidationError::new(arg.at, format!("{name} is empty")))
        }
        arg => Ok(arg),
    };
    match (text("table")?, text("probe")?) {
        (Some(table), None) => {
            let name = name_parts(&table.value).filter(|parts| parts.len() <= 2);
            let name = name.ok_or_else(|| {
                ValidationError::new(table.at, "invalid table name")
                    .hint("write schema.name or name")
            })?;
            let age = text("age")?.map(|arg| match name_parts(&arg.value).as_deref() {
                Some([column]) => Ok(column.clone()),
                _ => Err(ValidationError::new(arg.at, "invalid column name")),
            });
            let filter = text("filter")?.map(|arg| arg.value.clone());
            Ok(Source::Table { name, filter, age: age.transpose()? })
        }
        (None, Some(probe)) => match call.named("filter").or(call.named("age")) {
            None => Ok(Source::Probe(probe.value.clone())),
            Some(arg) => {
                Err(ValidationError::new(arg.at, "filter and age require table instead of probe"))
            }
        },
        (Some(_), Some(probe)) => {
            Err(ValidationError::new(probe.at, "table and probe cannot be combined"))
        }
        (None, None) => Err(ValidationError::new(call.at, "trigger needs a table or a probe")
            .hint("such as trigger(table: staging.orders, rows: 500)")),
    }
}

/// Splits a dotted name into its parts. A part in double quotes may contain any character, with
/// `""` for one quote. Returns `None` if the text is not a name.
fn name_parts(text: &str) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    let mut left = text.trim();
    loop {
        let (part, rest) = match left.strip_prefix('"') {
            Some(inner) => quoted_part(inner)?,
            None => {
                let end = left.find('.').unwrap_or(left.len());
                (left[..end].trim().to_owned(), &left[end..])
            }
        };
        if part.is_empty() {
            return None;
        }
        parts.push(part);
        let rest = rest.trim_start();
        if rest.is_empty() {
            return Some(parts);
        }
        left = rest.strip_prefix('.')?.trim_start();
    }
}

/// Returns the part up to its closing quote, and the rest of the text.
fn quoted_part(text: &str) -> Option<(String, &str)> {
    let mut part = String::new();
    let mut left = text;
    loop {
        let end = left.find('"')?;
        part.push_str(&left[..end]);
        left = &left[end + 1..];
        match left.strip_prefix('"') {
            Some(rest) => {
                part.push('"');
                left = rest;
            }
            None => return Some((part, left)),
        }
    }
}

/// Returns the name in a form that parses as the same parts.
fn name_text(parts: &[String]) -> String {
    let part = |part: &String| {
        let bare = !part.contains('.') && !part.starts_with('"') && part.trim() == part;
        if bare { part.clone() } else { format!("\"{}\"", part.replace('"', "\"\"")) }
    };
    parts.iter().map(part).collect::<Vec<_>>().join(".")
}

/// Prints the canonical text, which parses as an equal trigger.
impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut args = Vec::new();
        let mut put = |name: &str, value: Option<String>| {
            args.extend(value.map(|value| format!("{name}: {}", quoted(&value))));
        };
        match &self.source {
            Source::Table { name, filter, age } => {
                put("table", Some(name_text(name)));
                put("filter", filter.clone());
                put("age", age.as_ref().map(|age| name_text(std::slice::from_ref(age))));
            }
            Source::Probe(query) => put("probe", Some(query.clone())),
        }
        let other =
            |span: Duration, usual: Duration| (span != usual).then(|| duration::format(span));
        put("rows", self.rows.map(|rows| rows.to_string()));
        put("idle", self.idle.map(duration::format));
        put("new_rows", self.new_rows.map(|_| "true".to_owned()));
        put("debounce", self.new_rows.and_then(|debounce| other(debounce, DEBOUNCE)));
        put("every", other(self.every, EVERY));
        put("timeout", other(self.timeout, TIMEOUT));
        put("key", self.key.clone());
        write!(f, "trigger({})", args.join(", "))
    }
}

#[cfg(test)]
mod tests;
