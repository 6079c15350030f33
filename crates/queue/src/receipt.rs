//! Receipts of tasks that ran in a target, which is another database than the queue's. The statements
//! of this file run in the target; `receipt/schema.sql` explains receipts and epochs. What the queue
//! records about them is in [`crate::transition::resolve_receipt`].

use std::collections::HashMap;
use std::time::Duration;

use conninfo::GenericClient;
use serde_json::Value;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error};
use uuid::Uuid;

use crate::error::QueueError;
use crate::row::{column, one, only, query};

/// The schema of a target, which `pgmill target init` applies.
pub const SCHEMA: &str = include_str!("receipt/schema.sql");

/// SQLSTATE of a task that has already succeeded in its target.
pub const DONE: &str = "MT003";
/// SQLSTATE of an attempt that was resolved: the queue no longer expects it to commit.
pub const FENCED: &str = "MT004";

/// Returns the statements that allow a login to use the receipts. The cast to `regrole` raises an
/// error for an unknown role.
const GRANT: &str =
    "SELECT /* queue.grant_target */ format('GRANT USAGE ON SCHEMA mill_target TO %1$s;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA mill_target TO %1$s', quote_ident($1)::regrole) AS grants";

const READY: &str =
    "SELECT /* queue.target_ready */ to_regclass('mill_target.receipts') IS NOT NULL AS installed,
    coalesce(has_function_privilege(to_regprocedure(
        'mill_target.complete(uuid, bigint, xid8, bigint, jsonb)')::oid, 'EXECUTE')
        AND has_schema_privilege(to_regnamespace('mill_target')::oid, 'USAGE'), false) AS granted,
    pg_is_in_recovery() AS standby";

/// The task may have set another `client_encoding`, in which the server would read the result. A
/// database with another encoding than UTF8, whose `jsonb` cannot contain every character, stores a
/// string with the document in ASCII.
const WRITE_RECEIPT: &str = "SELECT /* queue.write_receipt */ mill_target.complete($1, $2, \
    $3::pg_catalog.text::pg_catalog.xid8, $4, \
    (SELECT CASE WHEN pg_catalog.current_setting('server_encoding') OPERATOR(pg_catalog.=) 'UTF8' \
        THEN document::pg_catalog.jsonb ELSE pg_catalog.to_jsonb(document) END \
        FROM pg_catalog.convert_from($5, 'UTF8') AS document))";

const RESOLVE: &str = "SELECT /* queue.resolve */ s.task, s.epoch, s.done, s.rows, s.ran_seconds, s.result FROM mill_target.resolve($1, $2) AS s";

const STORE_EPOCH: &str = "SELECT /* queue.store_epoch */ mill_target.store_epoch($1)";

const OLD_RECEIPTS: &str = "SELECT /* queue.old_receipts */ coalesce(array_agg(r), '{}') FROM mill_target.old_receipts(make_interval(secs => $1), $2) AS r";

const FORGET: &str = "SELECT /* queue.forget_receipts */ mill_target.forget($1)";

const MISSING: &str = "SELECT /* queue.missing_receipts */ coalesce(array_agg(m), '{}') FROM mill_target.missing($1) AS m";

/// The id of a task's receipt, and the epoch of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Id of the receipt, random, the same in all attempts of the task.
    pub id: Uuid,
    /// Epoch of the claim. Later claims have higher epochs.
    pub epoch: i64,
}

/// What the target has about a task after an attempt was resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// Highest epoch known to the target.
    pub epoch: i64,
    /// The receipt; `None` if the task has not succeeded.
    pub done: Option<Done>,
}

/// A receipt of a success, as found in the target.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Rows returned or affected.
    pub rows: Option<i64>,
    /// Run time in the target.
    pub ran: Duration,
    /// First rows that the statement returned, for tasks of a run.
    pub result: Option<Value>,
}

/// Creates or updates the schema in the target, and allows these logins to use it.
///
/// # Errors
/// Fails if the role may not create schemas, or if a login does not exist.
pub async fn init(client: &impl GenericClient, logins: &[String]) -> Result<(), QueueError> {
    client.batch_execute(SCHEMA).await?;
    for login in logins {
        client.batch_execute(&one::<String>(client, GRANT, &[login]).await?).await?;
    }
    Ok(())
}

/// Checks that the session's login can write receipts.
///
/// # Errors
/// The schema is missing, the login lacks privileges, or the server is a standby.
pub async fn check(client: &impl GenericClient) -> Result<(), QueueError> {
    let row = &only(client, READY, &[]).await?;
    let (message, hint) = if column(row, "standby")? {
        ("the target is a standby", "Connect to the primary: target_session_attrs=read-write.")
    } else if !column(row, "installed")? {
        ("the target has no schema for receipts", "pgmill target init NAME --login LOGIN")
    } else if !column(row, "granted")? {
        ("the login may not write receipts", "pgmill target init NAME --login LOGIN")
    } else {
        return Ok(());
    };
    Err(QueueError::Refused { message: message.to_owned(), hint: Some(hint.to_owned()) })
}

/// Writes the receipt of a task in the task's own transaction `xact`, which is the result of
/// `pg_current_xact_id()` right after BEGIN. `result`: first rows that the statement returned, if a
/// later task can use them. The id of the receipt is bound, so that no other session can read it.
///
/// # Errors
/// SQLSTATE [`DONE`], [`FENCED`] or [`crate::complete::TRANSACTION_ENDED`]; the transaction is aborted.
pub async fn write_receipt(
    client: &Client,
    receipt: Receipt,
    xact: &str,
    rows: Option<u64>,
    result: Option<&Value>,
) -> Result<(), Error> {
    let rows = rows.map(|rows| i64::try_from(rows).unwrap_or(i64::MAX));
    let result = result.map(|result| ascii(result).into_bytes());
    let params: [(&(dyn ToSql + Sync), Type); 5] = [
        (/* task */ &receipt.id, Type::UUID),
        (/* epoch */ &receipt.epoch, Type::INT8),
        (/* xact */ &xact, Type::TEXT),
        (/* row_count */ &rows, Type::INT8),
        (/* result */ &result, Type::BYTEA),
    ];
    client.query_typed(WRITE_RECEIPT, &params).await.map(drop)
}

/// Returns JSON in which characters outside of ASCII are escaped. Such characters occur in strings
/// only.
fn ascii(value: &Value) -> String {
    let escaped = |unit: u16| match u8::try_from(unit) {
        Ok(byte) if byte.is_ascii() => char::from(byte).to_string(),
        _ => format!("\\u{unit:04x}"),
    };
    value.to_string().encode_utf16().map(escaped).collect()
}

/// Returns the document of a stored value of [`WRITE_RECEIPT`].
fn document(stored: Value) -> Value {
    match stored {
        Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        stored => stored,
    }
}

/// Resolves attempts: returns what the target has about each task. The attempts with these epochs or
/// lower ones can no longer commit, unless their task has a receipt. Waits for an attempt that is
/// about to commit.
///
/// # Errors
/// Nothing is resolved. Also fails if such an attempt takes longer than the session's `lock_timeout`.
pub async fn resolve(
    client: &impl GenericClient,
    receipts: &[Receipt],
) -> Result<Vec<Resolved>, QueueError> {
    let ids: Vec<Uuid> = receipts.iter().map(|receipt| receipt.id).collect();
    let epochs: Vec<i64> = receipts.iter().map(|receipt| receipt.epoch).collect();
    let rows = query(client, RESOLVE, &[/* tasks */ &ids, &epochs]).await?;
    let mut found: HashMap<Uuid, Resolved> = HashMap::new();
    for row in &rows {
        let ran: Option<f64> = column(row, "ran_seconds")?;
        let ran = Duration::try_from_secs_f64(ran.unwrap_or_default()).unwrap_or_default();
        let result = column::<Option<Value>>(row, "result")?.map(document);
        let done = Done { rows: column(row, "rows")?, ran, result };
        let done = column::<bool>(row, "done")?.then_some(done);
        found.insert(column(row, "task")?, Resolved { epoch: column(row, "epoch")?, done });
    }
    // A receipt of another login is not returned. Its task cannot be resolved by this login.
    ids.iter()
        .map(|id| {
            found.get(id).cloned().ok_or_else(|| QueueError::Refused {
                message: format!("the receipt {id} belongs to another login of the target"),
                hint: Some("GRANT the former login of the target to the present one.".to_owned()),
            })
        })
        .collect()
}

/// Stores an epoch in the target, unless it has a higher one. Returns the one before.
pub async fn store_epoch(client: &impl GenericClient, epoch: i64) -> Result<i64, QueueError> {
    one(client, STORE_EPOCH, &[&epoch]).await
}

/// Returns up to `limit` receipts that are older than `kept`.
pub async fn old_receipts(
    client: &impl GenericClient,
    kept: Duration,
    limit: i32,
) -> Result<Vec<Uuid>, QueueError> {
    one(client, OLD_RECEIPTS, &[&kept.as_secs_f64(), &limit]).await
}

/// Deletes receipts of tasks whose end the queue has recorded. Returns their number.
pub async fn forget(client: &impl GenericClient, receipts: &[Uuid]) -> Result<i64, QueueError> {
    one(client, FORGET, &[&receipts]).await
}

/// Returns the receipts of this list that the target does not have.
pub async fn missing(
    client: &impl GenericClient,
    receipts: &[Uuid],
) -> Result<Vec<Uuid>, QueueError> {
    one(client, MISSING, &[&receipts]).await
}
