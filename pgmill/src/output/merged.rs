//! The output of one command on several databases.

use std::cell::RefCell;
use std::collections::BTreeMap;

use cli::{Exit, exit};
use serde_json::{Value, json};
use terminal::print_stderr;

use super::{Output, Part, Row};

/// What a command has printed on the database of one context.
pub(crate) struct ContextOutput {
    /// Name of the context.
    pub(crate) context: String,
    pub(crate) output: Output,
    pub(crate) exit_code: u8,
    /// The error of the command.
    pub(crate) error: Option<String>,
}

impl ContextOutput {
    fn parts(self) -> (String, Vec<Part>) {
        (self.context, self.output.recorded.map(RefCell::into_inner).unwrap_or_default())
    }

    /// Returns the object of this context in the JSON document.
    fn into_document(mut self) -> Value {
        let (exit_code, error) = (self.exit_code, self.error.take());
        let (context, parts) = self.parts();
        let document = parts.into_iter().find_map(|part| match part {
            Part::Document(document) => Some(document),
            _ => None,
        });
        json!({
            "context": context, "document": document, "error": error, "exit_code": exit_code,
        })
    }
}

/// Prints the outputs of all contexts: with `--json`, an array with an object for each context.
/// Otherwise, tables with the same headings become one table with the context in the first column.
/// If the command prints text as well, the output of each context has a heading of its own.
///
/// # Errors
/// As [`Output::document`].
pub(crate) fn print_merged(out: &Output, outputs: Vec<ContextOutput>) -> Exit {
    let notes = notes(&outputs);
    if out.json {
        let documents: Vec<Value> = outputs.into_iter().map(ContextOutput::into_document).collect();
        out.document(&documents)?;
        return print_notes(&notes);
    }
    let outputs: Vec<(String, Vec<Part>)> = outputs.into_iter().map(ContextOutput::parts).collect();
    let is_text = |part: &Part| matches!(part, Part::Text(_));
    if outputs.iter().any(|(_, parts)| parts.iter().any(is_text)) {
        print_each(out, outputs)?;
    } else {
        print_tables(out, outputs)?;
    }
    print_notes(&notes)
}

/// Returns the contexts of each note.
fn notes(outputs: &[ContextOutput]) -> BTreeMap<String, Vec<String>> {
    let mut notes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ContextOutput { context, output, .. } in outputs {
        let Some(recorded) = &output.recorded else { continue };
        for part in recorded.borrow().iter() {
            if let Part::Note(note) = part {
                notes.entry(note.clone()).or_default().push(context.clone());
            }
        }
    }
    notes
}

fn print_notes(notes: &BTreeMap<String, Vec<String>>) -> Exit {
    for (note, contexts) in notes {
        print_stderr(format_args!("{}: {note}", contexts.join(", ")));
    }
    Ok(exit::OK)
}

/// Prints the output of each context under its name, as head(1) does for files.
fn print_each(out: &Output, outputs: Vec<(String, Vec<Part>)>) -> Exit {
    let printed = |part: &Part| matches!(part, Part::Text(_) | Part::Table(_));
    let mut first = true;
    for (context, parts) in outputs.into_iter().filter(|it| it.1.iter().any(printed)) {
        let space = if std::mem::take(&mut first) { "" } else { "\n" };
        out.text(&format!("{space}==> {context} <=="))?;
        for part in parts {
            match part {
                Part::Text(text) => out.text(&text)?,
                Part::Table(rows) => out.print_table(rows)?,
                Part::Document(_) | Part::Counts(_) | Part::Note(_) => exit::OK,
            };
        }
    }
    Ok(exit::OK)
}

/// Prints one table for each kind of headings, in the order in which they occur first.
fn print_tables(out: &Output, outputs: Vec<(String, Vec<Part>)>) -> Exit {
    let mut counts: Vec<(String, Vec<(&'static str, i64)>)> = Vec::new();
    let mut tables: Vec<Vec<Row>> = Vec::new();
    for (context, parts) in outputs {
        for part in parts {
            match part {
                Part::Counts(numbers) => counts.push((context.clone(), numbers)),
                Part::Table(rows) => {
                    let rows = rows.into_iter().map(|row| row.after("database", &context));
                    let rows: Vec<Row> = rows.collect();
                    let Some(headings) = rows.first().map(Row::headings) else { continue };
                    match tables.iter_mut().find(|known| known[0].headings() == headings) {
                        Some(known) => known.extend(rows),
                        None => tables.push(rows),
                    }
                }
                Part::Document(_) | Part::Text(_) | Part::Note(_) => {}
            }
        }
    }
    let tables = totals(counts).into_iter().chain(tables);
    let printed: Vec<String> = tables.map(|rows| out.table(rows)).collect();
    if printed.is_empty() { Ok(exit::OK) } else { out.text(&printed.join("\n\n")) }
}

/// Returns the numbers of all contexts, with their sum in the last row; `None` if there are none.
fn totals(counts: Vec<(String, Vec<(&'static str, i64)>)>) -> Option<Vec<Row>> {
    let row = |name: &str, numbers: &[(&'static str, i64)]| {
        let add = |row: Row, &(heading, number): &_| row.text(heading, number);
        numbers.iter().fold(Row::of("database", name), add)
    };
    let mut sum: Vec<_> = counts.first()?.1.iter().map(|(heading, _)| (*heading, 0)).collect();
    let mut rows = Vec::new();
    for (context, numbers) in counts {
        for ((_, total), (_, number)) in sum.iter_mut().zip(&numbers) {
            *total += number;
        }
        rows.push(row(&context, &numbers));
    }
    rows.push(row("total", &sum));
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_total() {
        let counts = |context: &str, n| (context.to_owned(), vec![("pending", n), ("running", 0)]);
        let rows = totals(vec![counts("a", 3), counts("b", 4)]).unwrap();
        let expected = "DATABASE  PENDING  RUNNING\na         3        0\nb         4        0\n\
            total     7        0";
        assert_eq!(Output::plain().table(rows), expected);
        assert!(totals(Vec::new()).is_none());
    }
}
