//! Builds a WHERE clause from the requested conditions, and the values that they bind.
//!
//! The text contains only the conditions that are requested, so that the planner can use a partial
//! index. Values are always bound and never become part of the text.

use std::fmt::Write;

use conninfo::GenericClient;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::error::QueueError;

type Value = Box<dyn ToSql + Sync + Send>;

/// Conditions, joined by AND.
pub(super) struct Conditions {
    text: String,
    values: Vec<(Value, Type)>,
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
    pub(super) fn bind<T: ToSql + Sync + Send + 'static>(
        &mut self,
        condition: &str,
        value: Option<T>,
        kind: Type,
    ) {
        if let Some(value) = value {
            let place = self.placeholder(value, kind);
            self.literal(&condition.replace('?', &place));
        }
    }

    /// Adds a value, and returns its placeholder.
    pub(super) fn placeholder(
        &mut self,
        value: impl ToSql + Sync + Send + 'static,
        kind: Type,
    ) -> String {
        self.values.push((Box::new(value), kind));
        format!("${}", self.values.len())
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) async fn query(
        &self,
        client: &impl GenericClient,
        statement: &str,
    ) -> Result<Vec<Row>, QueueError> {
        let values: Vec<(&(dyn ToSql + Sync), Type)> = self
            .values
            .iter()
            .map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone()))
            .collect();
        Ok(client.query_typed(statement, &values).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_are_not_requested_are_omitted() {
        let mut conditions = Conditions::new();
        conditions.bind("queue = ?", Some("etl"), Type::TEXT);
        conditions.bind("name LIKE ?", None::<String>, Type::TEXT);
        conditions.bind("id < ?", Some(7_i64), Type::INT8);
        assert_eq!(conditions.text(), "true\n    AND queue = $1\n    AND id < $2");
    }
}
