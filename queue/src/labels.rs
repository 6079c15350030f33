//! Tags and metadata, the labels of tasks, jobs, runs and schedules. They can be searched and
//! shown, but nothing in the queue depends on them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::row::{column, from_row};

/// Tags and metadata of a task, a job, a run or a schedule.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, utoipa::ToSchema)]
pub struct Labels {
    /// Tags, sorted.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Metadata: values that the caller provides, by key.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
}

from_row! {
    row => Labels {
        tags: column::<Option<_>>(row, "tags")?.unwrap_or_default(),
        metadata: match column(row, "metadata")? {
            Some(Value::Object(metadata)) => metadata,
            _ => Map::new(),
        },
    }
}

impl Labels {
    /// Returns whether there are neither tags nor metadata.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty() && self.metadata.is_empty()
    }

    /// Returns the argument `options` for the functions of the schema, which check its contents;
    /// `None` if there are no labels.
    #[must_use]
    pub fn options(&self) -> Option<Value> {
        (!self.is_empty()).then(|| json!({ "tags": self.tags, "metadata": self.metadata }))
    }

    /// Returns the tags as text; `None` if there are none.
    #[must_use]
    pub fn tags_text(&self) -> Option<String> {
        (!self.tags.is_empty()).then(|| self.tags.join(", "))
    }
}
