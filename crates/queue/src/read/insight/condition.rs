//! Builds a WHERE clause from the requested conditions, and the values that they bind.
//!
//! The text contains only the conditions that are requested, so that the planner can use a partial
//! index. Values are always bound and never become part of the text.

use std::fmt::Write;

use conninfo::GenericClient;

use crate::error::QueueError;
use crate::row::{FromRow, Param, rows};

/// Conditions, joined by AND.
pub(super) struct Conditions {
    text: String,
    values: Vec<Box<dyn Param + Send>>,
}

impl Conditions {
    pub(super) fn new() -> Self {
        Self { text: "true".to_owned(), values: Vec::new() }
    }

    /// Adds a condition whose text is a constant of the program or built from one.
    pub(super) fn literal(&mut self, condition: &str) {
        let _ = write!(self.text, "\n    AND {condition}");
    }

    /// Adds a condition in which `?` stands for the value. Does nothing if the value is `None`.
    pub(super) fn bind(&mut self, condition: &str, value: Option<impl Param + Send + 'static>) {
        if let Some(value) = value {
            let place = self.placeholder(value);
            self.literal(&condition.replace('?', &place));
        }
    }

    /// Adds a value, and returns its placeholder.
    pub(super) fn placeholder(&mut self, value: impl Param + Send + 'static) -> String {
        self.values.push(Box::new(value));
        format!("${}", self.values.len())
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) async fn rows<T: FromRow>(
        &self,
        client: &impl GenericClient,
        statement: &str,
    ) -> Result<Vec<T>, QueueError> {
        let params: Vec<&dyn Param> = self.values.iter().map(|it| &**it as &dyn Param).collect();
        rows(client, statement, &params).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_are_not_requested_are_omitted() {
        let mut conditions = Conditions::new();
        conditions.bind("queue = ?", Some("etl"));
        conditions.bind("name LIKE ?", None::<String>);
        conditions.bind("id < ?", Some(7_i64));
        assert_eq!(conditions.text(), "true\n    AND queue = $1\n    AND id < $2");
    }
}
