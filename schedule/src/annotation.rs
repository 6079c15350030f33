//! Schedules in the comment of a procedure or function.
//!
//! Anywhere among the prose stand calls with an `@` before them: timings, such as `@daily(03:15)`,
//! as many as there are, and `@retry(…)`, `@job(…)`, `@task(…)` and `@fire(…)`, each at most once.
//! An `@` within a word, or a word without parenthesis, is prose: `@param x`, `me@example.org`.

use std::collections::HashSet;
use std::time::Duration;

use serde::Serialize;

use crate::arguments::DAY_SECS;
use crate::call::{self, Call};
use crate::error::{ValidationError, nearest};
use crate::timing::Timing;

/// What a comment says about schedules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// In their order; no two with the same key.
    pub timings: Vec<Timing>,
    /// How to retry.
    pub retry: RetryAnnotation,
    /// Which job.
    pub job: JobAnnotation,
    /// How to run it.
    pub task: TaskAnnotation,
    /// How to fire.
    pub fire: FireAnnotation,
    /// In their order; places are characters of the comment.
    pub errors: Vec<ValidationError>,
    /// One of the mistakes is in what holds for all timings.
    pub shared_error: bool,
}

/// `@retry(max_attempts: 3, interval: 60s, backoff: exponential)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RetryAnnotation {
    /// Attempts in all, 1 to 10000.
    pub max_attempts: Option<u32>,
    /// Wait before the next attempt, up to 365 days.
    pub interval: Option<Duration>,
    /// `fixed` or `exponential`.
    pub backoff: Option<String>,
}

/// `@job("Nightly cleanup", category: "Ops")`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JobAnnotation {
    /// Words for people: 1 to 512 bytes, no control character.
    pub name: Option<String>,
    /// 1 to 512 bytes.
    pub category: Option<String>,
}

/// `@task(queue: …, priority: …, group: …, concurrency_key: …, timeout: …, mode: …,
/// at_most_once: …, external: …)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaskAnnotation {
    /// 1 to 128 letters, digits and `_.:-`.
    pub queue: Option<String>,
    /// `low`, `normal`, `high`, `critical` or `reserved`.
    pub priority: Option<String>,
    /// 1 to 512 bytes.
    pub group: Option<String>,
    /// 1 to 512 bytes.
    pub concurrency_key: Option<String>,
    /// More than 0, up to 365 days.
    pub timeout: Option<Duration>,
    /// `transaction` or `autocommit`.
    pub mode: Option<String>,
    /// Not without mode `autocommit`.
    pub at_most_once: Option<bool>,
    /// Its effects are outside of the database.
    pub external: Option<bool>,
}

/// `@fire(overlap: skip, catch_up: 1, max_lateness: 1h, jitter: 30s)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FireAnnotation {
    /// `skip`, `queue` or `allow`.
    pub overlap: Option<String>,
    /// How many late fires are fired, 0 to 1000.
    pub catch_up: Option<u32>,
    /// How late a fire may be, up to 365 days.
    pub max_lateness: Option<Duration>,
    /// Each fire is put off by a random part of this, up to a day.
    pub jitter: Option<Duration>,
}

/// What holds for all timings of a comment.
const SHARED: &[&str] = &["retry", "job", "task", "fire"];

/// Mistakes after which the rest of a comment is not read: it is none of schedules, and each takes a
/// look at what may be a long call.
const MAX_ERRORS: usize = 100;

/// Reads a comment; a mistake in one timing leaves the others, unless there are too many.
#[must_use]
pub fn read(comment: &str) -> Annotations {
    let chars: Vec<char> = comment.chars().collect();
    let mut found = Annotations::default();
    let mut seen = Vec::new();
    let mut keys = HashSet::new();
    let mut at = 0;
    while let Some((begins_at, word)) = next_word(&chars, at) {
        if found.errors.len() == MAX_ERRORS {
            let message = "there are too many mistakes: nothing from here on is read";
            found.errors.push(ValidationError::new(begins_at, message));
            // What holds for all may stand there.
            found.shared_error = true;
            break;
        }
        // Behind a parenthesis that is not closed there may be more.
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
    found.validate_together(&seen);
    found.errors.sort_by_key(|problem| problem.at);
    found
}

/// The line and the column of a character, both from 1.
#[must_use]
pub fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.chars().take(at);
    before.fold(
        (1, 1),
        |(line, column), c| if c == '\n' { (line + 1, 1) } else { (line, column + 1) },
    )
}

fn words() -> Vec<&'static str> {
    [SHARED, &Timing::words()].concat()
}

/// Where the next word between `@` and `(` begins, and the word.
fn next_word(chars: &[char], from: usize) -> Option<(usize, String)> {
    (from..chars.len()).find_map(|at| {
        let free = at == 0 || chars[at - 1].is_whitespace() || chars[at - 1] == '(';
        if chars[at] != '@' || !free {
            return None;
        }
        let rest = &chars[at + 1..];
        let length = rest.iter().take_while(|c| c.is_ascii_alphabetic() || **c == '_').count();
        let word: String = rest[..length].iter().collect();
        let begins = word.starts_with(|c: char| c.is_ascii_alphabetic());
        (begins && rest.get(length) == Some(&'(')).then_some((at + 1, word))
    })
}

impl Annotations {
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
            return Err(ValidationError::new(call.at, format!("@{} stands twice", call.word)));
        }
        seen.push((call.word.clone(), call.at));
        match call.word.as_str() {
            "retry" => self.retry = RetryAnnotation::read(call)?,
            "job" => self.job = JobAnnotation::read(call)?,
            "task" => self.task = TaskAnnotation::read(call)?,
            _ => self.fire = FireAnnotation::read(call)?,
        }
        Ok(())
    }

    /// What is right by itself and cannot stand beside the rest.
    fn validate_together(&mut self, seen: &[(String, usize)]) {
        let again = self.retry.max_attempts.is_some_and(|attempts| attempts > 1);
        let retry = seen.iter().find(|(word, _)| word == "retry");
        if let (Some((_, at)), Some(true), true) = (retry, self.task.at_most_once, again) {
            let problem = ValidationError::new(*at, "a task that runs at most once is not retried");
            self.errors.push(problem.hint("leave max_attempts or at_most_once away"));
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
            return Err(ValidationError::new(call.at, message).hint("give one of them key: …"));
        }
        self.timings.push(timing);
        Ok(())
    }
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
            &["max_attempts", "interval", "backoff"],
            &["attempts", "max_retries"],
        )?;
        call.no_positional()?;
        Ok(Self {
            max_attempts: Self::max_attempts(call)?,
            interval: call.length("interval", Duration::ZERO..=days(365))?,
            backoff: call.one_of("backoff", &["fixed", "exponential"])?,
        })
    }
}

impl RetryAnnotation {
    /// By whichever of its three names it is given.
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
                Err(ValidationError::new(arg.at, message).hint("give one of them"))
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
                Err(ValidationError::new(arg.at, "these are no words for people")
                    .hint("1 to 512 bytes, no control character"))
            }
        });
        if let Some(second) = names.next() {
            return Err(ValidationError::new(second.at, "job takes one name"));
        }
        Ok(Self { name: name.transpose()?, category: call.label("category")? })
    }
}

impl TaskAnnotation {
    fn read(call: &Call) -> Result<Self, ValidationError> {
        let names = ["queue", "priority", "group", "concurrency_key"];
        call.only(&[&names[..], &["timeout", "mode", "at_most_once", "external"]].concat())?;
        call.no_positional()?;
        let priorities = ["low", "normal", "high", "critical", "reserved"];
        let task = Self {
            queue: call.label("queue")?,
            priority: call.one_of("priority", &priorities)?,
            group: call.label("group")?,
            concurrency_key: call.label("concurrency_key")?,
            timeout: call.length("timeout", Duration::from_millis(1)..=days(365))?,
            mode: call.one_of("mode", &["transaction", "autocommit"])?,
            at_most_once: call.boolean("at_most_once")?,
            external: call.boolean("external")?,
        };
        if let (Some(arg), Some(queue)) = (call.named("queue"), &task.queue) {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.:-".contains(&b);
            if queue.len() > 128 || !queue.bytes().all(plain) {
                return Err(ValidationError::new(arg.at, "this is no name of a queue")
                    .hint("1 to 128 letters, digits and _ . : -"));
            }
        }
        if let (Some(arg), Some(true)) = (call.named("at_most_once"), task.at_most_once)
            && task.mode.as_deref() != Some("autocommit")
        {
            return Err(ValidationError::new(arg.at, "at_most_once needs mode autocommit")
                .hint("a transaction runs exactly once anyway"));
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
