//! Parses schedules from TOML files.

use std::path::PathBuf;

use cli::source::ValidationError;
use schedule::Timing;
use schedule::enums::Overlap;
use serde_json::{Map, Value, json};

use super::section::{
    BOOLEAN, ELSEWHERE, Item, Key, METADATA, Parsed, Read, SPAN, Section, TAGS, TEXT, json, start,
};
use super::{MAX_ATTEMPTS_ALIASES, Reader, TASK_OPTIONS, check_at_most_once, options, params};

const SCHEDULE_KEYS: [(&str, Read); 18] = [
    ("timing", ELSEWHERE),
    ("job", ELSEWHERE),
    ("jobs", ELSEWHERE),
    ("statement", ELSEWHERE),
    ("statement_file", ELSEWHERE),
    ("params", ELSEWHERE),
    ("description", TEXT),
    ("category", TEXT),
    ("enabled", BOOLEAN),
    ("overlap", |it, key| json(it.enum_value::<Overlap>(key))),
    ("catch_up", |it, key| json(it.whole(key, 0..=1000))),
    ("max_lateness", |it, key| json(it.span(key, true))),
    ("jitter", |it, key| json(it.jitter(key))),
    ("expected_duration", SPAN),
    ("deadline", SPAN),
    ("run_timeout", SPAN),
    ("tags", TAGS),
    ("metadata", METADATA),
];

/// Keys of a statement that a schedule of jobs cannot have, in addition to [`TASK_OPTIONS`].
const STATEMENT_KEYS: [&str; 4] = ["statement", "statement_file", "description", "category"];

/// A schedule, and its offset in the file.
pub(crate) struct Schedule {
    pub(crate) name: String,
    pub(crate) at: usize,
    /// The argument of `schedule::declare::put`.
    pub(crate) document: Value,
}

impl<'a> Reader<'a> {
    /// Parses a schedule; returns also its `statement_file` if it has one.
    pub(super) fn schedule(
        &self,
        key: &Key<'_>,
        value: &'a Item<'a>,
    ) -> Option<(Schedule, Option<PathBuf>)> {
        let (at, name) = (start(self.text, key), key.get_ref().as_ref());
        let label = terminal::label(name);
        self.errors
            .note(label.map_err(|reason| {
                ValidationError::new(at, format!("a schedule's name: {reason}"))
            }));
        let section = Section::of(format!("schedule \"{name}\""), at, value, self.errors)?;
        let keys = SCHEDULE_KEYS.iter().chain(&TASK_OPTIONS);
        section.only_with_aliases(keys, &MAX_ATTEMPTS_ALIASES);
        let mut document = Map::new();
        document.insert("name".to_owned(), json!(name));
        section.put(&mut document, "timing", timing(self.text, &section).map(Some));
        section.put_all(&mut document, &SCHEDULE_KEYS);
        let file = match section.note(jobs(&section))? {
            Some(jobs) => {
                let options =
                    TASK_OPTIONS.map(|(key, _)| key).into_iter().chain(MAX_ATTEMPTS_ALIASES);
                let stray = STATEMENT_KEYS.into_iter().chain(options);
                if let Some(key) = stray.into_iter().find(|key| section.get(key).is_some()) {
                    let wrong = format!("{key} is an option of a statement, not of jobs");
                    self.errors.push(section.error_at(section.offset_of(key), wrong));
                }
                document.insert("jobs".to_owned(), jobs);
                section.put(&mut document, "params", named_params(&section));
                None
            }
            None => {
                let (statement, file) = section.note(self.statement(&section)).unwrap_or_default();
                let mut task = options(&section);
                section.put(&mut task, "params", params(&section));
                section.note(check_at_most_once(&section, &task));
                document.insert("statement".to_owned(), json!(statement));
                document.insert("task".to_owned(), Value::Object(task));
                file
            }
        };
        Some((Schedule { name: name.to_owned(), at, document: Value::Object(document) }, file))
    }
}

fn timing(file: &str, section: &Section<'_>) -> Parsed<String> {
    let at = section.offset_of("timing");
    let Some(text) = section.text("timing")? else {
        return Err(section.error_at(at, "missing timing").hint(
            "For example timing = \"daily(03:15)\", or \"manual\" to start it manually only.",
        ));
    };
    match Timing::parse(&text) {
        Ok(timing) => Ok(timing.to_string()),
        Err(wrong) => {
            let at = offset_in_string(file, at, wrong.at);
            let error = section.error_at(at, format!("timing: {}", wrong.message));
            Err(ValidationError { hint: wrong.hint, ..error })
        }
    }
}

/// Returns the byte offset in `file` of the `character`th character of a string. The string, with
/// its quotes, starts at byte `start` of the file.
fn offset_in_string(file: &str, start: usize, character: usize) -> usize {
    let written = file.get(start..).unwrap_or_default();
    let long = ["\"\"\"", "'''"].into_iter().find(|quotes| written.starts_with(quotes));
    let mut at = long.map_or(1, str::len);
    if long.is_some() {
        let line_feed = ["\r\n", "\n"].into_iter().find(|end| written[at..].starts_with(end));
        at += line_feed.map_or(0, str::len);
    }
    for _ in 0..character {
        at += match written[at..].chars().next() {
            Some('\\') if written.starts_with('"') => escape_length(&written[at..]),
            Some(other) => other.len_utf8(),
            None => break,
        };
    }
    start + at
}

/// Returns the length of an escape sequence in bytes, including the backslash.
fn escape_length(written: &str) -> usize {
    let long = match written.as_bytes().get(1) {
        Some(b'x') => 4,
        Some(b'u') => 6,
        Some(b'U') => 10,
        _ => 2,
    };
    long.min(written.len())
}

fn jobs(section: &Section<'_>) -> Parsed<Option<Value>> {
    if let Some(job) = section.label("job")? {
        return match section.get("jobs") {
            None => Ok(Some(json!([job]))),
            Some(_) => {
                Err(section.error_at(section.offset_of("jobs"), "job and jobs exclude each other"))
            }
        };
    }
    let Some(names) = section.strings("jobs")? else { return Ok(None) };
    if names.is_empty() {
        return Err(section.error_at(section.offset_of("jobs"), "jobs must not be empty"));
    }
    Ok(Some(json!(names)))
}

/// Parses the values for `{ param = "…" }` in the tasks of the jobs.
fn named_params(section: &Section<'_>) -> Parsed<Option<Value>> {
    let wrong = "params of a job must be a table, for example { day = \"2026-12-01\" }";
    section.object("params", wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_character_of_a_string_is_found() {
        for file in [
            r#"x = "a ä?""#,
            r#"x = 'a ä?'"#,
            r#"x = """a ä?""""#,
            "x = \"\"\"\na ä?\"\"\"",
            "x = '''\r\na ä?'''",
            r#"x = "\u0061 ä?""#,
            r#"x = "\"\\ä?""#,
            r"x = '\ ä?'",
        ] {
            assert_eq!(offset_in_string(file, 4, 3), file.find('?').unwrap(), "{file}");
        }
        assert_eq!(offset_in_string("x = ''", 4, 30), 6);
    }
}
