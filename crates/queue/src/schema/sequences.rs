//! Sequences that are behind the rows of their tables, as after a switch to a copy that logical
//! replication has made. `schema/44_sequences.sql` describes the cause.

use conninfo::GenericClient;
use serde::Serialize;

use crate::error::QueueError;
use crate::row::{from_row, one, rows};

const BEHIND: &str = "SELECT /* queue.sequences_behind */ b.sequence, b.next_id, b.highest_id FROM mill.sequences_behind() AS b";

const REPAIR: &str = "SELECT /* queue.repair_sequences */ mill.repair_sequences()";

/// A sequence whose next values exist already.
#[derive(Clone, Debug, Serialize)]
pub struct SequenceBehind {
    /// Name of the sequence, with its schema.
    pub sequence: String,
    /// The value that the sequence would return next.
    pub next_id: i64,
    /// The highest value in the tables.
    pub highest_id: i64,
}

from_row! { SequenceBehind { sequence, next_id, highest_id } }

/// Returns the sequences that are behind the rows of their tables.
pub async fn behind(client: &impl GenericClient) -> Result<Vec<SequenceBehind>, QueueError> {
    rows(client, BEHIND, &[]).await
}

/// Moves the sequences that are behind past the rows of their tables. Returns their names.
///
/// # Errors
/// Also fails if a transaction that has taken a value of such a sequence is open for longer than two
/// seconds.
pub async fn repair(client: &impl GenericClient) -> Result<Vec<String>, QueueError> {
    one(client, REPAIR, &[]).await
}
