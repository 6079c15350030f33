//! Fleet-wide metrics, published by one worker at a time.
//!
//! If each of N workers counted the queue, the counts would cost N times as much, and their sum
//! would be N times too large.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{Gauge, GaugeVec, IntGauge, Opts, Registry};
use queue::QueueError;
use queue::fleet::{Fleet, fleet};
use queue::priority::{PriorityStatus, priorities};
use queue::queue_status::{queues, try_become_publisher};
use schedule::queries::{Health, Instants, health, instants};
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::control::{Control, answered};
use crate::shutdown::Shutdown;
use crate::telemetry::metrics::add;

/// Default of `--fleet-metrics-interval`, the time between two counts. A worker that is not the
/// publisher tries to become the publisher in the same interval.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_secs(15);

/// Number of schedules with their own series, to bound the load on Prometheus.
const NAMED_SCHEDULES: i64 = 1000;

/// Fleet-wide gauges, present only while this worker is the publisher.
#[derive(Clone)]
pub(crate) struct FleetMetrics {
    interval: Duration,
    published: Arc<Mutex<Option<Registry>>>,
}

impl FleetMetrics {
    /// Creates the gauges, unpublished.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, published: Arc::default() }
    }

    /// Returns the registry to serve in addition to the worker's own metrics.
    pub(crate) fn published(&self) -> Option<Registry> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish(&self, registry: Option<Registry>) {
        *self.published.lock().unwrap_or_else(PoisonError::into_inner) = registry;
    }

    /// Publishes while this worker holds the publisher lock, until the worker ends.
    pub(crate) async fn run(self, control: Control, shutdown: Shutdown) {
        loop {
            let ended = tokio::select! {
                () = shutdown.end.cancelled() => return,
                ended = self.on_session(&control) => ended,
            };
            self.publish(None);
            if let Err(error) = ended {
                tracing::warn!(%error, "counting for fleet metrics failed");
            }
            tokio::select! {
                () = shutdown.end.cancelled() => return,
                () = sleep(self.interval) => {}
            }
        }
    }

    async fn on_session(&self, control: &Control) -> Result<(), QueueError> {
        let client = control.dedicated_session("pgmill publisher").await?.client;
        while !answered(try_become_publisher(&client)).await? {
            sleep(self.interval).await;
        }
        loop {
            self.publish(Some(answered(scrape(&client)).await?));
            sleep(self.interval).await;
        }
    }
}

/// Counts into a new registry each time, so that the series of a removed queue disappear.
#[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
async fn scrape(client: &Client) -> Result<Registry, QueueError> {
    let begun = Instant::now();
    let counted = queues(client).await?;
    let by_priority = priorities(client).await?;
    let fleet = fleet(client).await?;
    let schedules = (health(client).await?, instants(client, NAMED_SCHEDULES).await?);
    let filled = || -> prometheus::Result<Registry> {
        let registry = Registry::new();
        let by_queue = |name: &str, help: &str, labels: &[&str]| {
            GaugeVec::new(Opts::new(name, help), labels).and_then(|gauge| add(&registry, gauge))
        };
        let tasks = by_queue("pgmill_queue_tasks", "Live tasks, by state", &["queue", "state"])?;
        let oldest = by_queue(
            "pgmill_queue_oldest_runnable_age_seconds",
            "Seconds since the oldest pending task was due; 0 if none",
            &["queue"],
        )?;
        let longest = by_queue(
            "pgmill_queue_longest_running_seconds",
            "Seconds since the longest-running task was claimed; 0 if none",
            &["queue"],
        )?;
        let paused = by_queue("pgmill_queue_paused", "1 while the queue is paused", &["queue"])?;
        let most = by_queue(
            "pgmill_queue_max_running",
            "Maximum number of running tasks, for queues with such a limit",
            &["queue"],
        )?;
        for queue in &counted {
            let name = queue.queue.as_str();
            let states = [
                ("pending", queue.pending),
                ("running", queue.running),
                ("scheduled", queue.scheduled),
                ("blocked", queue.blocked),
            ];
            for (state, count) in states {
                tasks.with_label_values(&[name, state]).set(count as f64);
            }
            oldest.with_label_values(&[name]).set(queue.oldest_pending_seconds.unwrap_or(0.0));
            longest.with_label_values(&[name]).set(queue.longest_running_seconds.unwrap_or(0.0));
            paused.with_label_values(&[name]).set(f64::from(u8::from(queue.paused)));
            if let Some(max_running) = queue.max_running {
                most.with_label_values(&[name]).set(max_running.into());
            }
        }
        fill_priorities(&registry, &by_priority)?;
        fill_schedules(&registry, schedules.0, &schedules.1)?;
        fill_fleet(&registry, &fleet)?;
        let success = IntGauge::new(
            "pgmill_fleet_scrape_success",
            "1 if the last count of these gauges succeeded",
        )?;
        add(&registry, success)?.set(1);
        let duration = Gauge::new("pgmill_fleet_scrape_duration_seconds", "Duration of the count")?;
        add(&registry, duration)?.set(begun.elapsed().as_secs_f64());
        Ok(registry)
    };
    filled().map_err(|error| QueueError::Refused { message: error.to_string(), hint: None })
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
fn fill_priorities(registry: &Registry, priorities: &[PriorityStatus]) -> prometheus::Result<()> {
    let by_priority = |name: &str, help: &str| {
        GaugeVec::new(Opts::new(name, help), &["priority"]).and_then(|gauge| add(registry, gauge))
    };
    let pending = by_priority("pgmill_priority_pending_tasks", "Pending tasks, by priority")?;
    let oldest = by_priority(
        "pgmill_priority_oldest_pending_age_seconds",
        "Seconds since the oldest pending task was due; 0 if none",
    )?;
    let weight = by_priority("pgmill_priority_weight", "Weight of the priority in claims")?;
    for status in priorities {
        let name = [status.priority.as_str()];
        pending.with_label_values(&name).set(status.pending as f64);
        oldest.with_label_values(&name).set(status.oldest_pending_age.unwrap_or(0.0));
        weight.with_label_values(&name).set(status.weight);
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
fn fill_fleet(registry: &Registry, fleet: &Fleet) -> prometheus::Result<()> {
    let labelled = |name: &str, help: &str, label: &str| {
        GaugeVec::new(Opts::new(name, help), &[label]).and_then(|gauge| add(registry, gauge))
    };
    let workers = labelled("pgmill_workers", "Workers, by status", "status")?;
    workers.with_label_values(&["alive"]).set(fleet.alive as f64);
    workers.with_label_values(&["stale"]).set(fleet.stale as f64);
    let runs = labelled("pgmill_runs", "Unfinished runs, by state", "state")?;
    runs.with_label_values(&["running"]).set(fleet.runs_running as f64);
    runs.with_label_values(&["cancelling"]).set(fleet.runs_cancelling as f64);
    let whole = [
        ("pgmill_table_bytes", "Size of the tasks table including indexes", fleet.table_bytes),
        ("pgmill_table_dead_tuples", "Dead tuples in the tasks table", fleet.dead_tuples),
        (
            "pgmill_attempts_bytes",
            "Size of the attempt history including indexes",
            fleet.attempts_bytes,
        ),
        ("pgmill_schema_version", "Schema version", fleet.schema_version.into()),
        (
            "pgmill_database_connections",
            "Client connections to the server, of all applications",
            fleet.connections,
        ),
        (
            "pgmill_database_connections_max",
            "Maximum number of client connections for roles that are not superuser",
            fleet.connections_max,
        ),
        (
            "pgmill_database_frozen_age_transactions",
            "Transaction ids since the oldest unfrozen row",
            fleet.frozen_age,
        ),
        (
            "pgmill_replication_lag_bytes",
            "WAL not yet replayed by the standby furthest behind; 0 if none",
            fleet.replication_lag_bytes,
        ),
        (
            "pgmill_replication_slot_bytes",
            "WAL retained by the replication slot furthest behind; 0 if none",
            fleet.slot_bytes,
        ),
    ];
    for (name, help, value) in whole {
        add(registry, IntGauge::new(name, help)?)?.set(value);
    }
    let history = Gauge::new(
        "pgmill_history_partitions_ahead_seconds",
        "Seconds until the first day (UTC) without a history partition",
    )?;
    add(registry, history)?.set(fleet.history_seconds);
    let seconds = labelled(
        "pgmill_horizon_age_seconds",
        "Age of the oldest transaction that holds back vacuum; 0 if none",
        "kind",
    )?;
    let transactions = labelled(
        "pgmill_horizon_age_transactions",
        "Transaction ids since the oldest snapshot that holds back vacuum; 0 if none",
        "kind",
    )?;
    for pinned in &fleet.horizon {
        transactions.with_label_values(&[&pinned.kind]).set(pinned.transactions as f64);
        // A standby and a slot report no time.
        if ["session", "prepared"].contains(&pinned.kind.as_str()) {
            seconds.with_label_values(&[&pinned.kind]).set(pinned.seconds);
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
fn fill_schedules(
    registry: &Registry,
    health: Health,
    instants: &[Instants],
) -> prometheus::Result<()> {
    let gauges = |name: &str, help: &str, label: &str| {
        GaugeVec::new(Opts::new(name, help), &[label]).and_then(|gauge| add(registry, gauge))
    };
    let by_status = gauges("pgmill_schedules", "Schedules, by status", "status")?;
    let counts =
        [("enabled", health.enabled), ("error", health.errors), ("disabled", health.disabled)];
    for (status, count) in counts {
        by_status.with_label_values(&[status]).set(count as f64);
    }
    let overdue = Gauge::new(
        "pgmill_schedule_overdue_seconds",
        "Longest time that a due schedule has waited for a tick; 0 if none",
    )?;
    add(registry, overdue)?.set(health.overdue_seconds);
    let declaration_errors = IntGauge::new(
        "pgmill_schedule_declaration_errors",
        "Errors in schedule declarations in comments of procedures",
    )?;
    add(registry, declaration_errors)?.set(health.declaration_errors);
    let next = gauges(
        "pgmill_schedule_next_fire_timestamp_seconds",
        "Time of the next fire according to the timing",
        "schedule",
    )?;
    let success = gauges(
        "pgmill_schedule_last_success_timestamp_seconds",
        "Time when a run of the schedule last succeeded",
        "schedule",
    )?;
    for it in instants {
        for (gauge, at) in [(&next, it.next_fire_at), (&success, it.last_success_at)] {
            if let Some(at) = at {
                gauge.with_label_values(&[&it.name]).set(at);
            }
        }
    }
    Ok(())
}
