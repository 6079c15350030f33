//! What is true for the whole table, told by one worker: N workers that each counted the queue
//! would cost N counts, and their sum would be N times too large.

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
use crate::metrics::add;
use crate::shutdown::Shutdown;

/// Between two counts, unless `--fleet-metrics-interval` says otherwise. A worker that is not the publisher asks as
/// often whether it may be.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_secs(15);

/// Schedules that have series of their own: more of them would be a burden to who collects them.
const NAMED_SCHEDULES: i64 = 1000;

/// The fleet's gauges, there only while this worker is the publisher.
#[derive(Clone)]
pub(crate) struct FleetMetrics {
    interval: Duration,
    published: Arc<Mutex<Option<Registry>>>,
}

impl FleetMetrics {
    /// None yet.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, published: Arc::default() }
    }

    /// What to show along with the worker's own metrics.
    pub(crate) fn published(&self) -> Option<Registry> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish(&self, registry: Option<Registry>) {
        *self.published.lock().unwrap_or_else(PoisonError::into_inner) = registry;
    }

    /// Publishes for as long as this worker holds the lock for it, until the worker has ended.
    pub(crate) async fn run(self, control: Control, shutdown: Shutdown) {
        loop {
            let ended = tokio::select! {
                () = shutdown.end.cancelled() => return,
                ended = self.on_session(&control) => ended,
            };
            self.publish(None);
            if let Err(error) = ended {
                tracing::warn!(%error, "counting the queue failed");
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

/// A registry filled anew each time, so that a queue that is gone leaves no series behind.
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
        let tasks = by_queue("pgmill_queue_tasks", "Live tasks", &["queue", "state"])?;
        let oldest = by_queue(
            "pgmill_queue_oldest_runnable_age_seconds",
            "Since the oldest pending task was due; 0 without one",
            &["queue"],
        )?;
        let longest = by_queue(
            "pgmill_queue_longest_running_seconds",
            "Since the longest-running task was claimed; 0 without one",
            &["queue"],
        )?;
        let paused = by_queue("pgmill_queue_paused", "1 when no task is claimed", &["queue"])?;
        let most = by_queue(
            "pgmill_queue_max_running",
            "Tasks that may run at once, of queues that have such a limit",
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
        let success =
            IntGauge::new("pgmill_fleet_scrape_success", "1: these gauges were counted just now")?;
        add(&registry, success)?.set(1);
        let duration = Gauge::new("pgmill_fleet_scrape_duration_seconds", "Time the count took")?;
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
    let pending = by_priority("pgmill_priority_pending_tasks", "Tasks that wait for a reader")?;
    let oldest = by_priority(
        "pgmill_priority_oldest_pending_age_seconds",
        "Since the oldest pending task was due; 0 without one",
    )?;
    let weight = by_priority("pgmill_priority_weight", "Its weight in the picks")?;
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
    let workers = labelled("pgmill_workers", "Workers of the fleet", "status")?;
    workers.with_label_values(&["alive"]).set(fleet.alive as f64);
    workers.with_label_values(&["stale"]).set(fleet.stale as f64);
    let runs = labelled("pgmill_runs", "Runs that have not ended", "state")?;
    runs.with_label_values(&["running"]).set(fleet.runs_running as f64);
    runs.with_label_values(&["cancelling"]).set(fleet.runs_cancelling as f64);
    let whole = [
        ("pgmill_table_bytes", "Size of the tasks table with its indexes", fleet.table_bytes),
        ("pgmill_table_dead_tuples", "Dead rows in the tasks table", fleet.dead_tuples),
        ("pgmill_attempts_bytes", "Size of history with its indexes", fleet.attempts_bytes),
        ("pgmill_schema_version", "Version of the schema", fleet.schema_version.into()),
        ("pgmill_database_connections", "Client connections to the server", fleet.connections),
        (
            "pgmill_database_connections_max",
            "Client connections that roles without superuser may open",
            fleet.connections_max,
        ),
        (
            "pgmill_database_frozen_age_transactions",
            "Transaction ids since the oldest row that is not frozen",
            fleet.frozen_age,
        ),
        (
            "pgmill_replication_lag_bytes",
            "WAL that the standby furthest behind has not replayed",
            fleet.replication_lag_bytes,
        ),
        (
            "pgmill_replication_slot_bytes",
            "WAL that the replication slot furthest behind keeps",
            fleet.slot_bytes,
        ),
    ];
    for (name, help, value) in whole {
        add(registry, IntGauge::new(name, help)?)?.set(value);
    }
    let history = Gauge::new(
        "pgmill_history_partitions_ahead_seconds",
        "Until the first day that history has no partition for",
    )?;
    add(registry, history)?.set(fleet.history_seconds);
    let seconds = labelled(
        "pgmill_horizon_age_seconds",
        "Since the transaction began that keeps dead rows from being removed; 0 without one",
        "kind",
    )?;
    let transactions = labelled(
        "pgmill_horizon_age_transactions",
        "Transaction ids that have passed since the oldest snapshot; 0 without one",
        "kind",
    )?;
    for pinned in &fleet.horizon {
        transactions.with_label_values(&[&pinned.kind]).set(pinned.transactions as f64);
        // A standby and a slot tell no time.
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
    let by_status = gauges("pgmill_schedules", "Schedules", "status")?;
    let counts =
        [("enabled", health.enabled), ("error", health.errors), ("disabled", health.disabled)];
    for (status, count) in counts {
        by_status.with_label_values(&[status]).set(count as f64);
    }
    let overdue = Gauge::new(
        "pgmill_schedule_overdue_seconds",
        "How long some schedule has waited for a tick; 0 when none does",
    )?;
    add(registry, overdue)?.set(health.overdue_seconds);
    let declaration_errors = IntGauge::new(
        "pgmill_schedule_declaration_errors",
        "Mistakes in the comments of procedures",
    )?;
    add(registry, declaration_errors)?.set(health.declaration_errors);
    let next = gauges(
        "pgmill_schedule_next_fire_timestamp_seconds",
        "When it fires next, by its timing",
        "schedule",
    )?;
    let success = gauges(
        "pgmill_schedule_last_success_timestamp_seconds",
        "When a run of it last ended well",
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
