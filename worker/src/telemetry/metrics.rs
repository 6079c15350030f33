//! Prometheus metrics of this process. docs/metrics.md lists every name.
//!
//! There are two registries: one with the metrics of the worker itself, and one with the fleet-wide
//! metrics that a single worker publishes (`duties/fleet_publisher.rs`). The number of series is bounded,
//! because labels have few values, such as queues, outcomes and SQLSTATE classes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::Status;
use http_server::{Refusal, RefusalObserver};
use parking_lot::Mutex;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry, TextEncoder,
};
use queue::claim::Claimed;
use queue::run::RunState;
use queue::{Disposition, Outcome};

use crate::telemetry::duty_metrics::DutyMetrics;
use crate::telemetry::registrar::Registrar;
use crate::telemetry::schedule_metrics::ScheduleMetrics;
use crate::telemetry::traces::exporter::SpanCounts;

/// Upper bounds of the buckets for wait and run times of tasks, in seconds: 1 ms to 2 h.
const TASK_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0,
    1800.0, 7200.0,
];
/// Upper bounds of the buckets for the worker's own statements, in seconds: 0.1 ms to 5 s.
const STATEMENT_SECONDS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 5.0];

/// Metrics of one worker. Clones share the values.
#[derive(Clone)]
pub(crate) struct Metrics {
    registry: Registry,
    readers_busy: IntGauge,
    claims: IntCounterVec,
    claims_by_priority: IntCounterVec,
    pub(crate) claim_seconds: Histogram,
    wait_seconds: HistogramVec,
    run_seconds: HistogramVec,
    finished: IntCounterVec,
    errors: IntCounterVec,
    chained_tasks: IntCounter,
    shared_commits: IntCounter,
    shared_tasks: IntCounterVec,
    heartbeats: IntCounterVec,
    heartbeat_age: Gauge,
    last_heartbeat: Arc<Mutex<Option<Instant>>>,
    tasks_reclaimed: IntCounter,
    notifications: IntCounterVec,
    run_tasks_enqueued: IntCounter,
    runs_finished: IntCounterVec,
    fenced_attempts: IntCounter,
    http_refused: IntCounterVec,
    pool_connections: GaugeVec,
    pub(crate) pool_wait: Histogram,
    pub(crate) reconnects: IntCounter,
    draining: IntGauge,
    pub(crate) spans: SpanCounts,
    pub(crate) duties: DutyMetrics,
    pub(crate) schedules: ScheduleMetrics,
}

impl Metrics {
    /// Registers the metrics, all at zero.
    ///
    /// # Errors
    /// Does not occur: the names are constants, and a test registers all of them.
    #[expect(clippy::too_many_lines, reason = "a list, one entry per metric")]
    pub(crate) fn new(readers: u32) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let new = Registrar(&registry);
        let info = Opts::new("pgmill_build_info", "Version of the worker")
            .const_label("version", env!("CARGO_PKG_VERSION"));
        let info = IntGauge::with_opts(info)?;
        info.set(1);
        registry.register(Box::new(info))?;
        new.whole(
            "pgmill_expected_schema_version",
            "Schema version that this worker was built for",
            queue::schema::VERSION.into(),
        )?;
        new.whole("pgmill_readers", "Number of readers of this worker", readers.into())?;
        let metrics = Self {
            readers_busy: new.whole("pgmill_readers_busy", "Readers that run a task", 0)?,
            claims: new.counters(
                "pgmill_claims_total",
                "Tasks claimed, by queue; empty and failed claims have an empty queue label",
                &["queue", "result"],
            )?,
            claims_by_priority: new.counters(
                "pgmill_claims_by_priority_total",
                "Tasks claimed, by priority",
                &["priority"],
            )?,
            claim_seconds: new.histogram(
                "pgmill_claim_duration_seconds",
                "Duration of claim statements",
                STATEMENT_SECONDS,
            )?,
            wait_seconds: new.histograms(
                "pgmill_task_wait_seconds",
                "Time from the moment when a task is due until it is claimed",
                TASK_SECONDS,
                &["queue"],
            )?,
            run_seconds: new.histograms(
                "pgmill_task_run_seconds",
                "Time from the claim of a task to the end of the attempt",
                TASK_SECONDS,
                &["queue", "outcome"],
            )?,
            finished: new.counters(
                "pgmill_tasks_finished_total",
                "Finished attempts, by effect on the task: final outcome, retried or released",
                &["queue", "outcome"],
            )?,
            errors: new.counters(
                "pgmill_task_errors_total",
                "Errors of tasks, including errors after which the task is retried, by SQLSTATE class",
                &["sqlstate_class"],
            )?,
            chained_tasks: new.counter(
                "pgmill_chained_tasks_total",
                "Tasks that began in the message with the COMMIT of the task before them",
            )?,
            shared_commits: new.counter(
                "pgmill_shared_commits_total",
                "Committed transactions with several tasks",
            )?,
            shared_tasks: new.counters(
                "pgmill_shared_commit_tasks_total",
                "Tasks that shared a transaction, by result of the transaction",
                &["result"],
            )?,
            heartbeats: new.counters("pgmill_heartbeats_total", "Heartbeats", &["result"])?,
            heartbeat_age: new.gauge(
                "pgmill_heartbeat_age_seconds",
                "Seconds since the last successful heartbeat",
                0.0,
            )?,
            last_heartbeat: Arc::default(),
            tasks_reclaimed: new.counter(
                "pgmill_tasks_reclaimed_total",
                "Tasks of dead workers that this worker reclaimed",
            )?,
            notifications: new.counters(
                "pgmill_notifications_total",
                "Messages of notifications that this worker attempted, by kind and result",
                &["kind", "result"],
            )?,
            run_tasks_enqueued: new.counter(
                "pgmill_run_tasks_enqueued_total",
                "Tasks of runs that this worker enqueued",
            )?,
            runs_finished: new.counters(
                "pgmill_runs_finished_total",
                "Runs completed by this worker, by state",
                &["state"],
            )?,
            fenced_attempts: new.counter(
                "pgmill_fenced_attempts_total",
                "Attempts that ended after the loss of their claim",
            )?,
            http_refused: new.counters(
                "pgmill_http_refused_total",
                "Connections and requests that the HTTP servers of this worker refused",
                &["server", "reason"],
            )?,
            pool_connections: new.gauges(
                "pgmill_pool_connections",
                "Control sessions in the pool, by state",
                &["state"],
            )?,
            pool_wait: new.histogram(
                "pgmill_pool_wait_seconds",
                "Wait for a control session from the pool",
                STATEMENT_SECONDS,
            )?,
            reconnects: new
                .counter("pgmill_db_reconnects_total", "Sessions of the worker that were lost and opened again")?,
            draining: new.whole(
                "pgmill_draining",
                "1 while the worker drains and claims no tasks",
                0,
            )?,
            spans: SpanCounts::new(new.counters(
                "pgmill_trace_spans_total",
                "Spans of traces, by result of their export",
                &["result"],
            )?),
            duties: DutyMetrics::new(&new)?,
            schedules: ScheduleMetrics::new(&new)?,
            registry: registry.clone(),
        };
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        metrics.shared_commit_finished(0, 0);
        for result in ["sent", "failed"] {
            metrics.notifications("channel", result, 0);
            metrics.notifications("task", result, 0);
        }
        for state in RunState::ALL.iter().filter(|state| **state != RunState::Running) {
            metrics.runs_finished.with_label_values(&[state.as_str()]).inc_by(0);
        }
        Ok(metrics)
    }

    pub(crate) fn claimed(&self, claimed: &[Claimed]) {
        if claimed.is_empty() {
            self.claims.with_label_values(&["", "empty"]).inc();
        }
        for claimed in claimed {
            self.claims.with_label_values(&[claimed.lane.queue.as_str(), "claimed"]).inc();
            self.claims_by_priority.with_label_values(&[claimed.lane.priority.as_str()]).inc();
        }
    }

    pub(crate) fn claim_failed(&self) {
        self.claims.with_label_values(&["", "error"]).inc();
    }

    pub(crate) fn task_started(&self, queue: &str, waited: Duration) {
        self.wait_seconds.with_label_values(&[queue]).observe(waited.as_secs_f64());
    }

    pub(crate) fn task_finished(
        &self,
        queue: &str,
        disposition: Disposition,
        ran: Duration,
        sqlstate: Option<&str>,
    ) {
        let outcome = match disposition {
            Disposition::Finished(outcome)
            | Disposition::Retried(outcome @ Outcome::Interrupted) => outcome.as_str(),
            Disposition::Retried(_) => "retried",
            Disposition::Released => "released",
            Disposition::Lost => {
                self.fenced_attempts.inc();
                return;
            }
        };
        self.run_seconds.with_label_values(&[queue, outcome]).observe(ran.as_secs_f64());
        self.finished.with_label_values(&[queue, outcome]).inc();
        if let Some(class) = sqlstate.and_then(|code| code.get(..2)) {
            self.errors.with_label_values(&[class]).inc();
        }
    }

    /// Records that a task began together with the COMMIT of the task before it.
    pub(crate) fn task_chained(&self) {
        self.chained_tasks.inc();
    }

    /// Records the end of a transaction with several tasks. The tasks that were rolled back run
    /// again alone.
    pub(crate) fn shared_commit_finished(&self, committed: usize, rolled_back: usize) {
        self.shared_commits.inc_by(u64::from(committed > 0));
        for (result, tasks) in [("committed", committed), ("rolled_back", rolled_back)] {
            let tasks = u64::try_from(tasks).unwrap_or(u64::MAX);
            self.shared_tasks.with_label_values(&[result]).inc_by(tasks);
        }
    }

    pub(crate) fn heartbeat(&self, result: &str) {
        self.heartbeats.with_label_values(&[result]).inc();
    }

    pub(crate) fn heartbeat_succeeded(&self) {
        *self.last_heartbeat.lock() = Some(Instant::now());
    }

    /// Records messages of notifications. `kind`: of the receiver. `result`: `sent` or `failed`.
    pub(crate) fn notifications(&self, kind: &str, result: &str, messages: u64) {
        self.notifications.with_label_values(&[kind, result]).inc_by(messages);
    }

    pub(crate) fn run_tasks_enqueued(&self, tasks: u64) {
        self.run_tasks_enqueued.inc_by(tasks);
    }

    pub(crate) fn run_finished(&self, state: RunState) {
        self.runs_finished.with_label_values(&[state.as_str()]).inc();
    }

    pub(crate) fn reclaimed(&self, tasks: usize) {
        self.tasks_reclaimed.inc_by(u64::try_from(tasks).unwrap_or(u64::MAX));
    }

    /// Returns a counter of the clients that a server refuses: `metrics` or `console`. All reasons
    /// that the server has are exported at once.
    pub(crate) fn refusal_observer(&self, server: &'static str) -> RefusalObserver {
        let counters = self.http_refused.clone();
        let count = move |reason: Refusal, by| {
            counters.with_label_values(&[server, reason.as_str()]).inc_by(by);
        };
        Refusal::ALL.iter().for_each(|reason| count(*reason, 0));
        Arc::new(move |reason| count(reason, 1))
    }

    #[expect(clippy::cast_precision_loss, reason = "a pool has a handful of connections")]
    pub(crate) fn set_pool_status(&self, status: Status) {
        let idle = status.available.min(status.size);
        self.pool_connections.with_label_values(&["idle"]).set(idle as f64);
        self.pool_connections.with_label_values(&["in_use"]).set((status.size - idle) as f64);
    }

    /// Updates the gauges before a scrape.
    pub(crate) fn refresh(&self, busy: usize, draining: bool) {
        self.readers_busy.set(i64::try_from(busy).unwrap_or(i64::MAX));
        self.draining.set(draining.into());
    }

    /// Returns the worker's metrics and the given fleet-wide metrics in text format 0.0.4.
    ///
    /// # Errors
    /// Returns an error if encoding fails.
    pub(crate) fn text(&self, fleet: Option<&Registry>) -> prometheus::Result<Vec<u8>> {
        if let Some(at) = *self.last_heartbeat.lock() {
            self.heartbeat_age.set(at.elapsed().as_secs_f64());
        }
        self.schedules.refresh();
        let mut families = self.registry.gather();
        if let Some(fleet) = fleet {
            families.extend(fleet.gather());
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }
}
