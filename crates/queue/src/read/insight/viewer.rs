//! The session's login, its privileges, and the database clock.

use conninfo::GenericClient;
use jiff::Timestamp;
use serde::Serialize;

use crate::error::QueueError;
use crate::row::{from_row, one};

const VIEWER: &str = "SELECT /* queue.insight_viewer */ current_user::text AS login, current_database()::text AS database,
    has_function_privilege('mill.cancel(bigint, boolean)', 'EXECUTE') AS may_act,
    mill.sees_statements(), now(), has_function_privilege('mill.why(bigint)', 'EXECUTE') AS can_read,
    mill.describe_fleet_pause() AS fleet_pause";

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
    /// Until when and why the fleet is paused; `None` if it is not.
    pub fleet_pause: Option<String>,
    /// Time of the database clock.
    pub now: Timestamp,
}

from_row! { Viewer { login, database, can_read, may_act, sees_statements, fleet_pause, now } }

/// Returns the session's login and its privileges.
///
/// # Errors
/// Fails if the role may not read the settings.
pub async fn viewer(client: &impl GenericClient) -> Result<Viewer, QueueError> {
    one(client, VIEWER, &[]).await
}
