//! The database of one round: its tables, and its preparation.

use anyhow::Result;

use super::adapter::{Adapter, SetupDone, StepContext, TIMEOUT};
use super::catalog::Variant;
use crate::context::RunContext;
use crate::context::database::Database;

/// Tables for the peers in addition to those of the other scenarios. Start times come from the
/// server's clock; each task of pgmill and of a peer writes one row.
const TABLES: &str = "ALTER /* loadtest.peer_tables */ TABLE loadtest.effects ADD at timestamptz NOT NULL DEFAULT clock_timestamp();
CREATE TABLE loadtest.starts (
    task bigint NOT NULL, handler_at timestamptz, statement_at timestamptz NOT NULL)";

/// Statements that prepare the server for a round: they vacuum the database, update the statistics,
/// and complete a checkpoint.
const SETTLE: [&str; 2] =
    ["VACUUM /* loadtest.peer_vacuum */ (ANALYZE)", "CHECKPOINT /* loadtest.peer_checkpoint */"];

/// Creates a database for one round.
pub(super) async fn fresh_database(context: &RunContext, label: &str) -> Result<Database> {
    let database = context.database(&format!("peers_{label}")).await?;
    database.session.batch_execute(TABLES).await?;
    Ok(database)
}

/// Creates the peer's own schema in the database.
pub(super) async fn set_up(
    database: &Database,
    adapter: &Adapter,
    variant: &Variant,
) -> Result<()> {
    let step_context = StepContext { url: database.url(), settings: variant.settings };
    let SetupDone {} = adapter.step(step_context, "setup", TIMEOUT).await?;
    Ok(())
}

pub(super) async fn vacuum_and_checkpoint(database: &Database) -> Result<()> {
    for sql in SETTLE {
        database.session.batch_execute(sql).await?;
    }
    Ok(())
}
