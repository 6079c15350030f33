//! Ticks of due schedules, on any worker: locks their rows, computes their instants, fires them.
//!
//! A pass over due schedules is a single transaction, which contains the locks on the rows, the
//! started runs and the next instants. So a worker that dies in between changes nothing. Other
//! workers skip locked rows. The unique index on (schedule, instant) is a second safeguard.

use std::time::Duration;

use conninfo::GenericClient;
use jiff::Timestamp;
use queue::row::{FromRow, Param, column, duration, first, from_row, one, only, query};
use queue::{QueueError, RunId};
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::types::Json;
use tokio_postgres::{Client, Transaction};

use crate::due::{CatchUpPolicy, DueFires, due};
use crate::enums::FireMode;
use crate::timing::Timing;

/// Maximum number of schedules in a pass. Their rows stay locked until the end of the pass. A
/// schedule takes up to three subtransactions: a log row for missed fires, the run, and a log row
/// for the fire. A backend caches 64: above that, every snapshot on the server becomes more
/// expensive.
const BATCH_SIZE: i32 = 20;

const TAKE: &str = "SELECT /* schedule.lock_due */ t.id, t.name, t.version, t.timing, t.mode::text, t.next_fire_at, t.now, t.catch_up, t.max_lateness,
    t.measure, t.timeout, t.planned_from
FROM mill.lock_due_schedules($1) AS t";

const TICK: &str =
    "SELECT /* schedule.tick */ t.schedule_id, t.fired, t.skipped FROM mill.tick($1) AS t";

const TICK_TRIGGER: &str = "SELECT /* schedule.tick_trigger */ t.fired, t.skipped FROM mill.tick_trigger($1, $2, $3, $4, $5, $6) AS t";

const NEXT: &str = "SELECT /* schedule.next_tick */ extract(epoch FROM s.next_tick_at - now())::float8 FROM mill.schedules s
WHERE s.next_tick_at IS NOT NULL AND NOT (SELECT mill.fleet_paused()) ORDER BY s.next_tick_at LIMIT 1";

const ENFORCE: &str = "SELECT /* schedule.enforce_deadlines */ mill.mark_late_runs() AS late, ARRAY(SELECT mill.time_out_runs()) AS timed_out";

/// `mill.schedules.id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct ScheduleId(pub i64);

/// The probe to run before a triggered schedule can be evaluated.
#[derive(Clone, Debug)]
pub struct ProbeRequest {
    /// The schedule.
    pub id: ScheduleId,
    /// Name of the schedule.
    pub name: String,
    /// Version of the schedule's definition. If it has changed since, the result is not used.
    pub version: i32,
    /// Time at which the schedule was locked.
    pub taken_at: Timestamp,
    /// The user-supplied statement. It must run in a session without privileges on the queue.
    pub query: String,
    /// Maximum duration of the statement.
    pub timeout: Duration,
}

/// Result of a pass.
#[derive(Debug, Default)]
pub struct TickSummary {
    /// Number of schedules that were evaluated.
    pub taken: usize,
    /// Number of runs that were started.
    pub fired: u64,
    /// Number of fires that were skipped because a run is in progress.
    pub skipped: u64,
    /// Number of missed fires.
    pub missed: u64,
    /// Number of timings that cannot be parsed.
    pub errors: u64,
    /// Delay of each fire, from its instant until now.
    pub delays: Vec<Duration>,
    /// Triggered schedules whose probe must be run.
    pub probes: Vec<ProbeRequest>,
    /// Number of schedules that cannot fire now, for example because another session holds a lock.
    /// They stay due, and are tried again after a pause.
    pub postponed: u64,
}

impl TickSummary {
    /// Returns whether more schedules may be due.
    #[must_use]
    pub fn is_full(&self) -> bool {
        i32::try_from(self.taken) == Ok(BATCH_SIZE)
    }

    /// Adds the result of another pass.
    pub fn add(&mut self, other: Self) {
        self.taken += other.taken;
        self.fired += other.fired;
        self.skipped += other.skipped;
        self.missed += other.missed;
        self.errors += other.errors;
        self.delays.extend(other.delays);
        self.probes.extend(other.probes);
        self.postponed += other.postponed;
    }
}

/// A due schedule whose row is locked.
struct DueSchedule {
    id: i64,
    name: String,
    version: i32,
    timing: String,
    mode: FireMode,
    /// Next fire; `None` if it is to be computed from `planned_from`.
    next_fire_at: Option<Timestamp>,
    planned_from: Timestamp,
    now: Timestamp,
    policy: CatchUpPolicy,
    measure: Option<(String, Duration)>,
}

from_row! {
    row => DueSchedule {
        id, name, version, timing, mode, next_fire_at, planned_from, now,
        policy: CatchUpPolicy {
            catch_up: usize::try_from(column::<i32>(row, "catch_up")?).unwrap_or(0),
            max_lateness: column::<Option<_>>(row, "max_lateness")?.map(duration),
        },
        measure: column::<Option<String>>(row, "measure")?
            .zip(column::<Option<_>>(row, "timeout")?.map(duration)),
    }
}

/// The decision on a schedule, in the format of `mill.tick`.
#[derive(Debug, Default, Serialize)]
struct FirePlan {
    id: i64,
    #[serde(flatten)]
    due: DueFires,
    failure: Option<String>,
    postponed: Option<String>,
    error: Option<String>,
    trigger: Option<Value>,
    /// Delay of each fire, from its instant until now.
    #[serde(skip)]
    delays: Vec<Duration>,
}

/// Evaluates due schedules and fires them, in one transaction. The caller has to notify the
/// workers.
///
/// # Errors
/// Fails if one of the schedules raises an error that the schema's functions do not catch. Then none
/// has been evaluated, and [`tick_next`] evaluates them one by one.
pub async fn tick_due(client: &mut Client) -> Result<TickSummary, QueueError> {
    let transaction = client.transaction().await?;
    let (mut pass, plans) = take_due(&transaction, BATCH_SIZE).await?;
    if !plans.is_empty() {
        apply_plans(&transaction, &plans, &mut pass).await?;
    }
    transaction.commit().await?;
    Ok(pass)
}

/// Evaluates the schedule that has been due for the longest time. If it raises an error, it is
/// postponed, or this fire is recorded as an error.
///
/// # Errors
/// Fails if the database does. Then nothing has happened.
pub async fn tick_next(client: &mut Client) -> Result<TickSummary, QueueError> {
    let mut transaction = client.transaction().await?;
    let (mut pass, plans) = take_due(&transaction, 1).await?;
    for plan in plans {
        let step = transaction.savepoint("one").await?;
        match apply_plans(&step, std::slice::from_ref(&plan), &mut pass).await {
            Ok(()) => step.commit().await?,
            Err(error) => {
                step.rollback().await?;
                let without = without_fires(plan, &error, &mut pass);
                apply_plans(&transaction, &[without], &mut pass).await?;
            }
        }
    }
    transaction.commit().await?;
    Ok(pass)
}

/// Returns the plan of a schedule that raised an error.
fn without_fires(plan: FirePlan, error: &QueueError, pass: &mut TickSummary) -> FirePlan {
    let message = error.to_string();
    if error.temporary() {
        pass.postponed += 1;
        return FirePlan { id: plan.id, postponed: Some(message), ..FirePlan::default() };
    }
    pass.errors += 1;
    let due = DueFires { fires: Vec::new(), ..plan.due };
    FirePlan { due, delays: Vec::new(), failure: Some(message), ..plan }
}

/// Locks due schedules, and returns a plan for each.
async fn take_due(
    transaction: &Transaction<'_>,
    max_count: i32,
) -> Result<(TickSummary, Vec<FirePlan>), QueueError> {
    let rows = query(transaction, TAKE, &[&max_count]).await?;
    let mut pass = TickSummary { taken: rows.len(), ..TickSummary::default() };
    let mut plans = Vec::new();
    for row in &rows {
        let taken = DueSchedule::from_row(row)?;
        if let Some((query, timeout)) = taken.measure {
            pass.probes.push(ProbeRequest {
                id: ScheduleId(taken.id),
                name: taken.name,
                version: taken.version,
                taken_at: taken.now,
                query,
                timeout,
            });
            continue;
        }
        plans.push(plan(&taken));
    }
    Ok((pass, plans))
}

/// Applies the plans.
async fn apply_plans(
    transaction: &Transaction<'_>,
    plans: &[FirePlan],
    pass: &mut TickSummary,
) -> Result<(), QueueError> {
    for row in query(transaction, TICK, &[&Json(plans)]).await? {
        pass.fired += u64::from(column::<i32>(&row, "fired")?.cast_unsigned());
        pass.skipped += u64::from(column::<i32>(&row, "skipped")?.cast_unsigned());
    }
    for plan in plans {
        pass.missed += plan.due.missed;
        pass.errors += u64::from(plan.error.is_some());
        pass.delays.extend(&plan.delays);
    }
    Ok(())
}

/// Parses the timing and decides what is due now.
fn plan(taken: &DueSchedule) -> FirePlan {
    let plan = FirePlan { id: taken.id, ..FirePlan::default() };
    match Timing::parse(&taken.timing) {
        Err(error) => FirePlan { error: Some(error.to_string()), ..plan },
        Ok(Timing::Manual) => plan,
        Ok(Timing::Triggered(trigger)) => FirePlan { trigger: Some(trigger.to_json()), ..plan },
        Ok(Timing::Scheduled(_)) if taken.mode != FireMode::Scheduled => {
            let error = format!("\"{}\" does not match the schedule's mode", taken.timing);
            FirePlan { error: Some(error), ..plan }
        }
        Ok(Timing::Scheduled(cadence)) => {
            let first = taken.next_fire_at.or_else(|| cadence.next_fire(taken.planned_from));
            let Some(first) = first else { return plan };
            let due = due(&cadence, first, taken.now, taken.policy);
            let delays = due.fires.iter().map(|fire_at| taken.now.duration_since(*fire_at));
            let delays = delays.filter_map(|delay| Duration::try_from(delay).ok()).collect();
            FirePlan { due, delays, ..plan }
        }
    }
}

/// Evaluates a triggered schedule with the result of its probe: the number of pending rows and the
/// age of the oldest row in seconds, or the error of the probe. Returns whether the schedule fired,
/// and whether the fire was skipped.
pub async fn tick_trigger(
    client: &impl GenericClient,
    measure: &ProbeRequest,
    found: Result<(i64, Option<f64>), String>,
) -> Result<(bool, bool), QueueError> {
    let (pending, oldest, error) = match found {
        Ok((pending, oldest)) => (Some(pending), oldest, None),
        Err(error) => (None, None, Some(error)),
    };
    let params: [&dyn Param; 6] = [
        /* schedule_id */ &measure.id.0,
        &measure.version,
        &measure.taken_at,
        &pending,
        /* oldest_seconds */ &oldest,
        &error,
    ];
    let row = only(client, TICK_TRIGGER, &params).await?;
    Ok((column::<i32>(&row, "fired")? > 0, column::<i32>(&row, "skipped")? > 0))
}

/// Runs that have missed a deadline or a timeout.
#[derive(Clone, Debug)]
pub struct MissedDeadlines {
    /// Number of runs that are late now.
    pub late: i64,
    /// Runs that are cancelled now because of their timeout. The caller has to advance them.
    pub timed_out: Vec<RunId>,
}

from_row! { MissedDeadlines { late, timed_out } }

/// Marks the runs that have missed their deadlines, and cancels those whose timeout has passed.
pub async fn enforce_deadlines(client: &impl GenericClient) -> Result<MissedDeadlines, QueueError> {
    one(client, ENFORCE, &[]).await
}

/// Returns the time until the next tick; `None` if there is none, or if the fleet is paused.
pub async fn next_tick_in(client: &impl GenericClient) -> Result<Option<Duration>, QueueError> {
    Ok(first(client, NEXT, &[]).await?.map(duration))
}
