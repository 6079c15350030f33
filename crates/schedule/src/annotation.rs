//! Schedule annotations in the comment of a procedure or function.
//!
//! A comment may contain, anywhere in its text, calls with a leading `@`: any number of timings,
//! such as `@daily(03:15)`, and the calls `@retry(…)`, `@job(…)`, `@task(…)`, `@fire(…)`, `@tags(…)`,
//! `@expected(…)`, `@deadline(…)` and `@run_timeout(…)`, each at most once. An `@` within a word, or before a word without a parenthesis, is
//! plain text, as in `me@example.org` or `@param x`.

use std::collections::HashSet;
use std::time::Duration;

use serde::Serialize;

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
    /// Retry settings.
    pub retry: RetryAnnotation,
    /// Job settings.
    pub job: JobAnnotation,
    /// Task settings.
    pub task: TaskAnnotation,
    /// Fire settings.
    pub fire: FireAnnotation,
    /// `@tags(ops, nightly)`: tags of the schedules and of their runs.
    pub tags: Vec<String>,
    /// `@expected(20m)`: duration after which a run is slower than expected.
    pub expected_duration: Option<Duration>,
    /// `@deadline(2h)`: time after its fire at which a run is late.
    pub deadline: Option<Duration>,
    /// `@run_timeout(3h)`: time after its start at which a run is cancelled.
    pub run_timeout: Option<Duration>,
    /// If there is a timing: the text outside the annotations, on one line.
    pub text: String,
    /// Errors, in order. Their positions are in characters of the comment.
    pub errors: Vec<ValidationError>,
    /// Whether one of the errors is in a setting shared by all timings.
    pub shared_error: bool,
}

/// `@retry(max_attempts: 3, interval: 60s, backoff: exponential, jitter: true)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RetryAnnotation {
    /// Maximum number of failed attempts, 1 to 10000; the first attempt counts too.
    pub max_attempts: Option<u32>,
    /// Wait before the next attempt, up to 365 days.
    pub interval: Option<Duration>,
    /// `fixed` or `exponential`.
    pub backoff: Option<String>,
    /// Whether the wait is drawn at random between zero and the full wait.
    pub jitter: Option<bool>,
}

/// `@job("Nightly cleanup", category: "Ops")`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JobAnnotation {
    /// Free-text name: 1 to 512 bytes, no control character.
    pub name: Option<String>,
    /// Free-text category: 1 to 512 bytes.
    pub category: Option<String>,
}

/// `@task(queue: …, priority: …, group: …, concurrency_key: …, timeout: …, mode: …,
/// isolation: …, at_most_once: …, external: …, store_params: …, store_output: …)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaskAnnotation {
    /// Queue: 1 to 128 letters, digits and `_.:-`.
    pub queue: Option<String>,
    /// Priority: `low`, `normal`, `high`, `critical` or `reserved`.
    pub priority: Option<String>,
    /// Group: 1 to 512 bytes.
    pub group: Option<String>,
    /// Concurrency key: 1 to 512 bytes.
    pub concurrency_key: Option<String>,
    /// Maximum run time of an attempt: more than 0, up to 365 days.
    pub timeout: Option<Duration>,
    /// Mode: `transaction` or `autocommit`.
    pub mode: Option<String>,
    /// Isolation level: `read_committed`, `repeatable_read` or `serializable`.
    pub isolation: Option<String>,
    /// Whether the statement is never started twice. Requires mode `autocommit`.
    pub at_most_once: Option<bool>,
    /// Whether the task has effects outside the database.
    pub external: Option<bool>,
    /// Whether the params of the finished task are stored.
    pub store_params: Option<bool>,
    /// Whether notices, result and plan of the finished task are stored.
    pub store_output: Option<bool>,
}

/// `@fire(overlap: skip, catch_up: 1, max_lateness: 1h, jitter: 30s)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FireAnnotation {
    /// Treatment of a fire while a run is in progress: `skip`, `queue` or `allow`.
    pub overlap: Option<String>,
    /// Number of missed fires that are started late, 0 to 1000.
    pub catch_up: Option<u32>,
    /// Maximum delay of a missed fire that is started late, up to 365 days.
    pub max_lateness: Option<Duration>,
    /// Maximum random delay of a fire, up to a day.
    pub jitter: Option<Duration>,
}

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
            "retry" => self.retry = RetryAnnotation::read(call)?,
            "job" => self.job = JobAnnotation::read(call)?,
            "task" => self.task = TaskAnnotation::read(call)?,
            "fire" => self.fire = FireAnnotation::read(call)?,
            "expected" => self.expected_duration = Some(one_duration(call)?),
            "deadline" => self.deadline = Some(one_duration(call)?),
            "run_timeout" => self.run_timeout = Some(one_duration(call)?),
            _ => self.tags = tags(call)?,
        }
        Ok(())
    }

    /// Checks settings that are valid separately but cannot be combined.
    fn validate_together(&mut self, seen: &[(String, usize)]) {
        let again = self.retry.max_attempts.is_some_and(|attempts| attempts > 1);
        let retry = seen.iter().find(|(word, _)| word == "retry");
        if let (Some((_, at)), Some(true), true) = (retry, self.task.at_most_once, again) {
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

/// Returns the arguments of `@tags(…)`. The database checks them.
fn tags(call: &Call) -> Result<Vec<String>, ValidationError> {
    call.only(&[])?;
    Ok(call.positional().map(|arg| arg.value.clone()).collect())
}

/// Returns the only argument of a call, a duration.
fn one_duration(call: &Call) -> Result<Duration, ValidationError> {
    call.only(&[])?;
    let mut given = call.positional();
    let (Some(arg), None) = (given.next(), given.next()) else {
        return Err(ValidationError::new(call.at, format!("@{} takes one duration", call.word))
            .hint(format!("write for example @{}(20m)", call.word)));
    };
    let length = duration::parse(&arg.value, arg.at)?;
    if (Duration::from_millis(1)..=days(365)).contains(&length) {
        return Ok(length);
    }
    Err(ValidationError::new(arg.at, format!("@{} is out of range", call.word))
        .hint("expected a duration of up to 365 days"))
}

fn days(count: u64) -> Duration {
    Duration::from_secs(count * DAY_SECS)
}

fn small(number: Option<u64>) -> Option<u32> {
    number.and_then(|number| u32::try_from(number).ok())
}

impl RetryAnnotation {
    fn read(call: &Call) -> Result<Self, ValidationError> {
        call.only_with_aliases(
            &["max_attempts", "interval", "backoff", "jitter"],
            &["attempts", "max_retries"],
        )?;
        call.no_positional()?;
        Ok(Self {
            max_attempts: Self::max_attempts(call)?,
            interval: call.length("interval", Duration::ZERO..=days(365))?,
            backoff: call.one_of("backoff", &["fixed", "exponential"])?,
            jitter: call.boolean("jitter")?,
        })
    }
}

impl RetryAnnotation {
    /// Reads the maximum number of failed attempts, for which there are three names.
    fn max_attempts(call: &Call) -> Result<Option<u32>, ValidationError> {
        let names = ["max_attempts", "attempts", "max_retries"];
        let mut given: Vec<_> =
            names.iter().filter_map(|name| Some((*name, call.named(name)?))).collect();
        given.sort_by_key(|(_, arg)| arg.at);
        match given[..] {
            [] => Ok(None),
            [("max_retries", _)] => {
                Ok(small(call.number("max_retries", 0..=9_999)?).map(|retries| retries + 1))
            }
            [(name, _)] => Ok(small(call.number(name, 1..=10_000)?)),
            [(first, _), (second, arg), ..] => {
                let message = format!("{first} and {second} are the same setting");
                Err(ValidationError::new(arg.at, message).hint("remove one of the two"))
            }
        }
    }
}

impl JobAnnotation {
    fn read(call: &Call) -> Result<Self, ValidationError> {
        call.only(&["category"])?;
        let mut names = call.positional();
        let name = names.next().map(|arg| {
            let plain = !arg.value.contains(char::is_control);
            if plain && (1..=512).contains(&arg.value.len()) {
                Ok(arg.value.clone())
            } else {
                Err(ValidationError::new(arg.at, "invalid job name")
                    .hint("a job name has 1 to 512 bytes and no control character"))
            }
        });
        if let Some(second) = names.next() {
            return Err(ValidationError::new(second.at, "@job takes only one name"));
        }
        Ok(Self { name: name.transpose()?, category: call.label("category")? })
    }
}

impl TaskAnnotation {
    fn read(call: &Call) -> Result<Self, ValidationError> {
        let names = ["queue", "priority", "group", "concurrency_key"];
        let execution = ["timeout", "mode", "isolation", "at_most_once", "external"];
        call.only(&[&names[..], &execution[..], &["store_params", "store_output"]].concat())?;
        call.no_positional()?;
        let priorities = ["low", "normal", "high", "critical", "reserved"];
        let task = Self {
            queue: call.label("queue")?,
            priority: call.one_of("priority", &priorities)?,
            group: call.label("group")?,
            concurrency_key: call.label("concurrency_key")?,
            timeout: call.length("timeout", Duration::from_millis(1)..=days(365))?,
            mode: call.one_of("mode", &["transaction", "autocommit"])?,
            isolation: call
                .one_of("isolation", &["read_committed", "repeatable_read", "serializable"])?,
            at_most_once: call.boolean("at_most_once")?,
            external: call.boolean("external")?,
            store_params: call.boolean("store_params")?,
            store_output: call.boolean("store_output")?,
        };
        if let (Some(arg), Some(queue)) = (call.named("queue"), &task.queue) {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.:-".contains(&b);
            if queue.len() > 128 || !queue.bytes().all(plain) {
                return Err(ValidationError::new(arg.at, "invalid queue name")
                    .hint("a queue name has 1 to 128 letters, digits or any of _ . : -"));
            }
        }
        if let (Some(arg), Some(true)) = (call.named("at_most_once"), task.at_most_once)
            && task.mode.as_deref() != Some("autocommit")
        {
            return Err(ValidationError::new(arg.at, "at_most_once requires mode autocommit")
                .hint("add mode: autocommit, or remove at_most_once: in a transaction, a task has its effects exactly once"));
        }
        Ok(task)
    }
}

impl FireAnnotation {
    fn read(call: &Call) -> Result<Self, ValidationError> {
        call.only(&["overlap", "catch_up", "max_lateness", "jitter"])?;
        call.no_positional()?;
        Ok(Self {
            overlap: call.one_of("overlap", &["skip", "queue", "allow"])?,
            catch_up: small(call.number("catch_up", 0..=1_000)?),
            max_lateness: call.length("max_lateness", Duration::ZERO..=days(365))?,
            jitter: call.length("jitter", Duration::ZERO..=days(1))?,
        })
    }
}

#[cfg(test)]
mod tests;
