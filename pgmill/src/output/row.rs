//! A row of a table: its fields with the headings of their columns. A list describes each of its
//! columns once, in the function that makes a row.

use std::borrow::{Borrow, BorrowMut};
use std::fmt;

use terminal::visible;

use super::Tone;

/// A row of a table.
#[derive(Default)]
pub(crate) struct Row(Vec<(&'static str, Field)>);

impl Row {
    /// A row that begins with this field.
    pub(crate) fn of(heading: &'static str, text: impl fmt::Display) -> Self {
        Self::default().text(heading, text)
    }

    pub(crate) fn text(mut self, heading: &'static str, text: impl fmt::Display) -> Self {
        self.0.push((heading, Field::new(text)));
        self
    }

    /// Adds an empty field for `None`.
    pub(crate) fn maybe(self, heading: &'static str, text: Option<impl fmt::Display>) -> Self {
        match text {
            Some(text) => self.text(heading, text),
            None => self.text(heading, ""),
        }
    }

    /// Adds an empty field for zero, so that other counts stand out.
    pub(crate) fn count(self, heading: &'static str, count: impl Into<i64>) -> Self {
        let count = count.into();
        self.maybe(heading, (count != 0).then_some(count))
    }

    /// Sets the tone of the last field.
    pub(crate) fn tone(mut self, tone: Tone) -> Self {
        if let Some((_, field)) = self.0.last_mut() {
            field.tone = tone;
        }
        self
    }

    /// Sets the tone of the last field to [`Tone::Warning`], if it needs attention.
    pub(crate) fn warn_if(self, odd: bool) -> Self {
        if odd { self.tone(Tone::Warning) } else { self }
    }

    pub(crate) fn headings(&self) -> Vec<&'static str> {
        self.0.iter().map(|(heading, _)| *heading).collect()
    }

    /// Returns the row with one more field at its beginning.
    pub(super) fn after(mut self, heading: &'static str, text: impl fmt::Display) -> Self {
        self.0.insert(0, (heading, Field::new(text)));
        self
    }

    pub(super) fn into_fields(self) -> Vec<Field> {
        self.0.into_iter().map(|(_, field)| field).collect()
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

    pub(super) fn into_parts(self) -> (String, Tone) {
        (self.text, self.tone)
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
