//! Reads a table of a TOML file key by key, and reports errors with their location.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use cli::duration::parse_limited;
use cli::source::ValidationError;
use serde::Serialize;
use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::args::jitter;

pub(super) type Key<'a> = Spanned<Cow<'a, str>>;
pub(super) type Item<'a> = Spanned<DeValue<'a>>;
/// A part of a file, or the error in it.
pub(super) type Parsed<T> = Result<T, ValidationError>;

/// How the value of a key is read, for a document.
pub(super) type Read = fn(&Section<'_>, &str) -> Parsed<Option<Value>>;

pub(super) const TEXT: Read = |it, key| json(it.text(key));
pub(super) const LABEL: Read = |it, key| json(it.label(key));
pub(super) const BOOLEAN: Read = |it, key| json(it.boolean(key));
/// A duration greater than zero.
pub(super) const SPAN: Read = |it, key| json(it.span(key, false));
pub(super) const TAGS: Read = |it, key| json(it.strings(key));
pub(super) const METADATA: Read =
    |it, key| it.object(key, "metadata must be a table, for example { owner = \"bi\" }");
/// The key is known, and read by other code.
pub(super) const ELSEWHERE: Read = |_, _| Ok(None);

/// Returns a value that was read as JSON.
pub(super) fn json<T: Serialize>(read: Parsed<Option<T>>) -> Parsed<Option<Value>> {
    Ok(read?.and_then(|value| serde_json::to_value(value).ok()))
}

/// The errors of a file. All of them are reported, so the reader continues after an error.
#[derive(Default)]
pub(super) struct Errors(RefCell<Vec<ValidationError>>);

impl Errors {
    pub(super) fn push(&self, error: ValidationError) {
        self.0.borrow_mut().push(error);
    }

    /// Returns the value; records the error if there is one.
    pub(super) fn note<T>(&self, result: Parsed<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// Returns the errors in the order of the file, each once: a key can have two meanings.
    pub(super) fn into_sorted(self) -> Vec<ValidationError> {
        let mut errors = self.0.into_inner();
        errors.sort_by(|one, other| (one.at, &one.message).cmp(&(other.at, &other.message)));
        errors.dedup_by(|one, other| (one.at, &one.message) == (other.at, &other.message));
        errors
    }
}

/// A table with its context for messages and its offset.
pub(super) struct Section<'a> {
    pub(super) context: String,
    at: usize,
    table: &'a DeTable<'a>,
    errors: &'a Errors,
}

impl<'a> Section<'a> {
    pub(super) fn new(
        context: impl Into<String>,
        at: usize,
        table: &'a DeTable<'a>,
        errors: &'a Errors,
    ) -> Self {
        Self { context: context.into(), at, table, errors }
    }

    /// Returns the section of a value. If the value is not a table, records the error.
    pub(super) fn of(
        context: String,
        at: usize,
        value: &'a Item<'a>,
        errors: &'a Errors,
    ) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Self { context, at, table, errors }),
            other => {
                let message = format!("{context} is {}, not a table", kind(other));
                errors.push(ValidationError::new(value.span().start, message));
                None
            }
        }
    }

    /// Returns the section of a table in a value of this table.
    pub(super) fn inner(&self, what: &str, at: usize, table: &'a DeTable<'a>) -> Self {
        Self::new(format!("{}: {what}", self.context), at, table, self.errors)
    }

    /// Returns the value; records the error if there is one.
    pub(super) fn note<T>(&self, result: Parsed<T>) -> Option<T> {
        self.errors.note(result)
    }

    pub(super) fn error_at(&self, at: usize, message: impl AsRef<str>) -> ValidationError {
        ValidationError::new(at, format!("{}: {}", self.context, message.as_ref()))
    }

    /// Returns the error with the context of this table, at the given offset.
    pub(super) fn wrap_error(&self, at: usize, error: ValidationError) -> ValidationError {
        ValidationError { hint: error.hint, ..self.error_at(at, error.message) }
    }

    /// Records the unknown keys of the table as errors.
    pub(super) fn only(&self, known: &[&str]) {
        self.only_known(known, &[]);
    }

    /// Like [`Section::only`], but also accepts the aliases. The hints of the errors do not list
    /// them.
    pub(super) fn only_with_aliases<'k>(
        &self,
        known: impl Iterator<Item = &'k (&'static str, Read)>,
        aliases: &[&str],
    ) {
        self.only_known(&known.map(|(key, _)| *key).collect::<Vec<_>>(), aliases);
    }

    fn only_known(&self, known: &[&str], aliases: &[&str]) {
        let accepted = |key: &str| known.contains(&key) || aliases.contains(&key);
        for key in self.table.keys().filter(|key| !accepted(key.get_ref().as_ref())) {
            let message = format!("unknown key \"{}\"", key.get_ref());
            let error = self.error_at(key.span().start, message);
            self.errors.push(error.hint(format!("Known keys: {}.", known.join(", "))));
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Item<'a>> {
        self.table.get(key)
    }

    /// Returns the offset of the value of a key, or of the table if the key is missing.
    pub(super) fn offset_of(&self, key: &str) -> usize {
        self.get(key).map_or(self.at, |value| value.span().start)
    }

    fn value<T>(
        &self,
        key: &str,
        wanted: &str,
        take: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Parsed<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match take(value.get_ref()) {
            Some(taken) => Ok(Some(taken)),
            None => Err(self.error_at(
                value.span().start,
                format!("{key} is {}, not {wanted}", kind(value.get_ref())),
            )),
        }
    }

    fn parsed<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Parsed<Option<T>> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let wrong = |reason| self.error_at(self.offset_of(key), format!("{key}: {reason}"));
        parse(&text).map(Some).map_err(wrong)
    }

    pub(super) fn text(&self, key: &str) -> Parsed<Option<String>> {
        let text = self.value(key, "a string", |value| value.as_str().map(str::to_owned))?;
        match text {
            Some(text) if text.contains('\0') => {
                Err(self.error_at(self.offset_of(key), format!("{key} contains a NUL byte")))
            }
            text => Ok(text),
        }
    }

    pub(super) fn boolean(&self, key: &str) -> Parsed<Option<bool>> {
        self.value(key, "true or false", DeValue::as_bool)
    }

    pub(super) fn label(&self, key: &str) -> Parsed<Option<String>> {
        self.parsed(key, terminal::label)
    }

    pub(super) fn queue(&self, key: &str) -> Parsed<Option<String>> {
        self.parsed(key, |text| terminal::queue_name(text).map_err(str::to_owned))
    }

    pub(super) fn enum_value<T: FromStr<Err = String>>(&self, key: &str) -> Parsed<Option<T>> {
        self.parsed(key, str::parse)
    }

    pub(super) fn whole(&self, key: &str, range: RangeInclusive<i64>) -> Parsed<Option<i64>> {
        let Some(number) = self.value(key, "an integer", DeValue::as_integer)? else {
            return Ok(None);
        };
        let number = i64::from_str_radix(number.as_str(), number.radix()).ok();
        match number.filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.error_at(
                self.offset_of(key),
                format!("{key} must be from {} to {}", range.start(), range.end()),
            )),
        }
    }

    /// Reads a duration. Returns it as text that the server accepts.
    pub(super) fn span(&self, key: &str, zero: bool) -> Parsed<Option<String>> {
        self.parsed(key, |text| {
            let span = parse_limited(text)?;
            if span.is_zero() && !zero {
                return Err("must be greater than zero".to_owned());
            }
            Ok(seconds(span))
        })
    }

    /// Reads the jitter of a schedule.
    pub(super) fn jitter(&self, key: &str) -> Parsed<Option<String>> {
        self.parsed(key, |text| jitter(text).map(seconds))
    }

    /// Returns the elements of an array; empty if the key is missing.
    pub(super) fn array(&self, key: &str) -> Parsed<Vec<&'a Item<'a>>> {
        let array = self.value(key, "an array", DeValue::as_array)?;
        Ok(array.map_or_else(Vec::new, |array| array.iter().collect()))
    }

    /// Reads an array of strings.
    pub(super) fn strings(&self, key: &str) -> Parsed<Option<Vec<&'a str>>> {
        if self.get(key).is_none() {
            return Ok(None);
        }
        let text = |value: &'a Item<'a>| {
            let wrong = || self.error_at(value.span().start, format!("{key} must be strings"));
            value.get_ref().as_str().ok_or_else(wrong)
        };
        self.array(key)?.into_iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// Reads a table of any values as JSON; `wrong` is the error for any other value.
    pub(super) fn object(&self, key: &str, wrong: &str) -> Parsed<Option<Value>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) if value.get_ref().as_table().is_some() => {
                json_value(self, key, value).map(Some)
            }
            Some(value) => Err(self.error_at(value.span().start, wrong)),
        }
    }

    /// Returns the entries of a table of tables, in the order of the file; empty if the key is
    /// missing or not a table.
    pub(super) fn tables(&self, key: &str, text: &str) -> Vec<(&'a Key<'a>, &'a Item<'a>)> {
        let table = self.note(self.value(key, "a table", DeValue::as_table)).flatten();
        let mut entries: Vec<_> = table.map_or_else(Vec::new, |table| table.iter().collect());
        entries.sort_by_key(|(key, _)| start(text, key));
        entries
    }

    /// Adds the values of these keys to a document.
    pub(super) fn put_all(&self, document: &mut Map<String, Value>, keys: &[(&str, Read)]) {
        for (key, read) in keys {
            self.put(document, key, read(self, key));
        }
    }

    /// Adds a value to a document, if present; records its error if there is one.
    pub(super) fn put(
        &self,
        document: &mut Map<String, Value>,
        key: &str,
        value: Parsed<Option<impl Serialize>>,
    ) {
        let value = self.note(value).flatten();
        if let Some(value) = value.and_then(|value| serde_json::to_value(value).ok()) {
            document.insert(key.to_owned(), value);
        }
    }
}

fn seconds(span: Duration) -> String {
    format!("{}.{:06} seconds", span.as_secs(), span.subsec_micros())
}

/// Returns the type of a value with its article: `an integer`.
pub(super) fn kind(value: &DeValue<'_>) -> String {
    let article = if value.is_integer() || value.is_array() { "an" } else { "a" };
    format!("{article} {}", value.type_str())
}

/// Returns the offset of a key, or of the header that contains it.
pub(super) fn start(text: &str, key: &Key<'_>) -> usize {
    let at = key.span().start;
    let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let indent = text[line..at].len() - text[line..at].trim_start().len();
    if text[line + indent..at].starts_with('[') { line + indent } else { at }
}

/// Checks a job name by the rules of the schema.
pub(super) fn job_name(name: &str) -> Result<String, String> {
    terminal::label(name).map_err(|reason| format!("job name: {reason}"))?;
    if name.contains(|c: char| c == ',' || c.is_control()) || name.trim() != name {
        return Err(format!(
            "job name {name:?} must have no comma, control characters or surrounding blanks"
        ));
    }
    Ok(name.to_owned())
}

/// Converts a value of this key to JSON; dates and times become strings.
pub(super) fn json_value(section: &Section<'_>, key: &str, value: &Item<'_>) -> Parsed<Value> {
    let wrong = |what: &str| section.error_at(value.span().start, format!("{key}: {what}"));
    let number = |text: &str| text.parse::<Number>().map(Value::Number).ok();
    match value.get_ref() {
        DeValue::String(text) if text.contains('\0') => Err(wrong("a string contains a NUL byte")),
        DeValue::String(text) => Ok(Value::String(text.to_string())),
        DeValue::Boolean(truth) => Ok(Value::Bool(*truth)),
        DeValue::Datetime(time) => Ok(Value::String(time.to_string())),
        DeValue::Integer(whole) => i128::from_str_radix(whole.as_str(), whole.radix())
            .ok()
            .and_then(|whole| number(&whole.to_string()))
            .ok_or_else(|| wrong("an integer is too large")),
        DeValue::Float(float) => number(float.as_str().trim_start_matches('+'))
            .ok_or_else(|| wrong("JSON has no infinity and no NaN; use a string")),
        DeValue::Array(array) => {
            let values = array.iter().map(|value| json_value(section, key, value));
            values.collect::<Result<_, _>>().map(Value::Array)
        }
        DeValue::Table(table) => {
            let entries = table.iter().map(|(name, value)| {
                Ok((name.get_ref().to_string(), json_value(section, key, value)?))
            });
            entries.collect::<Result<_, _>>().map(Value::Object)
        }
    }
}
