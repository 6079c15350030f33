//! Fires of schedules within a period: past fires, which are runs, and coming fires, which follow
//! from the timings.

use conninfo::GenericClient;
use jiff::Timestamp;
use queue::QueueError;
use queue::row::{from_row, rows};
use queue::run::RunState;
use serde::Serialize;

use crate::Timing;
use crate::queries::ScheduleStatus;

/// Reads the newest fires of each schedule in the period, with the index on (schedule, fire).
const FIRED: &str = "SELECT /* schedule.calendar */ s.name AS schedule, r.id AS run_id, r.state::text, r.fire_at
FROM mill.schedules s CROSS JOIN LATERAL (SELECT o.id, o.state, o.fire_at FROM mill.runs o
    WHERE o.schedule_id = s.id AND o.fire_at >= $2 AND o.fire_at < $3 ORDER BY o.fire_at DESC LIMIT $4) AS r
WHERE s.name = ANY ($1)";

/// A fire of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CalendarFire {
    /// The schedule.
    pub schedule: String,
    /// The instant of the fire.
    pub fire_at: Timestamp,
    /// The run; `None` for a coming fire.
    pub run_id: Option<i64>,
    /// State of the run.
    pub state: Option<RunState>,
}

from_row! { CalendarFire { schedule, fire_at, run_id, state } }

/// Returns the fires of these schedules from `from` until before `to`, of each schedule only the
/// newest, up to `per_schedule`.
///
/// # Errors
/// Fails if the role may not read runs.
pub async fn fired(
    client: &impl GenericClient,
    schedules: &[String],
    (from, to): (Timestamp, Timestamp),
    per_schedule: i64,
) -> Result<Vec<CalendarFire>, QueueError> {
    rows(client, FIRED, &[&schedules, &from, &to, &per_schedule]).await
}

/// Returns the coming fires of a schedule after `from` until before `to`, up to `limit`. A schedule
/// that is disabled or removed, or that has no fixed times, has none.
#[must_use]
pub fn coming(
    schedule: &ScheduleStatus,
    (from, to): (Timestamp, Timestamp),
    limit: usize,
) -> Vec<CalendarFire> {
    let active = schedule.enabled && schedule.removed_at.is_none();
    let timing = Timing::parse(&schedule.timing).ok().filter(|_| active);
    let cadence = timing.as_ref().and_then(Timing::cadence);
    let fires = cadence.into_iter().flat_map(|cadence| cadence.fires(from));
    let fire = |fire_at| CalendarFire {
        schedule: schedule.name.clone(),
        fire_at,
        run_id: None,
        state: None,
    };
    fires.take_while(|at| *at < to).take(limit).map(fire).collect()
}
