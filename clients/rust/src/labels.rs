//! Tags and metadata, the labels of tasks, jobs, runs and schedules, and the options of a task that
//! pgmill shows together with them.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use crate::traceparent::Traceparent;
use crate::vocabulary::Isolation;

/// Tags and metadata of a task, a job, a run or a schedule.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Labels {
    /// Tags, sorted.
    #[serde(default, deserialize_with = "or_default")]
    pub tags: Vec<String>,
    /// Metadata: values that the caller provides, by key.
    #[serde(default, deserialize_with = "or_default")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: Map<String, Value>,
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
        (!self.is_empty()).then(|| json!(self))
    }

    /// Returns the tags as text; `None` if there are none.
    #[must_use]
    pub fn tags_text(&self) -> Option<String> {
        (!self.tags.is_empty()).then(|| self.tags.join(", "))
    }
}

/// Options of a task that are read and shown as a whole. A field has the name of its attribute of the
/// type `mill.task_options`; its `arg` is the flag of `enqueue`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "Execution"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredOptions {
    /// Tags and metadata.
    #[cfg_attr(feature = "clap", arg(skip))]
    #[serde(flatten)]
    pub labels: Labels,
    /// Isolation level of the task's transaction; `None` for the default of the login and the
    /// database.
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "LEVEL", value_parser = clap::builder::TypedValueParser::try_map(
            clap::builder::PossibleValuesParser::new(Isolation::ALL.iter().map(|it| it.as_str())),
            |text| text.parse::<Isolation>()
        ),
        help = "Isolation level of the transaction; with --mode autocommit, of the transactions that the statement \
            opens [default: that of the login and the database]"
    ))]
    #[serde(default)]
    pub isolation: Option<Isolation>,
    /// Whether the params of the finished task are stored; `None` for the default of the queue. In
    /// a stored task: `Some(false)` if it has params that are not stored.
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        help = "Whether the params of the task are stored after its end [default: as set for the queue]"
    ))]
    #[serde(default)]
    pub store_params: Option<bool>,
    /// Whether notices, result and plan of the finished task are stored, as for `store_params`.
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        help = "Whether notices, first rows and plan are stored after the end of the task [default: as set for the \
            queue]"
    ))]
    #[serde(default)]
    pub store_output: Option<bool>,
    /// Trace context of the caller.
    #[cfg_attr(feature = "clap", arg(skip))]
    #[serde(default, deserialize_with = "valid_or_none")]
    pub traceparent: Option<Traceparent>,
}

impl StoredOptions {
    /// Returns what is not stored of the finished task; `None` if everything is stored.
    #[must_use]
    pub fn not_stored(&self) -> Option<&'static str> {
        match (self.store_params, self.store_output) {
            (Some(false), Some(false)) => Some("params, output"),
            (Some(false), _) => Some("params"),
            (_, Some(false)) => Some("output"),
            _ => None,
        }
    }
}

/// Reads an invalid value, which the functions of the schema refuse, as none.
fn valid_or_none<'de, D: Deserializer<'de>>(source: D) -> Result<Option<Traceparent>, D::Error> {
    let text: Option<String> = Option::deserialize(source)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

/// Reads JSON null as the default.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    source: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(source)?.unwrap_or_default())
}
