//! Checks a claimed statement before anything is sent.

use queue::fail::DatabaseError;
use queue::{Claim, scan};

/// SQLSTATE feature_not_supported.
const REFUSED: &str = "0A000";

/// Refuses statements that would break out of the task's transaction or session. If the plan of the
/// statement is wanted, also refuses statements that cannot be explained. `in_target`: whether the
/// reader's session is in a target.
///
/// # Errors
/// The error to record for the attempt.
pub(crate) fn check(claim: &Claim, in_target: bool) -> Result<(), Box<DatabaseError>> {
    if in_target != claim.receipt().is_some() {
        let (message, hint) = if in_target {
            ("the profile of this task is no target", "pgmill target set NAME, and enqueue again.")
        } else {
            ("the task has a target", "Move [run_as.NAME] of the worker to [targets.NAME].")
        };
        return Err(Box::new(DatabaseError {
            sqlstate: Some(REFUSED.to_owned()),
            message: message.to_owned(),
            hint: Some(hint.to_owned()),
            ..DatabaseError::default()
        }));
    }
    if let Some(forbidden) = scan::forbidden(claim.statement()) {
        let before = &claim.statement()[..forbidden.offset()];
        return Err(Box::new(DatabaseError {
            sqlstate: Some(REFUSED.to_owned()),
            message: forbidden.to_string(),
            hint: Some(forbidden.hint().to_owned()),
            position: u32::try_from(before.chars().count() + 1).ok(),
            ..DatabaseError::default()
        }));
    }
    if claim.explain() && !scan::explainable(claim.statement()) {
        return Err(Box::new(DatabaseError {
            sqlstate: Some(REFUSED.to_owned()),
            message: "EXPLAIN does not support this statement".to_owned(),
            hint: Some(scan::EXPLAINABLE.to_owned()),
            ..DatabaseError::default()
        }));
    }
    Ok(())
}
