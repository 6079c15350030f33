//! Saved filters of the console.

use conninfo::GenericClient;
use serde::Serialize;
use tokio_postgres::types::Type;

use crate::error::QueueError;
use crate::row::{FromRow, from_row, scalar};

const FILTERS: &str = "SELECT /* queue.saved_filters */ f.name, f.query, f.saved_by FROM mill.saved_filters f WHERE f.screen = $1 ORDER BY f.name";

const SAVE: &str = "SELECT /* queue.save_filter */ mill.save_filter($1, $2, $3)";

const REMOVE: &str = "SELECT /* queue.remove_filter */ mill.remove_filter($1, $2)";

/// A saved filter of a screen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SavedFilter {
    /// The name.
    pub name: String,
    /// Query string of the screen, percent-encoded.
    pub query: String,
    /// The role that saved the filter.
    pub saved_by: String,
}

from_row! { SavedFilter { name, query, saved_by } }

/// Returns the saved filters of a screen by name.
pub async fn saved_filters(
    client: &impl GenericClient,
    screen: &str,
) -> Result<Vec<SavedFilter>, QueueError> {
    let rows = client.query_typed(FILTERS, &[(&screen, Type::TEXT)]).await?;
    rows.iter().map(SavedFilter::from_row).collect()
}

/// Saves a filter, or replaces the filter of this name.
pub async fn save(
    client: &impl GenericClient,
    screen: &str,
    name: &str,
    query: &str,
) -> Result<(), QueueError> {
    let params = [
        (/* screen */ &screen as _, Type::TEXT),
        (/* name */ &name as _, Type::TEXT),
        (/* query */ &query as _, Type::TEXT),
    ];
    client.query_typed(SAVE, &params).await?;
    Ok(())
}

/// Removes a filter. Returns whether it existed.
pub async fn remove(
    client: &impl GenericClient,
    screen: &str,
    name: &str,
) -> Result<bool, QueueError> {
    let params = [(/* screen */ &screen as _, Type::TEXT), (/* name */ &name as _, Type::TEXT)];
    scalar(&client.query_typed(REMOVE, &params).await?[0])
}
