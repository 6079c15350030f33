//! Backfills: runs of a schedule for instants in the past.
//!
//! [`advance`] locks the backfills in progress, computes their next instants, and starts the runs in
//! the transaction that moves the cursor of the backfill. So a worker that dies in between changes
//! nothing, and each instant is started once.

use std::collections::HashSet;

use conninfo::GenericClient;
use jiff::Timestamp;
use queue::QueueError;
use queue::row::{Param, column, from_row, one, only, rows};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio_postgres::types::Json;
use tokio_postgres::{Client, Transaction};

use crate::due::before;
use crate::enums::BackfillState;
use crate::timing::Timing;
use crate::timing::cadence::Cadence;

/// Maximum number of instants of a backfill.
pub const MAX_INSTANTS: usize = 100_000;

/// Maximum number of runs that one transaction starts for a backfill. Each run is a subtransaction,
/// of which a backend caches 64.
const MAX_STARTED: i32 = 20;

/// Maximum number of instants that one transaction skips.
const MAX_SKIPPED: usize = 500;

/// Maximum number of transactions in which [`advance`] continues a backfill at once.
const MAX_PASSES: u32 = 50;

const LOCK: &str = "SELECT /* schedule.lock_backfills */ b.id, b.timing, b.from_at, b.to_at, b.next_at, b.counted, b.room FROM mill.lock_backfills() AS b";

const ADVANCE: &str = "SELECT /* schedule.advance_backfill */ a.fired, a.skipped, a.more FROM mill.advance_backfill($1) AS a";

const CREATE: &str = "SELECT /* schedule.create_backfill */ mill.backfill_schedule($1, $2, $3, $4)";

const PAUSE: &str = "SELECT /* schedule.pause_backfill */ mill.pause_backfill($1)";

const RESUME: &str = "SELECT /* schedule.resume_backfill */ mill.resume_backfill($1)";

const CANCEL: &str = "SELECT /* schedule.cancel_backfill */ mill.cancel_backfill($1)";

const FIRED: &str = "SELECT /* schedule.fired_instants */ DISTINCT r.fire_at FROM mill.runs r JOIN mill.schedules s ON s.id = r.schedule_id
WHERE s.name = $1 AND r.fire_at BETWEEN $2 AND $3 ORDER BY r.fire_at";

const LIST: &str = "SELECT /* schedule.backfills */ b.id, b.schedule, b.state::text, b.timing, b.from_at, b.to_at, b.next_at, b.max_running, b.again, b.params,
    b.instants, b.fired, b.skipped, b.running, b.succeeded, b.failed, b.cancelled, b.error, b.created_at, b.created_by,
    b.finished_at
FROM mill.backfill_status b WHERE ($1::text IS NULL OR b.schedule = $1) AND ($2::bigint IS NULL OR b.id = $2)
ORDER BY b.id DESC LIMIT $3";

/// A backfill and its progress.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Backfill {
    /// Id of the backfill.
    pub id: i64,
    /// Name of the schedule.
    pub schedule: String,
    /// State of the backfill.
    pub state: BackfillState,
    /// Timing of the schedule when the backfill was created.
    pub timing: String,
    /// Start of the period, inclusive.
    pub from_at: Timestamp,
    /// End of the period, inclusive.
    pub to_at: Timestamp,
    /// Earlier instants have been started or skipped; `None` if all have.
    pub next_at: Option<Timestamp>,
    /// Maximum number of runs in progress.
    pub max_running: i32,
    /// Whether instants that have a run already are started again.
    pub again: bool,
    /// Parameters of the runs, in addition to those of the schedule.
    pub params: Value,
    /// Number of instants in the period; `None` until a worker has counted them.
    pub instants: Option<i32>,
    /// Number of instants whose run was started.
    pub fired: i32,
    /// Number of instants that were skipped, because they had a run already.
    pub skipped: i32,
    /// Number of runs in progress.
    pub running: i64,
    /// Number of successful runs.
    pub succeeded: i64,
    /// Number of failed runs.
    pub failed: i64,
    /// Number of cancelled runs.
    pub cancelled: i64,
    /// The error that paused the backfill.
    pub error: Option<String>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// The role that created the backfill.
    pub created_by: String,
    /// End of the backfill.
    pub finished_at: Option<Timestamp>,
}

from_row! {
    row => Backfill {
        id, schedule, state, timing, from_at, to_at, next_at, max_running, again,
        params: column::<Option<_>>(row, "params")?.unwrap_or_default(), instants, fired, skipped,
        running, succeeded, failed, cancelled, error, created_at, created_by, finished_at,
    }
}

impl Backfill {
    /// Returns the number of instants that are done: skipped, or with a run that has ended.
    #[must_use]
    pub fn done(&self) -> i64 {
        i64::from(self.fired) + i64::from(self.skipped) - self.running
    }
}

/// The options of a new backfill.
#[derive(Clone, Debug)]
pub struct BackfillOptions {
    /// Start of the period, inclusive.
    pub from: Timestamp,
    /// End of the period, inclusive.
    pub to: Timestamp,
    /// Maximum number of runs in progress.
    pub max_running: i32,
    /// Whether to start instants again that have a run already.
    pub again: bool,
    /// Parameters of the runs, in addition to those of the schedule.
    pub params: Map<String, Value>,
}

/// The instants of a backfill.
#[derive(Clone, Debug, Serialize)]
pub struct BackfillPreview {
    /// Number of instants in the period.
    pub instants: usize,
    /// The first instant.
    pub first: Option<Timestamp>,
    /// The last instant.
    pub last: Option<Timestamp>,
    /// Instants that have a run already and are skipped.
    pub skipped: Vec<Timestamp>,
}

/// An operation on a backfill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackfillAction {
    /// Starts no more runs until it is resumed.
    Pause,
    /// Continues with the next instant.
    Resume,
    /// Starts no more runs.
    Cancel,
}

/// Result of [`advance`].
#[derive(Debug, Default)]
pub struct AdvanceSummary {
    /// Number of runs that were started.
    pub fired: u64,
    /// Whether this session has locked a backfill that continues when one of its runs ends.
    pub in_progress: bool,
    /// The first error of a backfill. It has started no run, but others may have.
    pub failed: Option<QueueError>,
}

/// A locked backfill.
struct LockedBackfill {
    id: i64,
    timing: String,
    from_at: Timestamp,
    to_at: Timestamp,
    next_at: Option<Timestamp>,
    counted: bool,
    room: i32,
}

from_row! { LockedBackfill { id, timing, from_at, to_at, next_at, counted, room } }

/// Returns the instants of a cadence in a period, in order.
fn instants(cadence: &Cadence, from: Timestamp, to: Timestamp) -> impl Iterator<Item = Timestamp> {
    cadence.fires(before(from)).take_while(move |at| *at <= to)
}

/// Returns the instants of a cadence in a period.
///
/// # Errors
/// Fails if there are more than [`MAX_INSTANTS`].
fn bounded_instants(
    cadence: &Cadence,
    from: Timestamp,
    to: Timestamp,
) -> Result<Vec<Timestamp>, String> {
    let found: Vec<Timestamp> = instants(cadence, from, to).take(MAX_INSTANTS + 1).collect();
    match found.len() {
        0..=MAX_INSTANTS => Ok(found),
        _ => Err(format!("the period has more than {MAX_INSTANTS} instants")),
    }
}

/// Returns the cadence of a timing.
fn cadence(timing: &str) -> Result<Cadence, String> {
    let timing = Timing::parse(timing).map_err(|error| error.to_string())?;
    timing.cadence().cloned().ok_or_else(|| format!("{timing} has no instants"))
}

/// Returns the next step of a backfill, in the format of `mill.advance_backfill`.
fn plan(it: &LockedBackfill) -> Result<Value, String> {
    let cadence = cadence(&it.timing)?;
    let count = match it.counted {
        true => None,
        false => Some(bounded_instants(&cadence, it.from_at, it.to_at)?.len()),
    };
    let mut coming = instants(&cadence, it.next_at.unwrap_or(it.from_at), it.to_at);
    let next: Vec<Timestamp> = coming.by_ref().take(MAX_SKIPPED).collect();
    Ok(json!({
        "id": it.id, "room": it.room.min(MAX_STARTED), "instants": next, "next_at": coming.next(),
        "count": count,
    }))
}

/// Starts the next runs of all backfills in progress. The caller has to notify the workers.
///
/// # Errors
/// Fails if the database does. Then nothing of the current step has happened.
pub async fn advance(client: &mut Client) -> Result<AdvanceSummary, QueueError> {
    let mut done = AdvanceSummary::default();
    for _ in 0..MAX_PASSES {
        let mut transaction = client.transaction().await?;
        let locked: Vec<LockedBackfill> = rows(&transaction, LOCK, &[]).await?;
        let mut more = false;
        for it in &locked {
            if it.room > 0 {
                let step = transaction.savepoint("one").await?;
                match advance_one(&step, it).await {
                    Ok((fired, again)) => {
                        step.commit().await?;
                        done.fired += fired;
                        more |= again;
                    }
                    Err(error) => {
                        step.rollback().await?;
                        done.failed.get_or_insert(error);
                    }
                }
            }
        }
        transaction.commit().await?;
        done.in_progress = !locked.is_empty();
        if !more || done.failed.is_some() {
            break;
        }
    }
    Ok(done)
}

async fn advance_one(
    transaction: &Transaction<'_>,
    it: &LockedBackfill,
) -> Result<(u64, bool), QueueError> {
    let plan = plan(it).unwrap_or_else(
        |error| json!({ "id": it.id, "room": 0, "instants": [it.next_at], "error": error }),
    );
    let row = only(transaction, ADVANCE, &[&Json(plan)]).await?;
    let fired: i32 = column(&row, "fired")?;
    Ok((u64::from(fired.cast_unsigned()), column(&row, "more")?))
}

/// Returns the instants that a backfill of this schedule with this timing would have.
///
/// # Errors
/// Refuses a timing without instants, and a period with too many of them.
pub async fn preview(
    client: &impl GenericClient,
    schedule: &str,
    timing: &str,
    options: &BackfillOptions,
) -> Result<BackfillPreview, QueueError> {
    let refused = |message| QueueError::Refused {
        message: format!("schedule \"{schedule}\": {message}"),
        hint: None,
    };
    let found = cadence(timing)
        .and_then(|cadence| bounded_instants(&cadence, options.from, options.to))
        .map_err(refused)?;
    let mut skipped = Vec::new();
    if !options.again {
        let wanted: HashSet<Timestamp> = found.iter().copied().collect();
        skipped = rows(client, FIRED, &[&schedule, &options.from, &options.to]).await?;
        skipped.retain(|at| wanted.contains(at));
    }
    let (first, last) = (found.first().copied(), found.last().copied());
    Ok(BackfillPreview { instants: found.len(), first, last, skipped })
}

/// Creates a backfill and returns its id; `None` if the schedule does not exist. Workers start its
/// runs.
///
/// # Errors
/// Fails if the schedule has no instants, if the period ends in the future, or if the role lacks the
/// privilege.
pub async fn create(
    client: &impl GenericClient,
    schedule: &str,
    options: &BackfillOptions,
) -> Result<Option<i64>, QueueError> {
    let BackfillOptions { from, to, max_running, again, params } = options;
    let document = json!({ "max_running": max_running, "again": again, "params": params });
    let params: [&dyn Param; 4] = [
        /* name */ &schedule,
        /* from_at */ from,
        /* to_at */ to,
        /* options */ &Json(document),
    ];
    one(client, CREATE, &params).await
}

/// Pauses, resumes or cancels a backfill. Returns `false` if it does not exist.
///
/// # Errors
/// Fails if the backfill has ended, or if the role lacks the privilege.
pub async fn change(
    client: &impl GenericClient,
    id: i64,
    action: BackfillAction,
) -> Result<bool, QueueError> {
    let sql = match action {
        BackfillAction::Pause => PAUSE,
        BackfillAction::Resume => RESUME,
        BackfillAction::Cancel => CANCEL,
    };
    one(client, sql, &[&id]).await
}

/// Returns backfills, newest first: those of a schedule, or the one with this id, or all.
pub async fn backfills(
    client: &impl GenericClient,
    schedule: Option<&str>,
    id: Option<i64>,
    limit: i64,
) -> Result<Vec<Backfill>, QueueError> {
    rows(client, LIST, &[&schedule, &id, &limit]).await
}
