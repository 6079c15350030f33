//! Rows of a table that another system exported, as CSV or as JSON.

use std::collections::BTreeMap;

use cli::Failure;
use queue::scan;
use serde_json::{Deserializer, Map, Value};

use super::csv;

/// A row: its values by column. A value that is null or an empty CSV field is absent.
#[derive(Debug)]
pub(crate) struct Row {
    /// Where the row is, for rows without an id: `line 3` of a CSV file, or `row 3`.
    pub(crate) place: String,
    values: BTreeMap<String, Value>,
}

impl Row {
    pub(crate) fn new(place: String, object: Map<String, Value>) -> Self {
        let values = object.into_iter().filter(|(_, value)| !value.is_null()).collect();
        Self { place, values }
    }

    pub(crate) fn get(&self, column: &str) -> Option<&Value> {
        self.values.get(column)
    }

    /// Returns a text, or a number as text.
    pub(crate) fn text(&self, column: &str) -> Option<String> {
        match self.get(column)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(truth) => Some(truth.to_string()),
            _ => None,
        }
    }

    /// Returns a text that is not empty.
    pub(crate) fn name(&self, column: &str) -> Option<String> {
        self.text(column).filter(|text| !text.is_empty())
    }

    /// Returns a truth value as PostgreSQL writes it, in CSV or in JSON.
    ///
    /// # Errors
    /// Fails for any other value.
    pub(crate) fn truth(&self, column: &str, default: bool) -> Result<bool, String> {
        match self.text(column).as_deref() {
            None if self.get(column).is_none() => Ok(default),
            Some("t" | "true") => Ok(true),
            Some("f" | "false") => Ok(false),
            _ => Err(format!("{column} is not true or false")),
        }
    }

    /// Returns a whole number.
    ///
    /// # Errors
    /// Fails for any other value.
    pub(crate) fn whole(&self, column: &str) -> Result<Option<i64>, String> {
        let Some(value) = self.get(column) else { return Ok(None) };
        let number = self.text(column).and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| format!("{column} is not a whole number: {value}"))
    }
}

/// Reads the rows of a file. JSON is an array of objects, or objects one after another; any other
/// text is CSV with the names of the columns in its first line.
///
/// # Errors
/// Fails if the text is neither, or lacks a required column.
pub(crate) fn read(text: &str, required: &[&str]) -> Result<Vec<Row>, Failure> {
    let text = scan::without_byte_order_mark(text);
    let rows = match text.trim_start().chars().next() {
        None => return Err(Failure::usage("the file is empty")),
        Some('[' | '{') => from_json(text),
        Some(_) => from_csv(text, required),
    };
    rows.map_err(Failure::usage)
}

fn from_json(text: &str) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for value in Deserializer::from_str(text).into_iter::<Value>() {
        match value.map_err(|error| format!("not valid JSON: {error}"))? {
            Value::Array(values) => {
                for value in values {
                    rows.push(object(value, rows.len() + 1)?);
                }
            }
            value => rows.push(object(value, rows.len() + 1)?),
        }
    }
    Ok(rows)
}

/// Converts an object to a row.
///
/// # Errors
/// Fails for any other value.
pub(crate) fn object(value: Value, number: usize) -> Result<Row, String> {
    match value {
        Value::Object(object) => Ok(Row::new(format!("row {number}"), object)),
        _ => Err(format!("row {number} is not a JSON object")),
    }
}

fn from_csv(text: &str, required: &[&str]) -> Result<Vec<Row>, String> {
    let at = |(line, message): csv::LineError| format!("line {line}: {message}");
    let mut lines = csv::records(text).map_err(at)?.into_iter();
    let (_, columns) = lines.next().ok_or("the file is empty")?;
    let columns: Vec<String> = columns.iter().map(|name| name.trim().to_lowercase()).collect();
    if let Some(missing) = required.iter().find(|name| !columns.iter().any(|it| it == *name)) {
        return Err(format!("line 1: missing column {missing}"));
    }
    let row = |(line, fields): (usize, Vec<String>)| {
        if fields.len() != columns.len() {
            return Err(format!(
                "line {line}: {} fields, expected {}",
                fields.len(),
                columns.len()
            ));
        }
        let named = columns.iter().cloned().zip(fields);
        let given = named.filter(|(_, field)| !field.is_empty());
        let values = given.map(|(name, field)| (name, Value::String(field))).collect();
        Ok(Row { place: format!("line {line}"), values })
    };
    lines.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_and_json_give_the_same_rows() {
        let csv = "\u{feff}id,Name,active\r\n7,\"a, \"\"b\"\"\nc\",t\n8,,f\n";
        let json = r#"[{"id": 7, "name": "a, \"b\"\nc", "active": true}]
            {"id": 8, "name": null, "active": false}"#;
        for text in [csv, json] {
            let rows = read(text, &["id"]).unwrap();
            let seen: Vec<_> = rows
                .iter()
                .map(|it| (it.text("id"), it.name("name"), it.truth("active", true)))
                .collect();
            let some = |text: &str| Some(text.to_owned());
            let first = (some("7"), some("a, \"b\"\nc"), Ok(true));
            assert_eq!(seen, [first, (some("8"), None, Ok(false))]);
            assert_eq!(rows[1].whole("id"), Ok(Some(8)));
            assert!(rows[0].whole("name").is_err() && rows[0].truth("name", true).is_err());
        }
        assert_eq!(read(csv, &[]).unwrap()[1].place, "line 4");
    }

    #[test]
    fn a_file_of_another_kind_is_refused() {
        for (text, message) in [
            ("", "the file is empty"),
            (" \n", "the file is empty"),
            ("a,b\n1,2", "line 1: missing column id"),
            ("id,b\n1", "line 2: 1 fields, expected 2"),
            ("id\n\"x", "line 2: a quote is not closed"),
            ("[{\"id\": 1}", "not valid JSON: EOF while parsing a list at line 1 column 10"),
            ("[1]", "row 1 is not a JSON object"),
            ("{} 7", "row 2 is not a JSON object"),
        ] {
            assert_eq!(read(text, &["id"]).unwrap_err().message(), message, "{text}");
        }
    }
}
