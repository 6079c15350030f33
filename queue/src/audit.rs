//! Who did what. The functions of the schema write it; here it is read.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use crate::error::QueueError;

const ENTRIES: &str = "/* queue.audit */
SELECT a.id, a.at, a.login, a.role, a.actor, a.application, a.action, a.subject, a.detail
FROM mill.audit a
WHERE ($1 IS NULL OR a.subject = $1) AND ($2 IS NULL OR $2 IN (a.login, a.actor))
    AND ($3 IS NULL OR a.action = $3) AND ($4 IS NULL OR a.at > now() - make_interval(secs => $4))
    AND ($5 IS NULL OR a.id < $5)
ORDER BY a.id DESC LIMIT $6";

const SET_ACTOR: &str = "/* queue.set_actor */ SELECT set_config('mill.actor', $1, true)";

/// Which acts. Nothing set means all of them.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Done to this: `task 42`, `queue etl`, …
    pub subject: Option<String>,
    /// By this login, or on behalf of this person.
    pub login: Option<String>,
    /// Name of the function.
    pub action: Option<String>,
    /// At most this long ago.
    pub since: Option<Duration>,
    /// Before the one with this id.
    pub before: Option<i64>,
}

/// What somebody did.
#[derive(Clone, Debug, Serialize)]
pub struct AuditEntry {
    /// In the order of time, nearly.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// The session's login.
    pub login: String,
    /// The role that it had taken.
    pub role: Option<String>,
    /// Who the program said that it acted for.
    pub actor: Option<String>,
    /// The program.
    pub application: Option<String>,
    /// The function of the schema.
    pub action: String,
    /// What it was done to.
    pub subject: String,
    /// With what arguments, or to what effect.
    pub detail: Option<Value>,
}

/// What was done, the last first.
///
/// # Errors
/// Database trouble; no right to read it.
pub async fn entries(
    client: &impl GenericClient,
    filter: &AuditFilter,
    limit: i64,
) -> Result<Vec<AuditEntry>, QueueError> {
    let since = filter.since.map(|since| since.as_secs_f64());
    let values: [(&(dyn ToSql + Sync), Type); 6] = [
        (&filter.subject, Type::TEXT),
        (&filter.login, Type::TEXT),
        (&filter.action, Type::TEXT),
        (&since, Type::FLOAT8),
        (&filter.before, Type::INT8),
        (&limit, Type::INT8),
    ];
    client.query_typed(ENTRIES, &values).await?.iter().map(entry_from_row).collect()
}

/// Until the end of the transaction what is done is done for this person, as far as the caller
/// knows. Outside of a transaction it is forgotten at once.
///
/// # Errors
/// Database trouble.
pub async fn set_actor(client: &impl GenericClient, actor: &str) -> Result<(), QueueError> {
    client.query_typed(SET_ACTOR, &[(&actor, Type::TEXT)]).await?;
    Ok(())
}

fn entry_from_row(row: &Row) -> Result<AuditEntry, QueueError> {
    Ok(AuditEntry {
        id: row.try_get(0)?,
        at: row.try_get(1)?,
        login: row.try_get(2)?,
        role: row.try_get(3)?,
        actor: row.try_get(4)?,
        application: row.try_get(5)?,
        action: row.try_get(6)?,
        subject: row.try_get(7)?,
        detail: row.try_get(8)?,
    })
}
