//! Reads the audit log, which the functions of the schema write.

use std::time::Duration;

use conninfo::GenericClient;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::error::QueueError;
use crate::row::{Param, execute, from_row, rows};

const ENTRIES: &str = "SELECT /* queue.audit */ a.id, a.at, a.login, a.role, a.actor, a.application, a.action, a.subject, a.detail
FROM mill.audit a
WHERE ($1 IS NULL OR a.subject = $1) AND ($2 IS NULL OR $2 IN (a.login, a.actor))
    AND ($3 IS NULL OR a.action = $3) AND ($4 IS NULL OR a.at > now() - make_interval(secs => $4))
    AND ($5 IS NULL OR a.id < $5) AND ($6 IS NULL OR a.at >= $6) AND ($7 IS NULL OR a.at <= $7)
ORDER BY a.id DESC LIMIT $8";

const SET_ACTOR: &str = "SELECT /* queue.set_actor */ set_config('mill.actor', $1, true)";

/// A filter on audit entries. The default matches all of them.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// The object of the action, such as `task 42` or `queue etl`.
    pub subject: Option<String>,
    /// The login that acted, or the person on whose behalf it acted.
    pub login: Option<String>,
    /// Name of the function of the schema.
    pub action: Option<String>,
    /// Maximum age of an entry.
    pub since: Option<Duration>,
    /// Selects entries of this time or later.
    pub from: Option<Timestamp>,
    /// Selects entries of this time or earlier.
    pub to: Option<Timestamp>,
    /// Selects entries that are older than the entry with this id.
    pub before: Option<i64>,
}

/// One recorded action.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct AuditEntry {
    /// Entry id, in nearly chronological order.
    pub id: i64,
    /// Time of the action.
    pub at: Timestamp,
    /// The session's login.
    pub login: String,
    /// The role that the session had assumed with SET ROLE, if any.
    pub role: Option<String>,
    /// The person on whose behalf the program acted, as reported by the program.
    pub actor: Option<String>,
    /// The session's `application_name`.
    pub application: Option<String>,
    /// Name of the function of the schema.
    pub action: String,
    /// The object of the action.
    pub subject: String,
    /// Arguments or effect of the action.
    pub detail: Option<Value>,
}

from_row! { AuditEntry { id, at, login, role, actor, application, action, subject, detail } }

/// Returns audit entries, newest first.
///
/// # Errors
/// Fails if the role may not read the audit log.
pub async fn entries(
    client: &impl GenericClient,
    filter: &AuditFilter,
    limit: i64,
) -> Result<Vec<AuditEntry>, QueueError> {
    let since = filter.since.map(|since| since.as_secs_f64());
    let params: [&dyn Param; 8] = [
        &filter.subject,
        &filter.login,
        &filter.action,
        &since,
        &filter.before,
        &filter.from,
        &filter.to,
        &limit,
    ];
    rows(client, ENTRIES, &params).await
}

/// Attributes all actions until the end of the transaction to this person, as the caller reports.
/// Has no effect outside a transaction.
pub async fn set_actor(client: &impl GenericClient, actor: &str) -> Result<(), QueueError> {
    execute(client, SET_ACTOR, &[&actor]).await
}
