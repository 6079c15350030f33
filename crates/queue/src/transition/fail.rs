//! running → scheduled | blocked | pending | finished, after an attempt that did not succeed.
//!
//! Runs on a control session after the task's transaction has ended. Uses only the primary key.

use std::time::Duration;

use conninfo::GenericClient;
use pgmill_client::Outcome;
use serde_json::{Map, Value};

use crate::error::{Condition, QueueError};
use crate::row::{Param, one};
use crate::task::{Claim, Disposition};
use crate::transition::retry::RetryDecision;

const FAIL: &str = "SELECT /* queue.fail */ mill.fail($1, $2, $3::text::mill.outcome, $4, make_interval(secs => $5), $6)";

/// Data that an attempt records in history in addition to its outcome. The caller keeps it small.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Number of rows returned or affected, added up over all statements.
    pub rows: Option<u64>,
    /// Notices: `[{"severity", "message", …}]`.
    pub notices: Option<Value>,
    /// First rows: `{"columns", "rows", "truncated"}`.
    pub result: Option<Value>,
    /// Plan, in the format of EXPLAIN (FORMAT JSON).
    pub plan: Option<Value>,
    /// The error, if there was one.
    pub error: Option<DatabaseError>,
}

/// An error reported by PostgreSQL or by the worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseError {
    /// SQLSTATE; `None` if the error did not come from the server.
    pub sqlstate: Option<String>,
    /// The primary message.
    pub message: String,
    /// The detail.
    pub detail: Option<String>,
    /// The hint.
    pub hint: Option<String>,
    /// The context.
    pub context: Option<String>,
    /// Position in the statement, in characters from 1.
    pub position: Option<u32>,
    /// What caused the error, if not the task. Not recorded.
    pub condition: Option<Condition>,
}

impl Report {
    /// Returns the report in the format of `mill.record_attempt`; `None` if the report is empty.
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

/// Maximum size of an error field in history, in bytes.
const FIELD_LIMIT: usize = 16 * 1024;

/// Truncates the text, because an error may quote megabytes of data. Replaces NUL, which JSON in
/// PostgreSQL cannot contain.
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

/// Ends the attempt and the claim according to the decision. A task with a cancel request ends as
/// cancelled, whatever the outcome and the decision.
///
/// # Errors
/// The attempt may have been recorded in spite of an error. Another call then returns
/// [`Disposition::Lost`].
pub async fn fail(
    client: &impl GenericClient,
    claim: &Claim,
    outcome: Outcome,
    decision: RetryDecision,
    report: &Report,
) -> Result<Disposition, QueueError> {
    let (verdict, wait) = match decision {
        RetryDecision::Failure { retry_in } => ("failure", retry_in),
        RetryDecision::Transient { retry_in } | RetryDecision::Interrupted { retry_in } => {
            ("transient", retry_in)
        }
        RetryDecision::Final => ("final", Duration::ZERO),
    };
    let params: [&dyn Param; 6] = [
        /* task_id */ &claim.id.0,
        /* claim_token */ &claim.token.0,
        &outcome.as_str(),
        &verdict,
        /* retry_in */ &wait.as_secs_f64(),
        &report.to_json(),
    ];
    match one::<String>(client, FAIL, &params).await?.as_str() {
        "retried" => Ok(Disposition::Retried(outcome)),
        "finished" => Ok(Disposition::Finished(outcome)),
        "cancelled" => Ok(Disposition::Finished(Outcome::Cancelled)),
        "crashed" => Ok(Disposition::Finished(Outcome::Lost)),
        _ => Ok(Disposition::Lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unstorable_text_is_replaced_or_truncated() {
        assert_eq!(storable("a\0b"), Value::from("a\u{fffd}b"));
        let long = storable(&"ä".repeat(FIELD_LIMIT));
        assert_eq!(long.as_str().map(|text| text.chars().count()), Some(FIELD_LIMIT / 2 + 1));
    }

    #[test]
    fn an_empty_report_is_null() {
        assert_eq!(Report::default().to_json(), None);
    }
}
