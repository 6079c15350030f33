//! Groups: tasks that share a default priority, a concurrency limit within each run, and an active
//! period, the time of day in which the tasks may start.

use conninfo::GenericClient;
use jiff::civil::Time;
use pgmill_client::Priority;
use serde::Serialize;
use tokio_postgres::Row;

use crate::error::QueueError;
use crate::row::{column, execute, from_row, one, rows};

const SET: &str =
    "SELECT /* queue.set_group */ mill.set_group($1, $2, $3::text::mill.priority, $4)";

const SET_ACTIVE_PERIOD: &str =
    "SELECT /* queue.set_active_period */ mill.set_active_period($1, $2, $3, $4)";

const DROP: &str = "SELECT /* queue.drop_group */ mill.drop_group($1)";

const GROUPS: &str = "SELECT /* queue.groups */ s.name, s.description, s.priority::text, s.max_running, s.opens, s.closes, s.zone, s.open,
    s.next_change_at, s.pending, s.running, s.blocked,
    s.name IS NOT DISTINCT FROM (SELECT x.default_group FROM mill.settings x) AS default
FROM mill.group_status s ORDER BY s.name";

const SET_DEFAULT: &str = "SELECT /* queue.set_default_group */ mill.set_default_group($1)";

/// Changes to a group; `None` leaves a setting unchanged.
#[derive(Clone, Debug, Default)]
pub struct GroupChange {
    /// Free-text description.
    pub description: Option<String>,
    /// Default priority of the group's tasks.
    pub priority: Option<Priority>,
    /// Maximum number of concurrent tasks in one run; 0 starts no task. To remove the limit, use
    /// [`crate::transition::limit::set_max_running`].
    pub max_running: Option<i32>,
}

/// The time of day in which tasks may start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ActivePeriod {
    /// Start of the period.
    #[schema(value_type = String)]
    pub opens: Time,
    /// End of the period; earlier than `opens` if the period spans midnight.
    #[schema(value_type = String)]
    pub closes: Time,
    /// IANA name of the time zone.
    pub zone: String,
}

/// Reads the active period; `None` if the columns are null.
pub(crate) fn active_period(row: &Row) -> Result<Option<ActivePeriod>, QueueError> {
    let columns = (column(row, "opens")?, column(row, "closes")?, column(row, "zone")?);
    let (Some(opens), Some(closes), Some(zone)) = columns else { return Ok(None) };
    Ok(Some(ActivePeriod { opens, closes, zone }))
}

/// A group and the number of its live tasks.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Group {
    /// Name of the group.
    pub name: String,
    /// Free-text description.
    pub description: Option<String>,
    /// Default priority of the group's tasks.
    pub priority: Option<Priority>,
    /// Maximum number of concurrent tasks in one run; 0 starts no task, `None` means no limit.
    pub max_running: Option<i32>,
    /// Period in which tasks may start; `None` means at any time.
    pub active_period: Option<ActivePeriod>,
    /// Whether the active period is open now.
    pub open: bool,
    /// Time at which the active period opens or closes next.
    pub next_change_at: Option<jiff::Timestamp>,
    /// Number of tasks that wait for a reader.
    pub pending: i64,
    /// Number of running tasks.
    pub running: i64,
    /// Number of tasks that wait for a permit.
    pub blocked: i64,
    /// Whether this is the group of new tasks that are given no group.
    pub default: bool,
}

from_row! {
    row => Group {
        name, description, priority, max_running, active_period: active_period(row)?, open,
        next_change_at, pending, running, blocked, default,
    }
}

/// Creates or changes a group.
///
/// # Errors
/// Fails if `max_running` is below 0 or the name is invalid.
pub async fn set_group(
    client: &impl GenericClient,
    name: &str,
    change: &GroupChange,
) -> Result<(), QueueError> {
    let priority = change.priority.map(Priority::as_str);
    execute(client, SET, &[&name, &change.description, &priority, &change.max_running]).await
}

/// Sets when tasks of a group may start; `None` means at any time.
///
/// # Errors
/// Fails if the group does not exist, the period is empty or the time zone is unknown.
pub async fn set_active_period(
    client: &impl GenericClient,
    name: &str,
    period: Option<&ActivePeriod>,
) -> Result<(), QueueError> {
    let opens = period.map(|period| period.opens);
    let closes = period.map(|period| period.closes);
    let zone = period.map_or("UTC", |period| period.zone.as_str());
    execute(client, SET_ACTIVE_PERIOD, &[/* group_name */ &name, &opens, &closes, &zone]).await
}

/// Sets the group of new tasks that are given no group; `None` means none.
///
/// # Errors
/// Fails if the group does not exist.
pub async fn set_default_group(
    client: &impl GenericClient,
    name: Option<&str>,
) -> Result<(), QueueError> {
    execute(client, SET_DEFAULT, &[&name]).await
}

/// Removes a group. Returns `false` if it does not exist.
///
/// # Errors
/// Fails if live tasks belong to the group.
pub async fn drop_group(client: &impl GenericClient, name: &str) -> Result<bool, QueueError> {
    one(client, DROP, &[&name]).await
}

/// Returns every group.
pub async fn groups(client: &impl GenericClient) -> Result<Vec<Group>, QueueError> {
    rows(client, GROUPS, &[]).await
}
