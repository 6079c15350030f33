//! running → scheduled | pending | finished, without success.
//!
//! Runs on a control session after the task's transaction is over. Relies on the primary key only.

use std::time::Duration;

use serde_json::{Map, Value};
use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::error::QueueError;
use crate::retry::RetryDecision;
use crate::task::{Claim, Outcome};

const FAIL: &str = "/* queue.fail */
SELECT mill.fail($1, $2, $3::text::mill.outcome, $4, make_interval(secs => $5), $6)";

/// What an attempt leaves in history besides its outcome. Whoever fills it keeps it small.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Rows returned or affected, over all statements.
    pub rows: Option<u64>,
    /// `[{"severity", "message", …}]`.
    pub notices: Option<Value>,
    /// `{"columns", "rows", "truncated"}`.
    pub result: Option<Value>,
    /// As EXPLAIN tells it.
    pub plan: Option<Value>,
    /// The error, if there was one.
    pub error: Option<DatabaseError>,
}

/// An error as PostgreSQL tells it, or as the worker does in its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseError {
    /// Five characters; none if the error did not come from the server.
    pub sqlstate: Option<String>,
    /// What went wrong.
    pub message: String,
    /// More about it.
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// Where it happened.
    pub context: Option<String>,
    /// Character of the statement, from 1.
    pub position: Option<u32>,
}

impl Report {
    /// As `mill.record_attempt` reads it; `null` when there is nothing to tell.
    #[must_use]
    pub fn to_json(&self) -> Option<Value> {
        let mut object = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                object.insert(key.to_owned(), value);
            }
        };
        put("rows", self.rows.map(Value::from));
        put("notices", self.notices.clone());
        put("result", self.result.clone());
        if let Some(fault) = &self.error {
            put("sqlstate", fault.sqlstate.clone().map(Value::from));
            put("message", Some(storable(&fault.message)));
            put("detail", fault.detail.as_deref().map(storable));
            put("hint", fault.hint.as_deref().map(storable));
            put("context", fault.context.as_deref().map(storable));
            put("position", fault.position.map(Value::from));
        }
        (!object.is_empty()).then_some(Value::Object(object))
    }
}

/// Longest text of an error field that history keeps, in bytes.
const FIELD_LIMIT: usize = 16 * 1024;

/// JSON in PostgreSQL has no NUL, and an error may quote megabytes of data.
fn storable(text: &str) -> Value {
    let mut end = text.len().min(FIELD_LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut kept = text[..end].replace('\0', "\u{fffd}");
    if end < text.len() {
        kept.push('…');
    }
    Value::from(kept)
}

/// What became of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// It will be attempted again.
    Retried,
    /// It has ended.
    Finished,
    /// It was no longer this worker's to fail: nothing was changed.
    Lost,
}

/// Ends the attempt and the claim as the verdict says. A task with a cancel request ends as
/// cancelled whatever the verdict.
///
/// # Errors
/// Database trouble: the attempt may be recorded all the same. Then another try answers `Lost`.
pub async fn fail(
    client: &impl GenericClient,
    claim: &Claim,
    outcome: Outcome,
    verdict: RetryDecision,
    report: &Report,
) -> Result<Failed, QueueError> {
    let (word, wait) = match verdict {
        RetryDecision::Failure { retry_in } => ("failure", retry_in),
        RetryDecision::Transient { retry_in } => ("transient", retry_in),
        RetryDecision::Final => ("final", Duration::ZERO),
    };
    let rows = client
        .query_typed(
            FAIL,
            &[
                (&claim.id.0, Type::INT8),
                (&claim.token.0, Type::UUID),
                (&outcome.as_str(), Type::TEXT),
                (&word, Type::TEXT),
                (&wait.as_secs_f64(), Type::FLOAT8),
                (&report.to_json(), Type::JSONB),
            ],
        )
        .await?;
    match rows[0].get(0) {
        "retried" => Ok(Failed::Retried),
        "finished" => Ok(Failed::Finished),
        _ => Ok(Failed::Lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_history_cannot_hold_is_replaced() {
        assert_eq!(storable("a\0b"), Value::from("a\u{fffd}b"));
        let long = storable(&"ä".repeat(FIELD_LIMIT));
        assert_eq!(long.as_str().map(|text| text.chars().count()), Some(FIELD_LIMIT / 2 + 1));
    }

    #[test]
    fn an_empty_report_is_null() {
        assert_eq!(Report::default().to_json(), None);
    }
}
