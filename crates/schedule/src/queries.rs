//! Queries on schedules: status, log, history, and dry runs.

use conninfo::GenericClient;
use jiff::Timestamp;
use queue::row::{Param, column, execute, first, from_row, labels, one, rows};
use queue::{Labels, QueueError};
use serde::Serialize;
use serde_json::Value;

use crate::enums::{DeclaredIn, Event, FireMode, Overlap};
use crate::{Timing, Trigger};

pub(crate) const COLUMNS: &str = "s.name, s.mode::text, s.timing, s.jobs, s.declared_in::text, s.declared_as, s.enabled, s.status,
    s.next_fire_at, s.last_fire_at, s.last_finished_at, s.last_state::text, s.last_success_at, s.error, s.running_run_id,
    s.overlap::text, s.catch_up, extract(epoch FROM s.max_lateness)::float8 AS max_lateness_seconds,
    extract(epoch FROM s.jitter)::float8 AS jitter_seconds, s.max_attempts::integer,
    extract(epoch FROM s.retry_interval)::float8 AS retry_interval_seconds, s.params, s.version, s.changed_at,
    s.changed_by, s.removed_at, s.queued_fire_at, s.tags, s.metadata, s.new_timing,
    s.new_timing_error, s.trigger_checked_at, s.trigger_result,
    extract(epoch FROM s.expected_duration)::float8 AS expected_duration_seconds,
    extract(epoch FROM s.deadline)::float8 AS deadline_seconds, s.late_runs,
    extract(epoch FROM s.run_timeout)::float8 AS run_timeout_seconds";

const LOG: &str = "SELECT /* schedule.log */ l.id, l.logged_at, s.name AS schedule, l.event::text, l.fire_at, l.reason, l.message, l.rows, l.count,
    l.run_id, l.outcome::text, extract(epoch FROM l.duration)::float8 AS duration_seconds
FROM mill.visible_schedule_log l JOIN mill.schedules s ON s.id = l.schedule_id
WHERE ($1::bigint IS NULL OR l.schedule_id = $1) AND ($2::text IS NULL OR l.event = $2::text::mill.schedule_event)
    AND l.id < coalesce($3, 9223372036854775807)
    AND ($5::timestamptz IS NULL OR l.logged_at >= $5) AND ($6::timestamptz IS NULL OR l.logged_at < $6)
ORDER BY l.id DESC LIMIT $4";

const ID: &str = "SELECT /* schedule.id */ s.id FROM mill.schedules s WHERE s.name = $1";

const HISTORY: &str = "SELECT /* schedule.history */ h.run_id, h.schedule, h.fire_at, h.reason, h.state::text, h.started_at, h.finished_at,
    extract(epoch FROM h.duration)::float8 AS duration_seconds, h.tasks, h.attempts, h.message, h.worker,
    h.late_since
FROM mill.schedule_history h
WHERE ($1::text IS NULL OR h.schedule_id = (SELECT s.id FROM mill.schedules s WHERE s.name = $1))
    AND ($2::text IS NULL OR h.state = $2::text::mill.run_state)
    AND ($3::timestamptz IS NULL OR h.started_at >= $3) AND ($4::timestamptz IS NULL OR h.started_at < $4)
    AND h.run_id < coalesce($5, 9223372036854775807)
    AND ($8::timestamptz IS NULL OR h.fire_at = $8)
    AND ($7::text IS NULL OR lower($7) = ANY (SELECT lower(j) FROM unnest(h.jobs) AS j))
ORDER BY h.run_id DESC LIMIT $6";

const TEST: &str = "SELECT /* schedule.test */ t.would_fire, t.reason, t.pending_rows,
    extract(epoch FROM t.oldest_row_age)::float8 AS oldest_row_age_seconds, t.next_fire_at
FROM mill.schedule_test($1, $2) AS t";

const TIMING: &str =
    "SELECT /* schedule.timing */ s.timing FROM mill.schedule_status s WHERE s.name = $1";

const TEST_TIMEOUT: &str = "SELECT /* schedule.test_timeout */ set_config('statement_timeout', coalesce(ceil(($1::jsonb->>'timeout_secs')::float8 * 1000)::bigint::text,
    current_setting('statement_timeout')), true)";

const DECLARATION_ERRORS: &str = "SELECT /* schedule.declaration_errors */ m.declared_as, m.place, m.message, m.hint FROM mill.schedule_declaration_errors m ORDER BY m.declared_as, m.place";

const HEALTH: &str = "SELECT /* schedule.health */ count(*) FILTER (WHERE s.status NOT IN ('disabled', 'error')) AS enabled,
    count(*) FILTER (WHERE s.status = 'error') AS errors,
    count(*) FILTER (WHERE s.status = 'disabled') AS disabled,
    coalesce(extract(epoch FROM max(s.overdue)), 0)::float8 AS overdue_seconds,
    (SELECT count(*) FROM mill.schedule_declaration_errors) AS declaration_errors
FROM mill.schedule_status s WHERE s.removed_at IS NULL";

const INSTANTS: &str = "SELECT /* schedule.fire_times */ s.name, extract(epoch FROM s.next_fire_at)::float8 AS next_fire_at,
    extract(epoch FROM s.last_success_at)::float8 AS last_success_at
FROM mill.schedules s WHERE s.enabled AND s.removed_at IS NULL ORDER BY s.id LIMIT $1";

/// Numbers that describe the state of all schedules.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Health {
    /// Number of enabled schedules without an error.
    pub enabled: i64,
    /// Number of enabled schedules that cannot fire, whose trigger cannot be evaluated, or whose new
    /// timing was rejected.
    pub errors: i64,
    /// Number of disabled schedules.
    pub disabled: i64,
    /// Seconds by which the most overdue tick of a schedule is late; 0 while the fleet is paused.
    pub overdue_seconds: f64,
    /// Number of errors in comments of procedures, found by the last schedule sync.
    pub declaration_errors: i64,
}

from_row! { Health { enabled, errors, disabled, overdue_seconds, declaration_errors } }

/// Next fire and last success of a schedule, in seconds since 1970.
#[derive(Clone, Debug)]
pub struct Instants {
    /// Name of the schedule.
    pub name: String,
    /// Next fire according to the timing.
    pub next_fire_at: Option<f64>,
    /// End of the last successful run.
    pub last_success_at: Option<f64>,
}

from_row! { Instants { name, next_fire_at, last_success_at } }

/// State of a schedule.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ScheduleStatus {
    /// Name of the schedule.
    pub name: String,
    /// What makes the schedule fire.
    pub mode: FireMode,
    /// The timing in force, as written.
    pub timing: String,
    /// A timing that was set in SQL, and that no worker has accepted.
    pub new_timing: Option<String>,
    /// Why a worker has rejected the new timing.
    pub new_timing_error: Option<String>,
    /// The jobs that the schedule runs.
    pub jobs: Vec<String>,
    /// The place of its declaration.
    pub declared_in: DeclaredIn,
    /// For a schedule that is declared in a comment, the procedure that has the comment.
    pub declared_as: Option<String>,
    /// Whether the schedule is enabled, which operators decide.
    pub enabled: bool,
    /// `waiting`, `running`, `overdue`, `disabled`, `removed` or `error`.
    pub status: String,
    /// Next fire according to the timing.
    pub next_fire_at: Option<Timestamp>,
    /// The instant of the last fire.
    pub last_fire_at: Option<Timestamp>,
    /// End of its last run.
    pub last_finished_at: Option<Timestamp>,
    /// State of its last run.
    pub last_state: Option<String>,
    /// End of its last successful run.
    pub last_success_at: Option<Timestamp>,
    /// The error, if any.
    pub error: Option<String>,
    /// The run in progress.
    pub running_run_id: Option<i64>,
    /// Treatment of a fire while a run is in progress.
    pub overlap: Overlap,
    /// Number of missed fires that are started late.
    pub catch_up: i32,
    /// Maximum delay of a missed fire that is started late, in seconds.
    pub max_lateness_seconds: Option<f64>,
    /// Maximum random delay of a fire, in seconds.
    pub jitter_seconds: f64,
    /// Maximum number of failed attempts, if an operator has overridden it.
    pub max_attempts: Option<i32>,
    /// Wait before a retry in seconds, if an operator has overridden it.
    pub retry_interval_seconds: Option<f64>,
    /// Parameters of the schedule's runs.
    pub params: Value,
    /// Version number, from 1; increases with each change.
    pub version: i32,
    /// Time of the last change.
    pub changed_at: Timestamp,
    /// The role that last changed the schedule.
    pub changed_by: String,
    /// Time at which the declaration was removed.
    pub removed_at: Option<Timestamp>,
    /// A fire that waits for the end of a run (overlap `queue`).
    pub queued_fire_at: Option<Timestamp>,
    /// Time of the last evaluation of the trigger.
    pub trigger_checked_at: Option<Timestamp>,
    /// Result of the last evaluation of the trigger, or the error of its probe.
    pub trigger_result: Option<String>,
    /// Duration after which a run is slower than expected, in seconds: that of the schedule, or else
    /// of its jobs.
    pub expected_duration_seconds: Option<f64>,
    /// Time after its fire at which a run is late, in seconds: that of the schedule, or else of its
    /// jobs.
    pub deadline_seconds: Option<f64>,
    /// Number of runs in history that have missed their deadline.
    pub late_runs: i64,
    /// Time after its start at which a run is cancelled, in seconds: that of the schedule, or else of
    /// its jobs.
    pub run_timeout_seconds: Option<f64>,
    /// Tags and metadata of the schedule's runs, in addition to those of the jobs.
    #[serde(flatten)]
    pub labels: Labels,
}

from_row! {
    row => ScheduleStatus {
        name, mode, timing, new_timing, new_timing_error, jobs, declared_in, declared_as, enabled, status, next_fire_at,
        last_fire_at, last_finished_at, last_state, last_success_at, error, running_run_id, overlap,
        catch_up, max_lateness_seconds, jitter_seconds, max_attempts, retry_interval_seconds,
        params: column::<Option<_>>(row, "params")?.unwrap_or_default(), version, changed_at,
        changed_by, removed_at, queued_fire_at, trigger_checked_at, trigger_result,
        expected_duration_seconds, deadline_seconds, late_runs, run_timeout_seconds,
        labels: labels(row)?,
    }
}

/// An event of a schedule.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct LogEntry {
    /// Id of the entry, for paging; later entries have higher ids.
    pub id: i64,
    /// Time of the log entry.
    pub logged_at: Timestamp,
    /// Name of the schedule.
    pub schedule: String,
    /// Kind of event.
    pub event: Event,
    /// The instant of the fire.
    pub fire_at: Option<Timestamp>,
    /// The reason of the fire.
    pub reason: Option<String>,
    /// Details.
    pub message: Option<String>,
    /// Number of pending rows, for a trigger.
    pub rows: Option<i64>,
    /// Number of missed fires.
    pub count: Option<i64>,
    /// The run.
    pub run_id: Option<i64>,
    /// State in which the run ended.
    pub outcome: Option<String>,
    /// Duration of the run, in seconds.
    pub duration_seconds: Option<f64>,
}

from_row! {
    LogEntry {
        id, logged_at, schedule, event, fire_at, reason, message, rows, count, run_id, outcome,
        duration_seconds,
    }
}

/// A run that a schedule fired.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct FiredRun {
    /// The run.
    pub run_id: i64,
    /// Name of the schedule.
    pub schedule: String,
    /// The instant of the fire.
    pub fire_at: Timestamp,
    /// The reason of the fire.
    pub reason: String,
    /// State of the run.
    pub state: String,
    /// Start of the run.
    pub started_at: Timestamp,
    /// End of the run.
    pub finished_at: Option<Timestamp>,
    /// Seconds from the start of the run to its end, or until now.
    pub duration_seconds: f64,
    /// Number of tasks of the run.
    pub tasks: i32,
    /// Number of attempts, if the run has a single task.
    pub attempts: Option<i32>,
    /// The error message.
    pub message: Option<String>,
    /// `host:pid` of the worker of the last attempt, if the run has a single task.
    pub worker: Option<String>,
    /// The deadline that the run has missed.
    pub late_since: Option<Timestamp>,
}

from_row! {
    FiredRun {
        run_id, schedule, fire_at, reason, state, started_at, finished_at, duration_seconds, tasks,
        attempts, message, worker, late_since,
    }
}

/// A filter on the history of runs.
#[derive(Clone, Debug, Default)]
pub struct RunHistoryFilter {
    /// Name of the schedule.
    pub schedule: Option<String>,
    /// Name of a job of the run.
    pub job: Option<String>,
    /// State of the run.
    pub state: Option<String>,
    /// Instant for which the schedule fired.
    pub fire_at: Option<Timestamp>,
    /// Earliest start, inclusive.
    pub since: Option<Timestamp>,
    /// Latest start, exclusive.
    pub until: Option<Timestamp>,
    /// Selects runs with smaller ids than this one.
    pub before: Option<i64>,
    /// Maximum number of runs, newest first.
    pub limit: i64,
}

/// A filter on the log.
#[derive(Clone, Debug, Default)]
pub struct LogFilter {
    /// Name of the schedule.
    pub schedule: Option<String>,
    /// Kind of the event.
    pub event: Option<Event>,
    /// Earliest time, inclusive.
    pub since: Option<Timestamp>,
    /// Latest time, exclusive.
    pub until: Option<Timestamp>,
    /// Selects entries with smaller ids than this one.
    pub before: Option<i64>,
    /// Maximum number of entries, newest first.
    pub limit: i64,
}

/// Result of a dry run of a tick.
#[derive(Clone, Debug, Serialize)]
pub struct TestResult {
    /// Whether the schedule would fire.
    pub would_fire: bool,
    /// The reason why it would fire or not.
    pub reason: String,
    /// For a triggered schedule, the number of pending rows.
    pub pending_rows: Option<i64>,
    /// For a triggered schedule, the age of the oldest pending row, in seconds.
    pub oldest_row_age_seconds: Option<f64>,
    /// Next fire according to the timing.
    pub next_fire_at: Option<Timestamp>,
}

from_row! {
    TestResult { would_fire, reason, pending_rows, oldest_row_age_seconds, next_fire_at }
}

/// An error in the comment of a procedure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct AnnotationError {
    /// The procedure.
    pub declared_as: String,
    /// Place of the error in the comment, as line:column.
    pub place: String,
    /// The problem.
    pub message: String,
    /// Suggested fix.
    pub hint: Option<String>,
}

from_row! { AnnotationError { declared_as, place, message, hint } }

/// Returns every schedule, sorted by name, with or without those whose declaration was removed.
pub async fn statuses(
    client: &impl GenericClient,
    removed: bool,
) -> Result<Vec<ScheduleStatus>, QueueError> {
    let sql = format!(
        "SELECT /* schedule.statuses */ {COLUMNS} FROM mill.schedule_status s WHERE $1 OR s.removed_at IS NULL ORDER BY s.name"
    );
    rows(client, &sql, &[&removed]).await
}

/// Returns the schedule with this name; `None` if it does not exist.
pub async fn status(
    client: &impl GenericClient,
    name: &str,
) -> Result<Option<ScheduleStatus>, QueueError> {
    let sql = format!(
        "SELECT /* schedule.status */ {COLUMNS} FROM mill.schedule_status s WHERE s.name = $1"
    );
    first(client, &sql, &[&name]).await
}

/// Returns log entries, newest first; `None` if the schedule does not exist.
pub async fn log(
    client: &impl GenericClient,
    wanted: &LogFilter,
) -> Result<Option<Vec<LogEntry>>, QueueError> {
    let mut id: Option<i64> = None;
    if let Some(name) = &wanted.schedule {
        id = first(client, ID, &[&name]).await?;
        if id.is_none() {
            return Ok(None);
        }
    }
    let params: [&dyn Param; 6] = [
        /* schedule_id */ &id,
        &wanted.event.map(Event::as_str),
        &wanted.before,
        &wanted.limit,
        &wanted.since,
        &wanted.until,
    ];
    rows(client, LOG, &params).await.map(Some)
}

/// Returns runs that schedules fired, newest first.
pub async fn history(
    client: &impl GenericClient,
    wanted: &RunHistoryFilter,
) -> Result<Vec<FiredRun>, QueueError> {
    let params: [&dyn Param; 8] = [
        &wanted.schedule,
        &wanted.state,
        &wanted.since,
        &wanted.until,
        &wanted.before,
        &wanted.limit,
        &wanted.job,
        &wanted.fire_at,
    ];
    rows(client, HISTORY, &params).await
}

/// Evaluates a schedule as a tick would now, with the same code. Returns `None` if the schedule
/// does not exist. A trigger is evaluated with the privileges of this session, within the trigger's
/// timeout. This timeout remains set until the end of the caller's transaction.
///
/// # Errors
/// Fails if the probe fails.
pub async fn test(
    client: &impl GenericClient,
    name: &str,
) -> Result<Option<TestResult>, QueueError> {
    let timing: Option<String> = first(client, TIMING, &[&name]).await?;
    let timing = timing.and_then(|timing| Timing::parse(&timing).ok());
    let trigger = timing.as_ref().and_then(Timing::trigger).map(Trigger::to_json);
    execute(client, TEST_TIMEOUT, &[&trigger]).await?;
    first(client, TEST, &[&name, &trigger]).await
}

/// Returns the errors in the comments of procedures that the last schedule sync found.
pub async fn annotation_errors(
    client: &impl GenericClient,
) -> Result<Vec<AnnotationError>, QueueError> {
    rows(client, DECLARATION_ERRORS, &[]).await
}

/// Returns the state of all schedules.
pub async fn health(client: &impl GenericClient) -> Result<Health, QueueError> {
    one(client, HEALTH, &[]).await
}

/// Returns the instants of enabled schedules, up to the given number, beginning with the oldest
/// schedule.
pub async fn instants(
    client: &impl GenericClient,
    limit: i64,
) -> Result<Vec<Instants>, QueueError> {
    rows(client, INSTANTS, &[&limit]).await
}
