//! Prepares a statement with parameters. The server determines the types of the parameters.

use tokio_postgres::types::Type;
use tokio_postgres::{Column, Statement};

use crate::attempt::error::ExecutionError;
use crate::attempt::session::Session;

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
    // To look up an unknown type, the client prepares statements and keeps them for reuse, but the
    // reset of the session drops them.
    let statement = match session.client().prepare(sql).await {
        Ok(statement) => statement,
        Err(error) => {
            session.retire();
            return Err(error.into());
        }
    };
    if has_unknown_types(&statement) {
        session.retire();
    }
    let wanted = statement.params().len();
    if wanted != given {
        return Err(ExecutionError::refused(
            "42P02",
            &format!("wrong number of parameter values: expected {wanted}, got {given}"),
            "Pass one --param for each of $1, $2, …",
        ));
    }
    Ok(statement)
}

/// Returns whether a parameter or a column has a type that the client does not know by itself.
pub(crate) fn has_unknown_types(statement: &Statement) -> bool {
    let mut types = statement.params().iter().chain(statement.columns().iter().map(Column::type_));
    types.any(|ty| Type::from_oid(ty.oid()).is_none())
}
