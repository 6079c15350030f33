//! Running tasks and runs that take longer than expected or much longer than usual, and late runs.

use jiff::Timestamp;
use pgmill_client::{RunId, TaskId};
use serde::Serialize;

use crate::row::from_row;

/// Up to 20 slow tasks, longest first; none if the history is locked.
pub(super) const TASKS: &str = "SELECT /* queue.insight_slow_tasks */ s.id, s.queue, s.name, extract(epoch FROM s.duration)::float8 AS duration_seconds,
    extract(epoch FROM s.p95)::float8 AS p95_seconds,
    extract(epoch FROM s.expected_duration)::float8 AS expected_seconds
FROM mill.slow_tasks_unless_locked() AS s ORDER BY s.started_at LIMIT 20";

/// Up to 20 slow runs, oldest first.
pub(super) const RUNS: &str = "SELECT /* queue.insight_slow_runs */ s.id, s.jobs, extract(epoch FROM s.duration)::float8 AS duration_seconds,
    extract(epoch FROM s.p95)::float8 AS p95_seconds,
    extract(epoch FROM s.expected_duration)::float8 AS expected_seconds
FROM mill.slow_runs s ORDER BY s.started_at LIMIT 20";

/// Up to 20 late runs, the latest first.
pub(super) const LATE: &str = "SELECT /* queue.insight_late_runs */ l.id, l.jobs, l.schedule, l.late_since, extract(epoch FROM l.late_by)::float8 AS late_seconds
FROM mill.late_runs l ORDER BY l.late_since LIMIT 20";

/// A running task that takes much longer than usual.
#[derive(Clone, Debug, Serialize)]
pub struct SlowTask {
    /// The task's id.
    pub id: TaskId,
    /// Name of the queue.
    pub queue: String,
    /// The task's name.
    pub name: String,
    /// Duration of the running attempt, in seconds.
    pub duration_seconds: f64,
    /// 95th percentile of the durations of the last successful attempts, in seconds.
    pub p95_seconds: Option<f64>,
    /// Declared expected duration, in seconds.
    pub expected_seconds: Option<f64>,
}

from_row! { SlowTask { id, queue, name, duration_seconds, p95_seconds, expected_seconds } }

/// A run in progress that takes much longer than usual.
#[derive(Clone, Debug, Serialize)]
pub struct SlowRun {
    /// The run's id.
    pub id: RunId,
    /// The jobs of the run.
    pub jobs: Vec<String>,
    /// Duration of the run, in seconds.
    pub duration_seconds: f64,
    /// 95th percentile of the durations of the last successful runs, in seconds.
    pub p95_seconds: Option<f64>,
    /// Declared expected duration, in seconds.
    pub expected_seconds: Option<f64>,
}

from_row! { SlowRun { id, jobs, duration_seconds, p95_seconds, expected_seconds } }

/// A run in progress that has missed its deadline.
#[derive(Clone, Debug, Serialize)]
pub struct LateRun {
    /// The run's id.
    pub id: RunId,
    /// The jobs of the run.
    pub jobs: Vec<String>,
    /// The schedule that fired the run.
    pub schedule: Option<String>,
    /// The deadline.
    pub late_since: Timestamp,
    /// Time since the deadline, in seconds.
    pub late_seconds: f64,
}

from_row! { LateRun { id, jobs, schedule, late_since, late_seconds } }
