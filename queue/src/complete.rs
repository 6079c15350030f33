//! running → finished, with success.
//!
//! Sent on the task's own session, in the task's own transaction: effects and completion commit
//! together or not at all. Never prepared by name: the reset between tasks drops prepared statements.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use crate::fail::Report;
use crate::task::Claim;

const COMPLETE: &str = "/* queue.complete */ SELECT mill.complete($1, $2, $3::text::xid8, $4)";

/// SQLSTATE: another worker has the task, or it is finished.
pub const LOST: &str = "MT001";
/// SQLSTATE: the statement ended the transaction that was begun for it.
pub const OWN_TRANSACTION: &str = "MT002";

/// Completes the task in whatever transaction the session is in. `xact` is what
/// `pg_current_xact_id()` said right after BEGIN; `None` in autocommit mode.
///
/// The claim stays with the caller until COMMIT has been answered.
///
/// # Errors
/// SQLSTATE [`LOST`] or [`OWN_TRANSACTION`], or whatever the task did to its transaction; in each
/// case the transaction is aborted.
pub async fn complete(
    client: &Client,
    claim: &Claim,
    xact: Option<&str>,
    report: &Report,
) -> Result<(), Error> {
    client
        .query_typed(
            COMPLETE,
            &[
                (&claim.id.0, Type::INT8),
                (&claim.token.0, Type::UUID),
                (&xact, Type::TEXT),
                (&report.to_json(), Type::JSONB),
            ],
        )
        .await
        .map(drop)
}
