//! Invalid indexes: what a failed build of an index leaves. The next attempt finds the name taken, and
//! `IF NOT EXISTS` would make it a success.

use fleet_decisions::timing::SESSION_TIMEOUT;
use queue::scan::ConcurrentBuild;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::attempt::error::ExecutionError;

/// SQLSTATE object_not_in_prerequisite_state.
const NOT_READY: &str = "55000";

/// Finds the index of this name if it is invalid. The task's search_path applies, as for its own statement.
/// An index of a partitioned table is invalid until all partitions have theirs, which is no failure.
const NAMED: &str =
    "SELECT /* worker.invalid_index */ pg_catalog.format('%I.%I', n.nspname, c.relname)
FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.indexrelid
    JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE NOT i.indisvalid AND c.relkind OPERATOR(pg_catalog.=) 'i'
    AND i.indrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($2)::pg_catalog.oid
    AND c.relname OPERATOR(pg_catalog.=) ((pg_catalog.parse_ident($1))[1])::pg_catalog.name";

/// Finds the newest invalid indexes of the task's roles. A session that builds an index locks its table.
const LEFT: &str = "SELECT /* worker.invalid_indexes */ pg_catalog.string_agg(x.name, ', ') FROM (
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) AS name
    FROM pg_catalog.pg_index i
        JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.indexrelid
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
    WHERE NOT i.indisvalid AND c.relkind OPERATOR(pg_catalog.=) 'i' AND pg_catalog.pg_has_role(c.relowner, 'USAGE')
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE l.relation OPERATOR(pg_catalog.=) i.indrelid
            AND l.mode OPERATOR(pg_catalog.=) 'ShareUpdateExclusiveLock'
            AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d
                WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()))
    ORDER BY i.indexrelid DESC LIMIT 5) AS x";

/// Returns the result of the build; an error if it has not built the index because an invalid one has its
/// name. The hint of an error names invalid indexes.
///
/// # Errors
/// The given error, or the one above.
pub(crate) async fn check(
    client: &Client,
    build: ConcurrentBuild<'_>,
    ran: Result<(), ExecutionError>,
) -> Result<(), ExecutionError> {
    match (ran, build.unless_exists) {
        (Ok(()), Some((name, table))) => {
            let Some(index) = found(client, NAMED, &[name, table]).await else { return Ok(()) };
            Err(ExecutionError::refused(
                NOT_READY,
                &format!("the index {index} exists and is invalid"),
                &format!(
                    "An earlier attempt to build it has failed, unless another session is building it: \
                     DROP INDEX CONCURRENTLY {index}, and retry."
                ),
            ))
        }
        (Err(error @ ExecutionError::Database(_)), _) => match found(client, LEFT, &[]).await {
            Some(indexes) => Err(error.hint(|| {
                format!(
                    "The database has invalid indexes: {indexes}. Drop what failed attempts have left: DROP \
                     INDEX CONCURRENTLY."
                )
            })),
            None => Err(error),
        },
        (ran, _) => ran,
    }
}

/// Returns the names that the statement finds. Without an answer, the result of the build stands.
async fn found(client: &Client, sql: &str, names: &[&str]) -> Option<String> {
    let params: Vec<_> = names.iter().map(|name| (name as _, Type::TEXT)).collect();
    let rows = timeout(SESSION_TIMEOUT, client.query_typed(sql, &params)).await.ok()?.ok()?;
    rows.first()?.try_get(0).ok()?
}
