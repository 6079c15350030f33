//! Standard output: documents, tables and their parts. No other module writes to it.

pub(crate) mod format;
pub(crate) mod graph;
pub(crate) mod list;

use cli::Failure;
use std::borrow::{Borrow, BorrowMut};
use std::fmt;
use std::io::{self, IsTerminal};

use comfy_table::{Cell, Color, ContentArrangement, Table, TableStyle, presets};
use serde::Serialize;
use terminal::{visible, wrap_table};

use crate::args::Global;

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

/// The output format of this invocation.
pub(crate) struct Output {
    /// Print one JSON document instead of text.
    pub(crate) json: bool,
    colour: bool,
}

impl Output {
    pub(crate) fn new(global: &Global) -> Self {
        let plain = global.no_color.as_deref().is_some_and(|value| !value.is_empty());
        Self { json: global.json, colour: !plain && io::stdout().is_terminal() }
    }

    /// Text without colours.
    pub(crate) fn plain() -> Self {
        Self { json: false, colour: false }
    }

    /// Whether colours are enabled: standard output is a terminal, and they are not switched off.
    pub(crate) fn colour(&self) -> bool {
        self.colour
    }

    /// Prints one JSON document.
    ///
    /// # Errors
    /// Fails if writing to standard output fails, except for a closed pipe.
    pub(crate) fn document(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
        self.text(&text)
    }

    /// Prints text and a newline.
    ///
    /// # Errors
    /// As [`Output::document`].
    #[expect(clippy::unused_self, reason = "printing requires an `Output`")]
    pub(crate) fn text(&self, text: &str) -> Result<(), Failure> {
        cli::print(|out| writeln!(out, "{text}")).map_err(Failure::from)
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
    pub(crate) fn table(&self, headings: &[&str], rows: Vec<Vec<Field>>) -> String {
        let headings: Vec<String> = headings.iter().map(|heading| heading.to_uppercase()).collect();
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
        let cell = Cell::new(field.text);
        match field.tone {
            _ if !self.colour => cell,
            Tone::Plain => cell,
            Tone::Success => cell.fg(Color::Green),
            Tone::Warning => cell.fg(Color::Yellow),
            Tone::Error => cell.fg(Color::Red),
        }
    }
}

/// One field of a table.
pub(crate) struct Field {
    text: String,
    tone: Tone,
}

impl Field {
    pub(crate) fn new(text: impl fmt::Display) -> Self {
        Self { text: visible(&text.to_string()), tone: Tone::Plain }
    }

    /// An empty field for `None`.
    pub(crate) fn or_blank(text: Option<impl fmt::Display>) -> Self {
        text.map_or_else(|| Self::new(""), Self::new)
    }

    /// An empty field for zero, so that other counts stand out.
    pub(crate) fn count(count: i64) -> Self {
        Self::or_blank((count != 0).then_some(count))
    }

    pub(crate) fn tone(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }
}

impl Borrow<String> for Field {
    fn borrow(&self) -> &String {
        &self.text
    }
}

impl BorrowMut<String> for Field {
    fn borrow_mut(&mut self) -> &mut String {
        &mut self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_no_borders_and_no_trailing_blanks() {
        let rows = vec![
            vec![Field::new("etl"), Field::count(12)],
            vec![Field::new("default").tone(Tone::Error), Field::count(0)],
        ];
        assert_eq!(
            Output::plain().table(&["queue", "pending"], rows),
            "QUEUE    PENDING\netl      12\ndefault"
        );
    }

    #[test]
    fn colours_are_off_without_a_terminal() {
        assert_eq!(Output::plain().paint("failed", Tone::Error), "failed");
    }
}
