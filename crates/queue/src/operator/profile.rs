//! Profiles: logins under which tasks may run, in addition to the common task login. The connection
//! strings of profiles are in the configuration of workers; the database records who may use them.

use conninfo::GenericClient;
use serde::Serialize;

use crate::error::QueueError;
use crate::row::{execute, from_row, one, rows};

const SET: &str = "SELECT /* queue.set_profile */ mill.set_profile($1, $2, $3)";

const SET_ROUTINES: &str =
    "SELECT /* queue.set_profile_routines */ mill.set_profile_routines($1, $2)";

const DROP: &str = "SELECT /* queue.drop_profile */ mill.drop_profile($1)";

const PROFILES: &str = "SELECT /* queue.profiles */ p.name, p.allowed, p.description, p.routines,
    (SELECT coalesce(sum((w.profiles->>p.name::text)::integer), 0) FROM mill.workers w
        WHERE now() - w.heartbeat_at < w.orphan_timeout) AS readers,
    coalesce(n.pending, 0) AS pending, coalesce(n.running, 0) AS running
FROM mill.profiles p LEFT JOIN (SELECT t.run_as AS name, count(*) FILTER (WHERE t.state = 'pending') AS pending,
        count(*) FILTER (WHERE t.state = 'running') AS running
    FROM mill.tasks t WHERE t.run_as <> '' GROUP BY t.run_as) AS n ON n.name = p.name ORDER BY p.name";

/// A profile and its use.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// Name of the profile, the same as in the configuration of workers.
    pub name: String,
    /// Roles whose members may submit tasks with this profile.
    pub allowed: Vec<String>,
    /// Free-text description.
    pub description: Option<String>,
    /// Routines of which a task has to call one; `None` if a task may have any statement.
    pub routines: Option<Vec<String>>,
    /// Number of readers that live workers have for this profile; 0 if no live worker has the
    /// profile.
    pub readers: i64,
    /// Number of tasks that wait for a reader.
    pub pending: i64,
    /// Number of running tasks.
    pub running: i64,
}

from_row! { Profile { name, allowed, description, routines, readers, pending, running } }

/// Creates or changes a profile; `None` leaves a setting unchanged.
///
/// # Errors
/// Fails if a role does not exist, the name is invalid, or the role is not the owner of the queue.
pub async fn set_profile(
    client: &impl GenericClient,
    name: &str,
    allowed: Option<&[String]>,
    description: Option<&str>,
) -> Result<(), QueueError> {
    execute(client, SET, &[&name, &allowed, &description]).await
}

/// Restricts a profile to tasks that call one of these routines, given as `schema.routine`; `None`
/// allows any statement.
///
/// # Errors
/// Fails if a routine or the profile does not exist, or the role is not the owner of the queue.
pub async fn set_profile_routines(
    client: &impl GenericClient,
    name: &str,
    routines: Option<&[String]>,
) -> Result<(), QueueError> {
    execute(client, SET_ROUTINES, &[&name, &routines]).await
}

/// Removes a profile. Returns `false` if it does not exist.
///
/// # Errors
/// Fails if live tasks or jobs use the profile, or the role is not the owner of the queue.
pub async fn drop_profile(client: &impl GenericClient, name: &str) -> Result<bool, QueueError> {
    one(client, DROP, &[&name]).await
}

/// Returns every profile.
pub async fn profiles(client: &impl GenericClient) -> Result<Vec<Profile>, QueueError> {
    rows(client, PROFILES, &[]).await
}
