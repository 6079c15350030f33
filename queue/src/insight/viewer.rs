//! The session's login, its privileges, and the database clock.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::GenericClient;

use crate::error::QueueError;

const VIEWER: &str = "/* queue.insight_viewer */
SELECT current_user::text, current_database()::text,
    has_function_privilege('mill.cancel(bigint, boolean)', 'EXECUTE'), mill.sees_statements(), now(),
    has_function_privilege('mill.why(bigint)', 'EXECUTE')";

/// The session's login and its privileges.
#[derive(Clone, Debug, Serialize)]
pub struct Viewer {
    /// Name of the login.
    pub login: String,
    /// Name of the database.
    pub database: String,
    /// Whether the login may read tasks and history.
    pub can_read: bool,
    /// Whether the login may cancel, retry, pause, resume, drain and set limits.
    pub may_act: bool,
    /// Whether the login may see statements and results.
    pub sees_statements: bool,
    /// Time of the database clock.
    pub now: Timestamp,
}

/// Returns the session's login and its privileges.
///
/// # Errors
/// Fails if the role may not read the settings.
pub async fn viewer(client: &impl GenericClient) -> Result<Viewer, QueueError> {
    let row = &client.query_typed(VIEWER, &[]).await?[0];
    Ok(Viewer {
        login: row.try_get(0)?,
        database: row.try_get(1)?,
        may_act: row.try_get(2)?,
        sees_statements: row.try_get(3)?,
        now: row.try_get(4)?,
        can_read: row.try_get(5)?,
    })
}
