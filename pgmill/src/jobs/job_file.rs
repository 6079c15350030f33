//! Parses jobs, schedules and dependencies from TOML files.
//!
//! | step | file |
//! |---|---|
//! | one table of a file, key by key, with the location of errors | `section` |
//! | a schedule: its timing, and its jobs or its statement | `schedule` |
//! | all files together: unique names, known parents, no dependency cycles | `check` |
//!
//! Jobs, their tasks and dependencies are parsed here. A job becomes the document that the crate
//! `queue` accepts, and keeps the offsets of its parts, so that later errors, including those of
//! the database, are reported with their location.

mod check;
mod schedule;
mod section;

use std::path::{Path, PathBuf};

use cli::source::{Source, ValidationError};
use cli::statement::runnable;
use queue::run::{Expected, JoinMode};
use queue::{Backoff, Isolation, Mode, Priority, scan};
use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};

pub(crate) use check::check;
pub(crate) use schedule::Schedule;
use section::{BOOLEAN, ELSEWHERE, LABEL, METADATA, Read, SPAN, TAGS, TEXT, json};
use section::{Errors, Item, Key, Parsed, Section, job_name, json_value, kind, start};

/// The declarations of one file.
#[derive(Default)]
pub(crate) struct JobFile {
    pub(crate) jobs: Vec<Job>,
    pub(crate) schedules: Vec<Schedule>,
    pub(crate) dependencies: Vec<Dependency>,
    /// Files with the statements of tasks (`statement_file`).
    pub(crate) statement_files: Vec<PathBuf>,
}

/// A job, and its offset in the file.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) at: usize,
    /// The argument of `queue::job::set`.
    pub(crate) document: Value,
    tasks: Vec<Task>,
}

struct Task {
    name: String,
    at: usize,
    parents: Vec<Parent>,
}

struct Parent {
    name: String,
    at: usize,
}

/// A dependency that applies to every job, and its offset in the file.
pub(crate) struct Dependency {
    pub(crate) child: String,
    pub(crate) parent: String,
    pub(crate) expected: Expected,
    pub(crate) at: usize,
}

impl Job {
    /// Returns the offset of a task; the offset of the job if the task is not in the file.
    pub(crate) fn offset_of_task(&self, task: Option<&str>) -> usize {
        let found = self.tasks.iter().find(|known| Some(known.name.as_str()) == task);
        found.map_or(self.at, |task| task.at)
    }
}

/// Parses a file.
///
/// # Errors
/// Returns every error: invalid TOML, unknown keys, invalid values, or a `statement_file` that cannot
/// be read.
pub(crate) fn read(source: &Source) -> Result<JobFile, Vec<ValidationError>> {
    let table = DeTable::parse(&source.text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        vec![ValidationError::new(at, one_sentence(error.message()))]
    })?;
    let errors = Errors::default();
    let folder = source.path.parent().unwrap_or(Path::new(""));
    let reader = Reader { text: &source.text, folder, errors: &errors };
    let root = Section::new("the file", 0, table.get_ref(), &errors);
    root.only(&["job", "schedule", "dependency"]);
    let mut file = JobFile::default();
    for (key, value) in root.tables("job", &source.text) {
        let Some((job, files)) = reader.job(key, value) else { continue };
        file.jobs.push(job);
        file.statement_files.extend(files);
    }
    for (key, value) in root.tables("schedule", &source.text) {
        let Some((schedule, statement_file)) = reader.schedule(key, value) else { continue };
        file.schedules.push(schedule);
        file.statement_files.extend(statement_file);
    }
    for value in root.note(root.array("dependency")).unwrap_or_default() {
        file.dependencies.extend(reader.dependency(value));
    }
    let errors = errors.into_sorted();
    if errors.is_empty() { Ok(file) } else { Err(errors) }
}

/// Returns the first error in the text of a job file, with its location. Checks the file alone,
/// without a database.
pub fn first_error(path: &Path, text: String) -> Option<String> {
    let source = Source { path: path.to_owned(), text, ..Source::default() };
    let first = match read(&source) {
        Ok(file) => check(&[(&source, &file)]).into_iter().next()?,
        Err(errors) => source.to_failure(errors.into_iter().next()?),
    };
    Some(first.message().to_owned())
}

/// Joins the lines of a message of the TOML parser.
fn one_sentence(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join(", ")
}

struct Reader<'a> {
    text: &'a str,
    folder: &'a Path,
    errors: &'a Errors,
}

impl<'a> Reader<'a> {
    /// Parses a job; returns also the `statement_file`s of its tasks.
    fn job(&self, key: &Key<'_>, value: &'a Item<'a>) -> Option<(Job, Vec<PathBuf>)> {
        let at = start(self.text, key);
        let name = job_name(key.get_ref()).map_err(|reason| ValidationError::new(at, reason));
        let name = self.errors.note(name).unwrap_or_else(|| key.get_ref().to_string());
        let section = Section::of(format!("job \"{name}\""), at, value, self.errors)?;
        let defaults = TASK_OPTIONS.iter().filter(|(key, _)| *key != "at_most_once");
        section.only_with_aliases(JOB_KEYS.iter().chain(defaults), &MAX_ATTEMPTS_ALIASES);
        let mut document = Map::new();
        document.insert("name".to_owned(), json!(name));
        section.put_all(&mut document, &JOB_KEYS);
        let mut defaults = options(&section);
        // The priority is a property of the job itself, which runs of several jobs compare.
        document.extend(defaults.remove_entry("priority"));
        let (mut tasks, mut documents, mut files) = (vec![], vec![], vec![]);
        for (key, value) in section.tables("task", self.text) {
            let Some(read) = self.task(&name, key, value, &defaults) else { continue };
            tasks.push(read.task);
            documents.push(read.document);
            files.extend(read.file);
        }
        document.insert("tasks".to_owned(), Value::Array(documents));
        Some((Job { name, at, document: Value::Object(document), tasks }, files))
    }

    fn task(
        &self,
        job: &str,
        key: &Key<'_>,
        value: &'a Item<'a>,
        defaults: &Map<String, Value>,
    ) -> Option<ReadTask> {
        let (at, name) = (start(self.text, key), key.get_ref().as_ref());
        let label = terminal::label(name);
        self.errors.note(
            label.map_err(|reason| ValidationError::new(at, format!("a task's name: {reason}"))),
        );
        let context = format!("task \"{name}\" of job \"{job}\"");
        let section = Section::of(context, at, value, self.errors)?;
        section.only_with_aliases(TASK_KEYS.iter().chain(&TASK_OPTIONS), &MAX_ATTEMPTS_ALIASES);
        let (statement, file) = section.note(self.statement(&section)).unwrap_or_default();
        let (after, parents) = section.note(parents(&section)).unwrap_or_default();
        let mut document = options(&section);
        let once = document.get("at_most_once") == Some(&json!(true));
        for (key, value) in defaults.iter().filter(|(key, _)| !(once && *key == "max_attempts")) {
            document.entry(key).or_insert_with(|| value.clone());
        }
        document.insert("name".to_owned(), json!(name));
        document.insert("statement".to_owned(), json!(statement));
        section.put_all(&mut document, &TASK_KEYS);
        section.put(&mut document, "after", Ok(after));
        section.note(check_at_most_once(&section, &document));
        let task = Task { name: name.to_owned(), at, parents };
        Some(ReadTask { task, document: Value::Object(document), file })
    }

    /// Returns the statement, and its `statement_file` if it has one.
    fn statement(&self, section: &Section<'_>) -> Parsed<(String, Option<PathBuf>)> {
        let inline = section.text("statement")?;
        let Some(name) = section.text("statement_file")? else {
            let at = section.offset_of("statement");
            let text = inline.ok_or_else(|| section.error_at(at, "missing statement"))?;
            let text = scan::without_byte_order_mark(&text);
            runnable(text).map_err(|(_, wrong)| section.wrap_error(at, wrong))?;
            return Ok((text.to_owned(), None));
        };
        let at = section.offset_of("statement_file");
        if inline.is_some() {
            return Err(section.error_at(at, "statement and statement_file exclude each other"));
        }
        let path = self.folder.join(&name);
        let file =
            Source::read(&path).map_err(|failure| section.error_at(at, failure.to_string()))?;
        runnable(&file.text).map_err(|(offset, wrong)| {
            let message = format!("{}: {}", file.location(offset), wrong.message);
            section.wrap_error(at, ValidationError { message, ..wrong })
        })?;
        Ok((file.text, Some(path)))
    }
}

struct ReadTask {
    task: Task,
    document: Value,
    file: Option<PathBuf>,
}

/// Keys of a job, besides the defaults for its tasks.
const JOB_KEYS: [(&str, Read); 10] = [
    ("description", TEXT),
    ("category", TEXT),
    ("frequency", TEXT),
    ("enabled", BOOLEAN),
    ("task", ELSEWHERE),
    ("tags", TAGS),
    ("metadata", METADATA),
    ("expected_duration", SPAN),
    ("deadline", SPAN),
    ("run_timeout", SPAN),
];

/// Keys with the options of a statement, in a job or in a schedule.
const TASK_OPTIONS: [(&str, Read); 15] = [
    ("queue", |it, key| json(it.queue(key))),
    ("priority", |it, key| json(it.enum_value::<Priority>(key))),
    ("group", LABEL),
    ("concurrency_key", LABEL),
    ("max_attempts", |it, _| json(max_attempts(it))),
    ("retry_interval", |it, key| json(it.span(key, true))),
    ("backoff", |it, key| json(it.enum_value::<Backoff>(key))),
    ("timeout", SPAN),
    ("mode", |it, key| json(it.enum_value::<Mode>(key))),
    ("isolation", |it, key| json(it.enum_value::<Isolation>(key))),
    ("at_most_once", BOOLEAN),
    ("external", BOOLEAN),
    ("run_as", LABEL),
    ("store_params", BOOLEAN),
    ("store_output", BOOLEAN),
];

/// Other keys for the number of attempts: `attempts` is the same number as `max_attempts`, and
/// `max_retries` is one less.
const MAX_ATTEMPTS_ALIASES: [&str; 2] = ["attempts", "max_retries"];

/// Further keys of a task of a job.
const TASK_KEYS: [(&str, Read); 14] = [
    ("approval", BOOLEAN),
    ("approval_note", TEXT),
    ("expected_duration", SPAN),
    ("description", TEXT),
    ("enabled", BOOLEAN),
    ("statement", ELSEWHERE),
    ("statement_file", ELSEWHERE),
    ("params", |it, _| params(it)),
    ("jitter", BOOLEAN),
    ("ignore_failure", BOOLEAN),
    ("join", |it, key| json(it.enum_value::<JoinMode>(key))),
    ("after", ELSEWHERE),
    ("tags", TAGS),
    ("metadata", METADATA),
];

fn options(section: &Section<'_>) -> Map<String, Value> {
    let mut document = Map::new();
    section.put_all(&mut document, &TASK_OPTIONS);
    document
}

/// Returns the keys by which the number of attempts is given, in the order of the file.
fn max_attempts_keys(section: &Section<'_>) -> Vec<&'static str> {
    let names = ["max_attempts"].into_iter().chain(MAX_ATTEMPTS_ALIASES);
    let mut given: Vec<_> = names.filter(|key| section.get(key).is_some()).collect();
    given.sort_by_key(|key| section.offset_of(key));
    given
}

fn max_attempts(section: &Section<'_>) -> Parsed<Option<i64>> {
    match max_attempts_keys(section)[..] {
        [] => Ok(None),
        ["max_retries"] => Ok(section.whole("max_retries", 0..=9_999)?.map(|retries| retries + 1)),
        [key] => section.whole(key, 1..=10_000),
        [first, second, ..] => Err(section.error_at(
            section.offset_of(second),
            format!("{first} and {second} are the same setting: give one of them"),
        )),
    }
}

fn check_at_most_once(section: &Section<'_>, document: &Map<String, Value>) -> Parsed<()> {
    if document.get("at_most_once") != Some(&json!(true)) {
        return Ok(());
    }
    let at = section.offset_of("at_most_once");
    if document.get("mode") != Some(&json!(Mode::Autocommit.as_str())) {
        return Err(section.error_at(at, "at_most_once requires mode = \"autocommit\""));
    }
    if document.get("max_attempts").is_some_and(|attempts| *attempts != json!(1)) {
        let key = max_attempts_keys(section)[0];
        return Err(
            section.error_at(section.offset_of(key), "at_most_once allows only max_attempts = 1")
        );
    }
    Ok(())
}

/// Parses `after`: returns the edges for the document, and the parents with their offsets.
fn parents(section: &Section<'_>) -> Parsed<(Option<Value>, Vec<Parent>)> {
    let (mut documents, mut parents) = (vec![], Vec::<Parent>::new());
    for value in section.array("after")? {
        let at = value.span().start;
        let (name, expected) = match value.get_ref() {
            DeValue::String(name) => (name.to_string(), None),
            DeValue::Table(table) => {
                let edge = section.inner("an edge", at, table);
                edge.only(&["task", "expected"]);
                let name = edge.label("task")?;
                let name = name.ok_or_else(|| edge.error_at(at, "missing task"))?;
                (name, edge.enum_value::<Expected>("expected")?)
            }
            other => {
                let wrong = format!("after takes task names, not {}", kind(other));
                return Err(section.error_at(at, wrong));
            }
        };
        if parents.iter().any(|known| known.name == name) {
            return Err(section.error_at(at, format!("after names \"{name}\" twice")));
        }
        documents
            .push(json!({ "task": name, "expected": expected.unwrap_or(Expected::Succeeded) }));
        parents.push(Parent { name, at });
    }
    Ok(((!documents.is_empty()).then_some(Value::Array(documents)), parents))
}

/// Parses the values of `$1`, `$2`, …: a table with only `param`, or with only `result` and
/// `column`, is a reference.
fn params(section: &Section<'_>) -> Parsed<Option<Value>> {
    if section.get("params").is_none() {
        return Ok(None);
    }
    let one = |value: &Item<'_>| {
        let Some(table) = value.get_ref().as_table() else {
            return json_value(section, "params", value);
        };
        let text = |key: &str| table.get(key).and_then(|value| value.get_ref().as_str());
        match (table.len(), text("param"), text("result"), text("column")) {
            (1, Some(name), ..) => Ok(json!({ "$param": name })),
            (2, _, Some(task), Some(column)) => Ok(json!({ "$result": task, "column": column })),
            (1, _, Some(_), _) => {
                Err(section.error_at(value.span().start, "result requires column"))
            }
            _ => json_value(section, "params", value),
        }
    };
    let values = section.array("params")?.into_iter().map(one);
    values.collect::<Result<Vec<Value>, _>>().map(|values| Some(Value::Array(values)))
}

impl<'a> Reader<'a> {
    fn dependency(&self, value: &'a Item<'a>) -> Option<Dependency> {
        // The span of a table covers only its header or its braces.
        let at = value.span().start.min(self.text.len());
        let section = Section::of("a dependency".to_owned(), at, value, self.errors)?;
        section.only(&["child", "parent", "expected"]);
        let need = |key: &str| {
            let name = section.label(key).and_then(|name| {
                name.ok_or_else(|| section.error_at(at, format!("missing {key}")))
            });
            section.note(name)
        };
        let (child, parent) = (need("child"), need("parent"));
        let expected = section.note(section.enum_value("expected"))?;
        let expected = expected.unwrap_or(Expected::Succeeded);
        Some(Dependency { child: child?, parent: parent?, expected, at })
    }
}

#[cfg(test)]
mod tests;
