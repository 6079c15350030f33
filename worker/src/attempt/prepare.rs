//! Prepares a statement with parameters. The server determines the types of the parameters.

use tokio_postgres::{Column, Statement};

use crate::attempt::error::ExecutionError;
use crate::attempt::session::Session;

/// The object ids of types that are not built in start at this number.
const FIRST_CUSTOM_OID: u32 = 16384;

/// Prepares one statement for this number of parameter values.
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
    // To look up an unknown type, the client prepares statements and keeps them for reuse, but the
    // reset of the session drops them.
    if has_custom_types(&statement) {
        session.retire();
    }
    Ok(statement)
}

/// Returns whether a parameter or a column has a type that is not built in.
pub(crate) fn has_custom_types(statement: &Statement) -> bool {
    let mut types = statement.params().iter().chain(statement.columns().iter().map(Column::type_));
    types.any(|ty| ty.oid() >= FIRST_CUSTOM_OID)
}
