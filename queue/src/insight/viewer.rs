//! Who looks: what the session's login may do and is shown, and what the clock says.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::GenericClient;

use crate::error::QueueError;

const VIEWER: &str = "/* queue.insight_viewer */
SELECT current_user::text, current_database()::text,
    has_function_privilege('mill.cancel(bigint, boolean)', 'EXECUTE'), mill.sees_statements(), now(),
    has_function_privilege('mill.why(bigint)', 'EXECUTE')";

/// A session's login.
#[derive(Clone, Debug, Serialize)]
pub struct Viewer {
    /// Its name.
    pub login: String,
    /// Where it is.
    pub database: String,
    /// It may read tasks and history.
    pub can_read: bool,
    /// It may cancel, retry, pause, resume, drain and set limits.
    pub may_act: bool,
    /// It is shown statements and what they say.
    pub sees_statements: bool,
    /// The database's clock.
    pub now: Timestamp,
}

/// Who looks.
///
/// # Errors
/// Database trouble; no right to read the settings.
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
