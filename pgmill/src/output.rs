//! Standard output: documents, tables and their parts. Only `pgmill top` and the hidden
//! `__complete` write to it elsewhere.
//!
//! | content | file |
//! |---|---|
//! | a row of a table: its fields with the headings of their columns | `row` |
//! | lists as document or table, with their limit, default period and notes | `list` |
//! | times, activities, tasks and tags as text; tones of states and outcomes | `format` |
//! | graphs in the syntax of Mermaid and Graphviz | `graph` |
//! | the output of one command on several databases, in one document or table | `merged` |

pub(crate) mod format;
pub(crate) mod graph;
pub(crate) mod list;
mod merged;
mod row;

use cli::{Exit, exit};
use std::cell::RefCell;
use std::fmt;
use std::io::{self, IsTerminal};

use comfy_table::{Cell, Color, ContentArrangement, Table, TableStyle, presets};
use serde::Serialize;
use terminal::{print_stderr, visible, wrap_table};

use crate::args::Global;

pub(crate) use merged::{ContextOutput, print_merged};
pub(crate) use row::{Field, Row};

/// The severity of a text; on a terminal, its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Neutral.
    #[default]
    Plain,
    /// As expected.
    Success,
    /// Needs attention.
    Warning,
    /// An error.
    Error,
}

impl Tone {
    /// The tone of the state of a run, or of another state with the same name.
    pub(crate) fn of_end(state: &str) -> Self {
        match state {
            "succeeded" => Self::Success,
            "failed" => Self::Error,
            "cancelled" => Self::Warning,
            _ => Self::Plain,
        }
    }
}

/// A part of the output of a command.
enum Part {
    Document(serde_json::Value),
    Text(String),
    Table(Vec<Row>),
    /// Named numbers, which can be added up.
    Counts(Vec<(&'static str, i64)>),
    /// A message to the user, which is no result.
    Note(String),
}

/// The output format of this invocation.
pub(crate) struct Output {
    /// Print one JSON document instead of text.
    pub(crate) json: bool,
    colour: bool,
    /// Name of the context whose database the command reads.
    context: Option<String>,
    /// The output of a command that runs on one of several databases, which is printed together
    /// with the output of the others.
    recorded: Option<RefCell<Vec<Part>>>,
}

impl Output {
    pub(crate) fn new(global: &Global) -> Self {
        let plain = global.no_color.as_deref().is_some_and(|value| !value.is_empty());
        Self {
            json: global.json,
            colour: !plain && io::stdout().is_terminal(),
            context: global.context().map(str::to_owned),
            recorded: None,
        }
    }

    /// Text without colours.
    pub(crate) fn plain() -> Self {
        Self { json: false, colour: false, context: None, recorded: None }
    }

    /// Returns an output in the same format that records what a command prints on the database of a
    /// context.
    pub(crate) fn recording(&self, context: &str) -> Self {
        let (json, colour) = (self.json, self.colour);
        Self { json, colour, context: Some(context.to_owned()), recorded: Some(RefCell::default()) }
    }

    /// Whether the output is printed together with that of other databases.
    pub(crate) fn is_merged(&self) -> bool {
        self.recorded.is_some()
    }

    /// Returns a command line that begins with `pgmill`, for the database of this output.
    pub(crate) fn in_context(&self, command: &str) -> String {
        match &self.context {
            Some(name) => command.replacen("pgmill", &format!("pgmill --context {name}"), 1),
            None => command.to_owned(),
        }
    }

    /// Whether colours are enabled: standard output is a terminal, and they are not switched off.
    pub(crate) fn colour(&self) -> bool {
        self.colour
    }

    /// Prints one JSON document. As all functions that print, returns the exit code of success.
    ///
    /// # Errors
    /// Fails if writing to standard output fails, except for a closed pipe.
    pub(crate) fn document(&self, value: &impl Serialize) -> Exit {
        if self.recorded.is_some() {
            let value = serde_json::to_value(value).map_err(io::Error::from)?;
            return self.record(Part::Document(value));
        }
        let text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
        self.text(&text)
    }

    /// Prints text and a newline.
    ///
    /// # Errors
    /// As [`Output::document`].
    pub(crate) fn text(&self, text: &str) -> Exit {
        if self.recorded.is_some() {
            return self.record(Part::Text(text.to_owned()));
        }
        cli::print(|out| writeln!(out, "{text}"))?;
        Ok(exit::OK)
    }

    /// Prints the document with `--json`, else the text, whose control characters are escaped.
    pub(crate) fn answer(&self, document: impl Serialize, text: impl AsRef<str>) -> Exit {
        self.shown(&document, || visible(text.as_ref()))
    }

    /// Prints the document with `--json`, else the text.
    pub(crate) fn shown(&self, document: &impl Serialize, text: impl FnOnce() -> String) -> Exit {
        if self.json { self.document(document) } else { self.text(&text()) }
    }

    /// Prints a table, unless it has no rows.
    ///
    /// # Errors
    /// As [`Output::document`].
    pub(crate) fn print_table(&self, rows: Vec<Row>) -> Exit {
        match rows.is_empty() {
            _ if self.recorded.is_some() => self.record(Part::Table(rows)),
            true => Ok(exit::OK),
            false => self.text(&self.table(rows)),
        }
    }

    /// Records numbers that are printed with their total over all databases.
    pub(crate) fn counts(&self, counts: Vec<(&'static str, i64)>) -> Exit {
        self.record(Part::Counts(counts))
    }

    /// Keeps a part for the output of all databases, if there are several.
    fn record(&self, part: Part) -> Exit {
        if let Some(recorded) = &self.recorded {
            recorded.borrow_mut().push(part);
        }
        Ok(exit::OK)
    }

    /// Writes a message that is no result to standard error.
    pub(crate) fn note(&self, message: impl fmt::Display) {
        match &self.recorded {
            Some(recorded) => recorded.borrow_mut().push(Part::Note(message.to_string())),
            None => print_stderr(message),
        }
    }

    /// Adds the colour of a tone.
    pub(crate) fn paint(&self, text: &str, tone: Tone) -> String {
        let code = match tone {
            Tone::Success => "32",
            Tone::Warning => "33",
            Tone::Error => "31",
            Tone::Plain => return text.to_owned(),
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Formats rows under upper-case headings, at most as wide as the terminal if words allow that.
    pub(crate) fn table(&self, rows: Vec<Row>) -> String {
        let headings = rows.first().map(Row::headings).unwrap_or_default();
        let headings = headings.iter().map(|heading| heading.to_uppercase()).collect();
        let rows = rows.into_iter().map(Row::into_fields).collect();
        self.framed(presets::NOTHING, headings, rows)
    }

    /// Formats rows that a task returned, with unchanged column names and with borders.
    pub(crate) fn rows(&self, columns: &[String], rows: Vec<Vec<Field>>) -> String {
        let columns: Vec<String> = columns.iter().map(|name| visible(name)).collect();
        self.framed(presets::UTF8_FULL_CONDENSED, columns, rows)
    }

    fn framed(
        &self,
        style: TableStyle,
        mut headings: Vec<String>,
        mut rows: Vec<Vec<Field>>,
    ) -> String {
        let borderless = style == presets::NOTHING;
        let mut table = Table::new();
        // The blanks on both sides of a cell, and its left border.
        wrap_table(table.width(), if borderless { 2 } else { 3 }, &mut headings, &mut rows);
        table.load_style(style);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(headings);
        for fields in rows {
            table.add_row(fields.into_iter().map(|field| self.cell(field)).collect::<Vec<Cell>>());
        }
        if borderless {
            for column in table.column_iter_mut() {
                column.set_padding((0, 2));
            }
        }
        table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }

    fn cell(&self, field: Field) -> Cell {
        let (text, tone) = field.into_parts();
        let cell = Cell::new(text);
        match tone {
            _ if !self.colour => cell,
            Tone::Plain => cell,
            Tone::Success => cell.fg(Color::Green),
            Tone::Warning => cell.fg(Color::Yellow),
            Tone::Error => cell.fg(Color::Red),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_no_borders_and_no_trailing_blanks() {
        let row =
            |queue, pending| Row::of("queue", queue).tone(Tone::Error).count("pending", pending);
        assert_eq!(
            Output::plain().table(vec![row("etl", 12), row("default", 0)]),
            "QUEUE    PENDING\netl      12\ndefault"
        );
    }

    #[test]
    fn colours_are_off_without_a_terminal() {
        assert_eq!(Output::plain().paint("failed", Tone::Error), "failed");
    }
}
