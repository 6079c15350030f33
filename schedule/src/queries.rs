//! Schedules as a person reads them: how they stand, what happened, what would happen.

use jiff::Timestamp;
use queue::QueueError;
use queue::enum_column;
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::types::{Json, Type};
use tokio_postgres::{GenericClient, Row};

use crate::enums::{DeclaredIn, Event, FireMode, Overlap};

pub(crate) const COLUMNS: &str = "s.name, s.mode::text, s.timing, s.jobs, s.declared_in::text, s.declared_as, s.enabled, s.status,
    s.next_fire_at, s.last_fire_at, s.last_finished_at, s.last_state::text, s.last_success_at, s.error, s.running_run_id,
    s.overlap::text, s.catch_up, extract(epoch FROM s.max_lateness)::float8, extract(epoch FROM s.jitter)::float8,
    s.max_attempts::integer, extract(epoch FROM s.retry_interval)::float8, s.params, s.version, s.changed_at,
    s.changed_by, s.removed_at, s.queued_fire_at";

const LOG: &str = "/* schedule.log */
SELECT l.id, l.logged_at, s.name, l.event::text, l.fire_at, l.reason, l.message, l.rows, l.count, l.run_id,
    l.outcome::text, extract(epoch FROM l.duration)::float8
FROM mill.visible_schedule_log l JOIN mill.schedules s ON s.id = l.schedule_id
WHERE ($1::bigint IS NULL OR l.schedule_id = $1) AND ($2::text IS NULL OR l.event = $2::text::mill.schedule_event)
    AND l.id < coalesce($3, 9223372036854775807)
ORDER BY l.id DESC LIMIT $4";

const ID: &str = "/* schedule.id */ SELECT s.id FROM mill.schedules s WHERE s.name = $1";

const HISTORY: &str = "/* schedule.history */
SELECT h.run_id, h.schedule, h.fire_at, h.reason, h.state::text, h.started_at, h.finished_at,
    extract(epoch FROM h.duration)::float8, h.tasks, h.attempts, h.message, h.worker
FROM mill.schedule_history h
WHERE ($1::text IS NULL OR h.schedule_id = (SELECT s.id FROM mill.schedules s WHERE s.name = $1))
    AND ($2::text IS NULL OR h.state = $2::text::mill.run_state)
    AND ($3::timestamptz IS NULL OR h.started_at >= $3) AND ($4::timestamptz IS NULL OR h.started_at < $4)
    AND h.run_id < coalesce($5, 9223372036854775807)
ORDER BY h.run_id DESC LIMIT $6";

const TEST: &str = "/* schedule.test */
SELECT t.would_fire, t.reason, t.pending_rows, extract(epoch FROM t.oldest_row_age)::float8, t.next_fire_at
FROM mill.schedule_test($1) AS t";

const TEST_TIMEOUT: &str = "/* schedule.test_timeout */
SELECT set_config('statement_timeout', coalesce((SELECT ceil((s.trigger->>'timeout_secs')::float8 * 1000)::bigint::text
    FROM mill.schedules s WHERE s.name = $1), current_setting('statement_timeout')), true)";

const DECLARATION_ERRORS: &str = "/* schedule.declaration_errors */
SELECT m.declared_as, m.place, m.message, m.hint FROM mill.schedule_declaration_errors m ORDER BY m.declared_as, m.place";

const HEALTH: &str = "/* schedule.health */
SELECT count(*) FILTER (WHERE s.enabled AND s.error IS NULL), count(*) FILTER (WHERE s.enabled AND s.error IS NOT NULL),
    count(*) FILTER (WHERE NOT s.enabled),
    coalesce(greatest(extract(epoch FROM now() - min(s.next_tick_at)), 0), 0)::float8,
    (SELECT count(*) FROM mill.schedule_declaration_errors)
FROM mill.schedules s WHERE s.removed_at IS NULL";

const INSTANTS: &str = "/* schedule.fire_times */
SELECT s.name, extract(epoch FROM s.next_fire_at)::float8, extract(epoch FROM s.last_success_at)::float8
FROM mill.schedules s WHERE s.enabled AND s.removed_at IS NULL ORDER BY s.id LIMIT $1";

/// How all schedules stand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Health {
    /// Enabled ones.
    pub enabled: i64,
    /// Enabled ones that cannot fire, or whose table cannot be read.
    pub errors: i64,
    /// Disabled ones.
    pub disabled: i64,
    /// For how long the one that waits longest for a tick has waited, in seconds.
    pub overdue_seconds: f64,
    /// Mistakes in comments, as the last schedule sync found them.
    pub declaration_errors: i64,
}

/// When a schedule fires next, and succeeded last: seconds since 1970.
#[derive(Clone, Debug)]
pub struct Instants {
    /// Its name.
    pub name: String,
    /// By its timing.
    pub next_fire_at: Option<f64>,
    /// The end of the last run that succeeded.
    pub last_success_at: Option<f64>,
}

/// How a schedule stands.
#[derive(Clone, Debug, Serialize)]
pub struct ScheduleStatus {
    /// Its name.
    pub name: String,
    /// What makes it fire.
    pub mode: FireMode,
    /// As it is written.
    pub timing: String,
    /// What it runs.
    pub jobs: Vec<String>,
    /// Where it is declared.
    pub declared_in: DeclaredIn,
    /// Of a comment: which procedure's.
    pub declared_as: Option<String>,
    /// Whether a person lets it fire.
    pub enabled: bool,
    /// waiting, running, disabled, removed or error.
    pub status: String,
    /// By its timing.
    pub next_fire_at: Option<Timestamp>,
    /// For which instant it fired last.
    pub last_fire_at: Option<Timestamp>,
    /// When a run of it ended last.
    pub last_finished_at: Option<Timestamp>,
    /// How.
    pub last_state: Option<String>,
    /// When a run of it succeeded last.
    pub last_success_at: Option<Timestamp>,
    /// What is wrong with it.
    pub error: Option<String>,
    /// The run that goes on.
    pub running_run_id: Option<i64>,
    /// What becomes of a fire meanwhile.
    pub overlap: Overlap,
    /// Fires that are made late.
    pub catch_up: i32,
    /// How late they may be.
    pub max_lateness_seconds: Option<f64>,
    /// By how much fires are spread.
    pub jitter_seconds: f64,
    /// Set by a person.
    pub max_attempts: Option<i32>,
    /// Set by a person.
    pub retry_interval_seconds: Option<f64>,
    /// Of its runs.
    pub params: Value,
    /// How often it was changed, from 1.
    pub version: i32,
    /// When last.
    pub changed_at: Timestamp,
    /// By which role.
    pub changed_by: String,
    /// Since when its declaration is gone.
    pub removed_at: Option<Timestamp>,
    /// The fire that waits for the end of a run.
    pub queued_fire_at: Option<Timestamp>,
}

/// What happened to a schedule.
#[derive(Clone, Debug, Serialize)]
pub struct LogEntry {
    /// For paging: newer ones are larger.
    pub id: i64,
    /// When.
    pub logged_at: Timestamp,
    /// To which.
    pub schedule: String,
    /// What.
    pub event: Event,
    /// For which instant.
    pub fire_at: Option<Timestamp>,
    /// What made it fire.
    pub reason: Option<String>,
    /// More about it.
    pub message: Option<String>,
    /// Rows that were pending.
    pub rows: Option<i64>,
    /// Fires that were missed.
    pub count: Option<i64>,
    /// The run.
    pub run_id: Option<i64>,
    /// How it ended.
    pub outcome: Option<String>,
    /// How long it took.
    pub duration_seconds: Option<f64>,
}

/// A run that a schedule has fired.
#[derive(Clone, Debug, Serialize)]
pub struct FiredRun {
    /// The run.
    pub run_id: i64,
    /// Which schedule.
    pub schedule: String,
    /// For which instant.
    pub fire_at: Timestamp,
    /// What made it fire.
    pub reason: String,
    /// State of the run.
    pub state: String,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// How long it took, or has taken so far.
    pub duration_seconds: f64,
    /// Tasks of the run.
    pub tasks: i32,
    /// Of the task, if it is one.
    pub attempts: Option<i32>,
    /// Why it failed.
    pub message: Option<String>,
    /// Where the last attempt of the task ran, if it is one: host and process.
    pub worker: Option<String>,
}

/// Which of the history is wanted.
#[derive(Clone, Debug, Default)]
pub struct RunHistoryFilter {
    /// Of one schedule only.
    pub schedule: Option<String>,
    /// Runs in this state only.
    pub state: Option<String>,
    /// Begun from here on.
    pub since: Option<Timestamp>,
    /// Begun before.
    pub until: Option<Timestamp>,
    /// Older than this run.
    pub before: Option<i64>,
    /// So many, newest first.
    pub limit: i64,
}

/// What a tick would do now.
#[derive(Clone, Debug, Serialize)]
pub struct TestResult {
    /// Whether it would fire.
    pub would_fire: bool,
    /// Why, or why not.
    pub reason: String,
    /// Triggered: rows that are pending.
    pub pending_rows: Option<i64>,
    /// Triggered: age of the oldest.
    pub oldest_row_age_seconds: Option<f64>,
    /// By its timing.
    pub next_fire_at: Option<Timestamp>,
}

/// A mistake in the comment of a procedure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AnnotationError {
    /// The procedure.
    pub declared_as: String,
    /// line:column.
    pub place: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Every schedule by name, or the one of this name.
///
/// # Errors
/// Database trouble.
pub async fn status(
    client: &impl GenericClient,
    name: Option<&str>,
) -> Result<Vec<ScheduleStatus>, QueueError> {
    let sql = format!(
        "/* schedule.status */
         SELECT {COLUMNS} FROM mill.schedule_status s WHERE $1::text IS NULL OR s.name = $1 ORDER BY s.name"
    );
    client.query_typed(&sql, &[(&name, Type::TEXT)]).await?.iter().map(status_from_row).collect()
}

/// What happened, newest first: of one schedule, of one kind, before an id.
///
/// # Errors
/// There is no such schedule; database trouble.
pub async fn log(
    client: &impl GenericClient,
    name: Option<&str>,
    event: Option<Event>,
    before: Option<i64>,
    limit: i64,
) -> Result<Option<Vec<LogEntry>>, QueueError> {
    let mut id: Option<i64> = None;
    if let Some(name) = name {
        match client.query_typed(ID, &[(&name, Type::TEXT)]).await?.first() {
            Some(row) => id = Some(row.try_get(0)?),
            None => return Ok(None),
        }
    }
    let params = [
        (&id as _, Type::INT8),
        (&event.map(Event::as_str) as _, Type::TEXT),
        (&before as _, Type::INT8),
        (&limit as _, Type::INT8),
    ];
    client
        .query_typed(LOG, &params)
        .await?
        .iter()
        .map(log_entry_from_row)
        .collect::<Result<_, _>>()
        .map(Some)
}

/// Runs that schedules have fired, newest first.
///
/// # Errors
/// Database trouble.
pub async fn history(
    client: &impl GenericClient,
    wanted: &RunHistoryFilter,
) -> Result<Vec<FiredRun>, QueueError> {
    let params = [
        (&wanted.schedule as _, Type::TEXT),
        (&wanted.state as _, Type::TEXT),
        (&wanted.since as _, Type::TIMESTAMPTZ),
        (&wanted.until as _, Type::TIMESTAMPTZ),
        (&wanted.before as _, Type::INT8),
        (&wanted.limit as _, Type::INT8),
    ];
    client.query_typed(HISTORY, &params).await?.iter().map(fired_run_from_row).collect()
}

/// What a tick would do about a schedule now, by the evaluator of the ticks; `None`: there is no
/// such schedule. What triggers it is measured with the rights of this session, within its timeout,
/// which holds to the end of the caller's transaction.
///
/// # Errors
/// What the probe raises; database trouble.
pub async fn test(
    client: &impl GenericClient,
    name: &str,
) -> Result<Option<TestResult>, QueueError> {
    client.query_typed(TEST_TIMEOUT, &[(&name, Type::TEXT)]).await?;
    let rows = client.query_typed(TEST, &[(&name, Type::TEXT)]).await?;
    let test = |row: &Row| {
        Ok(TestResult {
            would_fire: row.try_get(0)?,
            reason: row.try_get(1)?,
            pending_rows: row.try_get(2)?,
            oldest_row_age_seconds: row.try_get(3)?,
            next_fire_at: row.try_get(4)?,
        })
    };
    rows.first().map(test).transpose()
}

/// What is wrong in the comments of procedures, as the last schedule sync found it.
///
/// # Errors
/// Database trouble.
pub async fn annotation_errors(
    client: &impl GenericClient,
) -> Result<Vec<AnnotationError>, QueueError> {
    let rows = client.query_typed(DECLARATION_ERRORS, &[]).await?;
    let declaration_error = |row: &Row| {
        Ok(AnnotationError {
            declared_as: row.try_get(0)?,
            place: row.try_get(1)?,
            message: row.try_get(2)?,
            hint: row.try_get(3)?,
        })
    };
    rows.iter().map(declaration_error).collect()
}

/// How all schedules stand.
///
/// # Errors
/// Database trouble.
pub async fn health(client: &impl GenericClient) -> Result<Health, QueueError> {
    let row = &client.query_typed(HEALTH, &[]).await?[0];
    Ok(Health {
        enabled: row.try_get(0)?,
        errors: row.try_get(1)?,
        disabled: row.try_get(2)?,
        overdue_seconds: row.try_get(3)?,
        declaration_errors: row.try_get(4)?,
    })
}

/// Instants of enabled schedules, the oldest ones, at most so many.
///
/// # Errors
/// Database trouble.
pub async fn instants(client: &impl GenericClient, most: i64) -> Result<Vec<Instants>, QueueError> {
    let rows = client.query_typed(INSTANTS, &[(&most, Type::INT8)]).await?;
    let instants = |row: &Row| {
        Ok(Instants {
            name: row.try_get(0)?,
            next_fire_at: row.try_get(1)?,
            last_success_at: row.try_get(2)?,
        })
    };
    rows.iter().map(instants).collect()
}

pub(crate) fn status_from_row(row: &Row) -> Result<ScheduleStatus, QueueError> {
    Ok(ScheduleStatus {
        name: row.try_get(0)?,
        mode: enum_column(row, 1, "mode")?,
        timing: row.try_get(2)?,
        jobs: row.try_get(3)?,
        declared_in: enum_column(row, 4, "declared_in")?,
        declared_as: row.try_get(5)?,
        enabled: row.try_get(6)?,
        status: row.try_get(7)?,
        next_fire_at: row.try_get(8)?,
        last_fire_at: row.try_get(9)?,
        last_finished_at: row.try_get(10)?,
        last_state: row.try_get(11)?,
        last_success_at: row.try_get(12)?,
        error: row.try_get(13)?,
        running_run_id: row.try_get(14)?,
        overlap: enum_column(row, 15, "overlap")?,
        catch_up: row.try_get(16)?,
        max_lateness_seconds: row.try_get(17)?,
        jitter_seconds: row.try_get(18)?,
        max_attempts: row.try_get(19)?,
        retry_interval_seconds: row.try_get(20)?,
        params: row.try_get::<_, Option<Json<Value>>>(21)?.map_or(Value::Null, |Json(it)| it),
        version: row.try_get(22)?,
        changed_at: row.try_get(23)?,
        changed_by: row.try_get(24)?,
        removed_at: row.try_get(25)?,
        queued_fire_at: row.try_get(26)?,
    })
}

fn log_entry_from_row(row: &Row) -> Result<LogEntry, QueueError> {
    Ok(LogEntry {
        id: row.try_get(0)?,
        logged_at: row.try_get(1)?,
        schedule: row.try_get(2)?,
        event: enum_column(row, 3, "event")?,
        fire_at: row.try_get(4)?,
        reason: row.try_get(5)?,
        message: row.try_get(6)?,
        rows: row.try_get(7)?,
        count: row.try_get(8)?,
        run_id: row.try_get(9)?,
        outcome: row.try_get(10)?,
        duration_seconds: row.try_get(11)?,
    })
}

fn fired_run_from_row(row: &Row) -> Result<FiredRun, QueueError> {
    Ok(FiredRun {
        run_id: row.try_get(0)?,
        schedule: row.try_get(1)?,
        fire_at: row.try_get(2)?,
        reason: row.try_get(3)?,
        state: row.try_get(4)?,
        started_at: row.try_get(5)?,
        finished_at: row.try_get(6)?,
        duration_seconds: row.try_get(7)?,
        tasks: row.try_get(8)?,
        attempts: row.try_get(9)?,
        message: row.try_get(10)?,
        worker: row.try_get(11)?,
    })
}
