//! `search_path` of the programs' own sessions: no name resolves to an object that another role has made.
//!
//! PostgreSQL prefers a function or an operator of any schema in the search_path to one of pg_catalog if it fits the
//! types of the arguments better. So a role that may create objects in such a schema could have a statement call its
//! code, with the rights of the session.

use crate::connection_target::ConnectionTarget;
use crate::error::ConnectError;
use crate::open::attempt::from_driver;
use crate::open::connection::{Connection, first_row};
use tokio_postgres::Client;

/// Returns nothing if the session has the safe search_path. A pooler may have dropped it. In this case, returns one row:
/// a schema of the search_path that the session has instead, and a role that may create objects in it, or nulls. The
/// owner of the database is trusted, as superusers are. Every name is qualified, because nothing is known of the
/// search_path.
const DROPPED: &str = "SELECT /* conninfo.dropped_search_path */ u.nspname, u.role FROM (VALUES (true)) AS d
LEFT JOIN (SELECT n.nspname, CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC' ELSE r.rolname END AS role
FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) AS s(name)
    JOIN pg_catalog.pg_namespace n ON n.nspname OPERATOR(pg_catalog.=) s.name
    CROSS JOIN LATERAL pg_catalog.aclexplode(COALESCE(n.nspacl,
        pg_catalog.acldefault('n'::pg_catalog.\"char\", n.nspowner))) AS a
    LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) a.grantee
WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE'
    AND (r.oid IS NULL OR NOT r.rolsuper AND r.rolname OPERATOR(pg_catalog.<>) session_user
        AND r.rolname OPERATOR(pg_catalog.<>) 'pg_database_owner'::pg_catalog.name)
    AND n.nspname OPERATOR(pg_catalog.<>) 'pg_catalog'::pg_catalog.name
LIMIT 1) AS u ON true
WHERE pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) 'pg_catalog,pg_temp'";

/// Checks the search_path of a session. Returns whether a pooler has dropped it.
///
/// # Errors
/// Returns [`ConnectError::UnsafeSearchPath`], or the error of the connection.
pub(crate) async fn check(
    target: &ConnectionTarget,
    server: &str,
    client: &Client,
    connection: &mut Connection,
) -> Result<bool, ConnectError> {
    if !target.overrides.safe_search_path {
        return Ok(false);
    }
    let found = first_row(client, connection, DROPPED).await;
    match &found.map_err(|error| from_driver(server, error))?[..] {
        [] => Ok(false),
        [Some(schema), Some(role)] if !target.overrides.own_transactions => {
            Err(ConnectError::UnsafeSearchPath {
                server: server.to_owned(),
                schema: schema.clone(),
                role: role.clone(),
            })
        }
        _ => Ok(true),
    }
}
