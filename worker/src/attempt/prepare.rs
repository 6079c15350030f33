//! Prepares a statement with parameters. Its parameter types come from the server.

use tokio_postgres::{Column, Statement};

use crate::attempt::error::ExecutionError;
use crate::attempt::session::Session;

/// First object id of types that are not built in.
const FIRST_CUSTOM_OID: u32 = 16384;

/// Prepares one statement, for `given` parameter values.
///
/// # Errors
/// Returns the error of the server or the connection, or an error if the statement has another
/// number of parameters.
pub(crate) async fn prepare(
    session: &mut Session,
    sql: &str,
    given: usize,
) -> Result<Statement, ExecutionError> {
    let statement = session.client().prepare(sql).await?;
    let wanted = statement.params().len();
    if wanted != given {
        return Err(ExecutionError::refused(
            "42P02",
            &format!("wrong number of parameter values: expected {wanted}, got {given}"),
            "Pass one --param for each of $1, $2, …",
        ));
    }
    // For unknown types, the client keeps prepared statements, which the reset of the session
    // drops.
    let types = statement.params().iter().chain(statement.columns().iter().map(Column::type_));
    if types.into_iter().any(|ty| ty.oid() >= FIRST_CUSTOM_OID) {
        session.retire();
    }
    Ok(statement)
}
