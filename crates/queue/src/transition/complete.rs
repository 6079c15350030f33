//! running → finished, when the task has succeeded.
//!
//! The completion is sent on the task's own session, in the task's own transaction, so that effects
//! and completion commit together or not at all. It is never prepared under a name, because the
//! reset between tasks drops prepared statements. Until COMMIT ends, other sessions can read the text
//! of the statement in `pg_stat_activity`. It never contains the token, but at most a proof that the
//! caller knows the token, which is valid in this transaction only.

use std::time::Duration;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error};

use crate::task::Claim;
use crate::transition::fail::Report;

/// The task may have set another `client_encoding`, in which the server would read the report.
const COMPLETE_TASK: &str = "SELECT /* queue.complete_task */ mill.complete_with_proof($1, $2, \
    $3::pg_catalog.text::pg_catalog.xid8, $4, pg_catalog.convert_from($5, 'UTF8')::pg_catalog.jsonb)";

const COMPLETE: &str = "SELECT /* queue.complete */ mill.complete($1, $2, \
    $3::pg_catalog.text::pg_catalog.xid8, $4, $5, $6)";

/// SQLSTATE for a lost claim: another worker has claimed the task, or the task is finished.
pub const LOST: &str = "MT001";
/// SQLSTATE for a statement that ended the transaction that was begun for it.
pub const TRANSACTION_ENDED: &str = "MT002";

/// A task whose statement succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Success<'a> {
    /// The task's claim.
    pub claim: &'a Claim,
    /// Time from the start of the transaction to the end of the task's statement; `None` if the
    /// statement ended just now.
    pub ran_until: Option<Duration>,
    /// Report to record in history. An error in it is ignored.
    pub report: &'a Report,
}

impl<'a> Success<'a> {
    /// Returns a task whose statement ended just now.
    pub fn now(claim: &'a Claim, report: &'a Report) -> Self {
        Self { claim, ran_until: None, report }
    }
}

/// Completes all of the tasks or none, in the session's current transaction. `xact` is the result
/// of `pg_current_xact_id()` right after BEGIN; `None` in autocommit mode.
///
/// The caller keeps the claims until COMMIT has been acknowledged.
///
/// # Errors
/// SQLSTATE [`LOST`] or [`TRANSACTION_ENDED`], or an error that the tasks caused in their
/// transaction; in each case the transaction is aborted.
pub async fn complete(
    client: &Client,
    successes: &[Success<'_>],
    xact: Option<&str>,
) -> Result<(), Error> {
    if let ([Success { claim, ran_until: None, report }], Some(xact)) = (successes, xact) {
        // No transaction has the number 0.
        let number = xact.parse().unwrap_or_default();
        let report_bytes = report_json(report).map(|report| report.to_string().into_bytes());
        let params: [(&(dyn ToSql + Sync), Type); 5] = [
            (/* task_id */ &claim.id.0, Type::INT8),
            (/* proof */ &proof(claim, number), Type::TEXT),
            (/* xact */ &xact, Type::TEXT),
            (/* row_count */ &rows(report), Type::INT8),
            (/* report */ &report_bytes, Type::BYTEA),
        ];
        return client.query_typed(COMPLETE_TASK, &params).await.map(drop);
    }
    let ids: Vec<i64> = successes.iter().map(|success| success.claim.id.0).collect();
    let tokens: Vec<uuid::Uuid> = successes.iter().map(|success| success.claim.token.0).collect();
    let ran_until: Vec<Option<f64>> =
        successes.iter().map(|success| success.ran_until.map(|span| span.as_secs_f64())).collect();
    let rows: Vec<Option<i64>> = successes.iter().map(|success| rows(success.report)).collect();
    let reports: Vec<Option<Value>> =
        successes.iter().map(|success| report_json(success.report)).collect();
    client
        .query_typed(
            COMPLETE,
            &[
                (/* task_ids */ &ids, Type::INT8_ARRAY),
                (/* claim_tokens */ &tokens, Type::UUID_ARRAY),
                (/* xact */ &xact, Type::TEXT),
                (/* ran_until */ &ran_until, Type::FLOAT8_ARRAY),
                (/* row_counts */ &rows, Type::INT8_ARRAY),
                (/* reports */ &reports, Type::JSONB_ARRAY),
            ],
        )
        .await
        .map(drop)
}

/// Returns a statement that completes the task as [`complete`] does, for a message with several
/// statements. `None` if the task has a report, which has to be bound: the rest is hexadecimal
/// digits, which the server reads alike whatever the task has set.
#[must_use]
pub fn completion_statement(success: &Success<'_>, xact: &str) -> Option<String> {
    let Success { claim, ran_until: None, report } = success else { return None };
    if report_json(report).is_some() {
        return None;
    }
    let xact: u64 = xact.parse().ok()?;
    let rows = rows(report).map_or("NULL".to_owned(), |rows| rows.to_string());
    let (id, proof) = (claim.id, proof(claim, xact));
    Some(format!(
        "SELECT /* queue.complete_unreported */ mill.complete_with_proof({id}, '{proof}', '{xact}', {rows}, NULL)"
    ))
}

/// Returns the proof of `mill.complete_with_proof` that the caller knows the token.
fn proof(claim: &Claim, xact: u64) -> String {
    let hash = Sha256::new().chain_update(claim.token.0).chain_update(xact.to_be_bytes());
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn rows(report: &Report) -> Option<i64> {
    report.rows.map(|rows| i64::try_from(rows).unwrap_or(i64::MAX))
}

/// Returns notices, first rows and plan; `None` for most tasks, which have none of these.
fn report_json(report: &Report) -> Option<Value> {
    let mut object = Map::new();
    let parts = [("notices", &report.notices), ("result", &report.result), ("plan", &report.plan)];
    for (key, value) in parts {
        if let Some(value) = value {
            object.insert(key.to_owned(), value.clone());
        }
    }
    (!object.is_empty()).then_some(Value::Object(object))
}
