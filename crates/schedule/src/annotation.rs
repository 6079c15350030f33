//! Schedule annotations in the comment of a procedure or function.
//!
//! A comment may contain, anywhere in its text, calls with a leading `@`: any number of timings,
//! such as `@daily(03:15)`, and the calls `@retry(…)`, `@job(…)`, `@task(…)`, `@fire(…)`, `@tags(…)`,
//! `@expected(…)`, `@deadline(…)` and `@run_timeout(…)`, each at most once. An `@` within a word, or before a word without a parenthesis, is
//! plain text, as in `me@example.org` or `@param x`.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::{ValidationError, nearest};
use crate::timing::Timing;
use crate::timing::arguments::DAY_SECS;
use crate::timing::call::{self, Call};
use crate::timing::duration;

/// The annotations of a comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// The timings, in order. No two of them have the same key.
    pub timings: Vec<Timing>,
    /// The title: `@job(Cleanup)`.
    pub title: Option<String>,
    /// Keys of the definition of a schedule, from `@job`, `@fire`, `@tags`, `@expected`, `@deadline`
    /// and `@run_timeout`.
    pub settings: Map<String, Value>,
    /// Options of the statement, from `@retry` and `@task`, as in the definition of a schedule.
    pub task: Map<String, Value>,
    /// If there is a timing: the text outside the annotations, on one line.
    pub text: String,
    /// Errors, in order. Their positions are in characters of the comment.
    pub errors: Vec<ValidationError>,
    /// Whether one of the errors is in a setting shared by all timings.
    pub shared_error: bool,
}

/// How an argument of an annotation is read, for a definition.
type Read = fn(&Call, &str) -> Result<Option<Value>, ValidationError>;

const LABEL: Read = |call, name| json(call.label(name));
const BOOLEAN: Read = |call, name| json(call.boolean(name));
const UP_TO_A_YEAR: Read = |call, name| length(call, name, Duration::ZERO, 365);

/// `@retry(max_attempts: 3, interval: 60s, backoff: exponential, jitter: true)`.
const RETRY: &[(&str, Read)] = &[
    ("max_attempts", |call, _| json(max_attempts(call))),
    ("interval", UP_TO_A_YEAR),
    ("backoff", |call, name| json(call.one_of(name, &["fixed", "exponential"]))),
    ("jitter", BOOLEAN),
];

/// `@task(queue: etl, priority: high, …)`.
const TASK: &[(&str, Read)] = &[
    ("queue", LABEL),
    ("priority", |call, name| json(call.one_of(name, PRIORITIES))),
    ("group", LABEL),
    ("concurrency_key", LABEL),
    ("timeout", |call, name| length(call, name, Duration::from_millis(1), 365)),
    ("mode", |call, name| json(call.one_of(name, &["transaction", "autocommit"]))),
    ("isolation", |call, name| json(call.one_of(name, ISOLATIONS))),
    ("at_most_once", BOOLEAN),
    ("external", BOOLEAN),
    ("store_params", BOOLEAN),
    ("store_output", BOOLEAN),
];

const PRIORITIES: &[&str] = &["low", "normal", "high", "critical", "reserved"];
const ISOLATIONS: &[&str] = &["read_committed", "repeatable_read", "serializable"];

/// `@fire(overlap: queue, catch_up: 2, max_lateness: 1h, jitter: 30s)`.
const FIRE: &[(&str, Read)] = &[
    ("overlap", |call, name| json(call.one_of(name, &["skip", "queue", "allow"]))),
    ("catch_up", |call, name| json(call.number(name, 0..=1_000))),
    ("max_lateness", UP_TO_A_YEAR),
    ("jitter", |call, name| length(call, name, Duration::ZERO, 1)),
];

/// Annotations that apply to all timings of a comment.
const SHARED: &[&str] =
    &["retry", "job", "task", "fire", "tags", "expected", "deadline", "run_timeout"];

/// Number of errors after which the rest of a comment is not parsed. A comment with so many errors
/// is not meant to contain schedules, and each error costs the parsing of a call that may be long.
const MAX_ERRORS: usize = 100;

/// Parses a comment. An error in one timing does not affect the other timings, unless there are too
/// many errors.
#[must_use]
pub fn read(comment: &str) -> Annotations {
    let chars: Vec<char> = comment.chars().collect();
    let mut found = Annotations::default();
    let mut seen = Vec::new();
    let mut keys = HashSet::new();
    let mut text = String::new();
    let mut at = 0;
    while let Some((begins_at, word)) = next_word(&chars, at) {
        if found.errors.len() == MAX_ERRORS {
            let message = "too many errors; the rest of the comment is ignored";
            found.errors.push(ValidationError::new(begins_at, message));
            // The rest of the comment may contain shared settings.
            found.shared_error = true;
            break;
        }
        text.extend(&chars[at..begins_at - 1]);
        text.push(' ');
        // After an unclosed parenthesis, the text may contain further annotations.
        at = begins_at + word.len();
        let read = call::read_at(&chars, begins_at).and_then(|(call, end)| {
            at = end;
            found.take(&call, &mut seen, &mut keys)
        });
        if let Err(problem) = read {
            let meant = nearest(&word, &words()).unwrap_or_default();
            found.shared_error |= SHARED.contains(&meant);
            found.errors.push(problem);
        }
    }
    text.extend(&chars[at..]);
    if !found.timings.is_empty() {
        found.text = one_line(&text);
    }
    found.report_words_without_arguments(&chars);
    found.validate_together(&seen);
    found.errors.sort_by_key(|problem| problem.at);
    found
}

/// Returns the line and the column of a character, both from 1.
#[must_use]
pub fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.chars().take(at);
    before.fold(
        (1, 1),
        |(line, column), c| if c == '\n' { (line + 1, 1) } else { (line, column + 1) },
    )
}

/// Maximum length of the text of a comment that is kept, in characters.
const MAX_TEXT: usize = 1000;

fn one_line(text: &str) -> String {
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match joined.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &joined[..end]),
        None => joined,
    }
}

fn words() -> Vec<&'static str> {
    [SHARED, &Timing::words()].concat()
}

/// Returns the position of the next word that stands between `@` and `(`, and the word.
fn next_word(chars: &[char], from: usize) -> Option<(usize, String)> {
    (from..chars.len()).find_map(|at| {
        let word = (chars[at] == '@').then(|| word_at(chars, at)).flatten()?;
        (chars.get(at + 1 + word.len()) == Some(&'(')).then_some((at + 1, word))
    })
}

/// Returns the word that begins at this position behind `@`, and whether it may be an annotation.
fn word_at(chars: &[char], at: usize) -> Option<String> {
    let free = at == 0 || chars[at - 1].is_whitespace() || chars[at - 1] == '(';
    let rest = &chars[at + 1..];
    let word: String = rest.iter().take_while(|c| c.is_ascii_alphabetic() || **c == '_').collect();
    (free && word.starts_with(|c: char| c.is_ascii_alphabetic())).then_some(word)
}

impl Annotations {
    /// Reports the names of timings that are not followed by a parenthesis. If the comment has
    /// timings, reports the names of shared settings as well; otherwise these words are prose.
    fn report_words_without_arguments(&mut self, chars: &[char]) {
        for at in (0..chars.len()).filter(|at| chars[*at] == '@') {
            let Some(word) = word_at(chars, at) else { continue };
            let after = chars.get(at + 1 + word.len());
            let continues = after.is_some_and(|c| *c == '(' || c.is_alphanumeric() || *c == '@');
            let timing = Timing::words().contains(&word.as_str());
            let shared = SHARED.contains(&word.as_str()) && !self.timings.is_empty();
            if !continues && (timing || shared) && self.errors.len() < MAX_ERRORS {
                let problem = ValidationError::new(
                    at + 1,
                    format!("@{word} has no arguments in parentheses"),
                );
                self.errors.push(
                    problem
                        .hint(format!("write @{word}(…), without a space before the parenthesis")),
                );
            }
        }
    }

    fn take(
        &mut self,
        call: &Call,
        seen: &mut Vec<(String, usize)>,
        keys: &mut HashSet<String>,
    ) -> Result<(), ValidationError> {
        if let Some(timing) = Timing::read(call) {
            return self.take_timing(call, timing?, keys);
        }
        if !SHARED.contains(&call.word.as_str()) {
            return Err(ValidationError::unknown(call.at, "annotation", &call.word, &words()));
        }
        if seen.iter().any(|(word, _)| *word == call.word) {
            return Err(ValidationError::new(call.at, format!("@{} is given twice", call.word)));
        }
        seen.push((call.word.clone(), call.at));
        match call.word.as_str() {
            "retry" => {
                let mut retry = settings(call, RETRY, &["attempts", "max_retries"])?;
                let interval = retry.remove("interval");
                self.task.extend(interval.map(|interval| ("retry_interval".to_owned(), interval)));
                self.task.extend(retry);
            }
            "job" => self.take_job(call)?,
            "task" => self.task.extend(task(call)?),
            "fire" => self.settings.extend(settings(call, FIRE, &[])?),
            "expected" => self.set("expected_duration", one_duration(call)?),
            "tags" => {
                // The database checks the tags.
                call.only(&[])?;
                let tags: Vec<&str> = call.positional().map(|arg| arg.value.as_str()).collect();
                if !tags.is_empty() {
                    self.set("tags", tags.into());
                }
            }
            other => self.set(other, one_duration(call)?),
        }
        Ok(())
    }

    /// Checks settings that are valid separately but cannot be combined.
    fn validate_together(&mut self, seen: &[(String, usize)]) {
        let again = self.task.get("max_attempts").and_then(Value::as_u64) > Some(1);
        let once = self.task.get("at_most_once") == Some(&Value::Bool(true));
        let retry = seen.iter().find(|(word, _)| word == "retry");
        if let (Some((_, at)), true) = (retry, once && again) {
            let problem = ValidationError::new(
                *at,
                "at_most_once and max_attempts above 1 cannot be combined",
            );
            self.errors.push(problem.hint(
                "a task that runs at most once is not retried: remove max_attempts or at_most_once",
            ));
            self.shared_error = true;
        }
    }

    fn set(&mut self, key: &str, value: Value) {
        self.settings.insert(key.to_owned(), value);
    }

    /// Takes `@job("Cleanup", category: Ops)`.
    fn take_job(&mut self, call: &Call) -> Result<(), ValidationError> {
        call.only(&["category"])?;
        let mut names = call.positional();
        let title = names.next();
        if let Some(second) = names.next() {
            return Err(ValidationError::new(second.at, "@job takes only one name"));
        }
        if let Some(arg) = title
            && (arg.value.contains(char::is_control) || !(1..=512).contains(&arg.value.len()))
        {
            return Err(ValidationError::new(arg.at, "invalid job name")
                .hint("a job name has 1 to 512 bytes and no control character"));
        }
        let category = call.label("category")?;
        self.title = title.map(|arg| arg.value.clone());
        self.settings.extend(category.map(|it| ("category".to_owned(), it.into())));
        Ok(())
    }

    fn take_timing(
        &mut self,
        call: &Call,
        timing: Timing,
        keys: &mut HashSet<String>,
    ) -> Result<(), ValidationError> {
        let key = timing.key();
        if !keys.insert(key.clone()) {
            let message = format!("two schedules have the key {key}");
            return Err(ValidationError::new(call.at, message).hint("add key: … to one of them"));
        }
        self.timings.push(timing);
        Ok(())
    }
}

/// Returns the only argument of a call, a duration.
fn one_duration(call: &Call) -> Result<Value, ValidationError> {
    call.only(&[])?;
    let mut given = call.positional();
    let (Some(arg), None) = (given.next(), given.next()) else {
        return Err(ValidationError::new(call.at, format!("@{} takes one duration", call.word))
            .hint(format!("write for example @{}(20m)", call.word)));
    };
    let length = duration::parse(&arg.value, arg.at)?;
    if (Duration::from_millis(1)..=days(365)).contains(&length) {
        return Ok(seconds(length));
    }
    Err(ValidationError::new(arg.at, format!("@{} is out of range", call.word))
        .hint("expected a duration of up to 365 days"))
}

fn days(count: u64) -> Duration {
    Duration::from_secs(count * DAY_SECS)
}

fn seconds(span: Duration) -> Value {
    format!("{} seconds", span.as_secs_f64()).into()
}

fn json(
    read: Result<Option<impl Into<Value>>, ValidationError>,
) -> Result<Option<Value>, ValidationError> {
    Ok(read?.map(Into::into))
}

fn length(
    call: &Call,
    name: &str,
    from: Duration,
    to_days: u64,
) -> Result<Option<Value>, ValidationError> {
    Ok(call.length(name, from..=days(to_days))?.map(seconds))
}

/// Reads the arguments of a call, which all have names.
fn settings(
    call: &Call,
    known: &[(&str, Read)],
    aliases: &[&str],
) -> Result<Map<String, Value>, ValidationError> {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    call.only_with_aliases(&names, aliases)?;
    call.no_positional()?;
    let mut settings = Map::new();
    for (name, read) in known {
        settings.extend(read(call, name)?.map(|value| ((*name).to_owned(), value)));
    }
    Ok(settings)
}

fn max_attempts(call: &Call) -> Result<Option<u64>, ValidationError> {
    let names = ["max_attempts", "attempts", "max_retries"];
    let mut given: Vec<_> =
        names.iter().filter_map(|name| Some((*name, call.named(name)?))).collect();
    given.sort_by_key(|(_, arg)| arg.at);
    match given[..] {
        [] => Ok(None),
        [("max_retries", _)] => {
            Ok(call.number("max_retries", 0..=9_999)?.map(|retries| retries + 1))
        }
        [(name, _)] => call.number(name, 1..=10_000),
        [(first, _), (second, arg), ..] => {
            let message = format!("{first} and {second} are the same setting");
            Err(ValidationError::new(arg.at, message).hint("remove one of the two"))
        }
    }
}

fn task(call: &Call) -> Result<Map<String, Value>, ValidationError> {
    let task = settings(call, TASK, &[])?;
    if let Some(arg) = call.named("queue") {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.:-".contains(&b);
        if arg.value.len() > 128 || !arg.value.bytes().all(plain) {
            return Err(ValidationError::new(arg.at, "invalid queue name")
                .hint("a queue name has 1 to 128 letters, digits or any of _ . : -"));
        }
    }
    let is = |name: &str, value: Value| task.get(name) == Some(&value);
    if let Some(arg) = call.named("at_most_once")
        && is("at_most_once", true.into())
        && !is("mode", "autocommit".into())
    {
        return Err(ValidationError::new(arg.at, "at_most_once requires mode autocommit")
            .hint("add mode: autocommit, or remove at_most_once: in a transaction, a task has its effects exactly once"));
    }
    Ok(task)
}

#[cfg(test)]
mod tests;
