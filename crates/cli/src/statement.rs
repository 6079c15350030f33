//! Checks the statement of a task that a file or a command line declares.

use queue::scan;

use crate::source::ValidationError;

/// Refuses a statement that no worker would run.
///
/// # Errors
/// Returns the byte offset in the statement, and why no worker runs it: it has no SQL, or parts that
/// a task may not contain.
pub fn runnable(statement: &str) -> Result<(), (usize, ValidationError)> {
    if scan::statements(statement).is_empty() {
        return Err((0, ValidationError::new(0, "the statement has no SQL")));
    }
    let Some(forbidden) = scan::forbidden(statement) else { return Ok(()) };
    let hint = match forbidden {
        scan::Forbidden::TransactionControl { .. } => {
            "Remove it, because a task is one transaction. For a statement that cannot run in one, or a \
             procedure that commits: mode = \"autocommit\"."
        }
        _ => forbidden.hint(),
    };
    Err((forbidden.offset(), ValidationError::new(0, forbidden.to_string()).hint(hint)))
}
