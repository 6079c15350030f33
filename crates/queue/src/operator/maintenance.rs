//! Maintenance windows: pauses of the whole fleet, in force or planned.

use std::time::Duration;

use conninfo::GenericClient;
use jiff::Timestamp;
use serde::Serialize;

use crate::error::QueueError;
use crate::row::{Param, from_row, one, rows};

const WINDOWS: &str = "SELECT /* queue.maintenance_windows */ w.id, w.starts_at, nullif(w.ends_at, 'infinity') AS ends_at, w.reason, w.created_by,
    w.starts_at <= greatest(now(), w.created_at) AS is_active
FROM mill.maintenance_windows w WHERE w.ends_at > now() ORDER BY w.starts_at, w.id";

const PAUSE: &str = "SELECT /* queue.pause_fleet */ mill.pause_fleet(coalesce($1, greatest($3, now()) + make_interval(secs => $2)), $4, $3)";

const RESUME: &str = "SELECT /* queue.resume_fleet */ mill.resume_fleet($1)";

const DESCRIBE: &str = "SELECT /* queue.describe_fleet_pause */ mill.describe_fleet_pause()";

/// A period in which the fleet is paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MaintenanceWindow {
    /// `mill.maintenance_windows.id`.
    pub id: i64,
    /// Start of the pause.
    pub starts_at: Timestamp,
    /// End of the pause; `None`: until an operator resumes the fleet.
    pub ends_at: Option<Timestamp>,
    /// Reason, as the operator gave it.
    pub reason: Option<String>,
    /// Login of that operator.
    pub created_by: String,
    /// Whether the pause has begun.
    pub is_active: bool,
}

from_row! { MaintenanceWindow { id, starts_at, ends_at, reason, created_by, is_active } }

/// The pause that an operator requests.
#[derive(Clone, Debug, Default)]
pub struct PauseRequest {
    /// Start; `None`: now.
    pub from: Option<Timestamp>,
    /// End; `None`: see `length`.
    pub until: Option<Timestamp>,
    /// Time from start to end. If this is `None`, too, the pause lasts until it is ended.
    pub length: Option<Duration>,
    /// Reason that the programs show.
    pub reason: Option<String>,
}

/// Returns the windows in force, and the planned ones, by start.
pub async fn windows(client: &impl GenericClient) -> Result<Vec<MaintenanceWindow>, QueueError> {
    rows(client, WINDOWS, &[]).await
}

/// Returns until when and why the fleet is paused, in one sentence; `None` if it is not paused.
pub async fn describe_pause(client: &impl GenericClient) -> Result<Option<String>, QueueError> {
    one(client, DESCRIBE, &[]).await
}

/// Pauses the fleet: no task is claimed, no schedule fires, and running tasks finish. Returns the id
/// of the window. A pause that begins now replaces the one in force.
///
/// # Errors
/// Fails if the pause would end before it begins.
pub async fn pause_fleet(
    client: &impl GenericClient,
    pause: &PauseRequest,
) -> Result<i64, QueueError> {
    let seconds = pause.length.map(|length| length.as_secs_f64());
    let params: [&dyn Param; 4] =
        [&pause.until, /* length */ &seconds, /* starts_at */ &pause.from, &pause.reason];
    one(client, PAUSE, &params).await
}

/// Ends the pause of the fleet. `planned`: also removes planned windows. Returns the number of
/// windows that were ended or removed.
pub async fn resume_fleet(client: &impl GenericClient, planned: bool) -> Result<i32, QueueError> {
    one(client, RESUME, &[&planned]).await
}
