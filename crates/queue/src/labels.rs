//! Reads tags, metadata and the other stored options of tasks from rows.

use pgmill_client::{Labels, StoredOptions};
use serde_json::{Map, Value};
use tokio_postgres::Row;
use tokio_postgres::types::Json;

use crate::error::QueueError;
use crate::row::{FromRow, column, from_row};

from_row! {
    row => Labels {
        tags: column::<Option<_>>(row, "tags")?.unwrap_or_default(),
        metadata: match column(row, "metadata")? {
            Some(Value::Object(metadata)) => metadata,
            _ => Map::new(),
        },
    }
}

/// Reads the column `options`, a JSON object.
impl FromRow for StoredOptions {
    fn from_row(row: &Row) -> Result<Self, QueueError> {
        Ok(column::<Option<Json<Self>>>(row, "options")?.map(|it| it.0).unwrap_or_default())
    }
}
