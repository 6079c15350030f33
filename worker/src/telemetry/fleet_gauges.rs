//! Fills a registry with fleet-wide gauges.

use std::time::Duration;

use prometheus::{Registry, Result};
use queue::fleet::Fleet;
use queue::priority::PriorityStatus;
use queue::queue_status::QueueStatus;
use schedule::queries::{Health, Instants};

use crate::telemetry::registrar::Registrar;

/// Counts of the whole fleet at one time.
pub(crate) struct FleetCounts {
    pub(crate) queues: Vec<QueueStatus>,
    pub(crate) priorities: Vec<PriorityStatus>,
    pub(crate) targets: Vec<(String, Option<String>)>,
    pub(crate) fleet: Fleet,
    pub(crate) schedules: Health,
    pub(crate) instants: Vec<Instants>,
    /// Time that the count took.
    pub(crate) duration: Duration,
}

impl FleetCounts {
    /// Returns a new registry with these counts. Each call creates a registry, so that the series
    /// of a removed queue disappear.
    ///
    /// # Errors
    /// Does not occur: the names are constants.
    pub(crate) fn registry(&self) -> Result<Registry> {
        let registry = Registry::new();
        let new = Registrar(&registry);
        fill_queues(&new, &self.queues)?;
        fill_priorities(&new, &self.priorities)?;
        fill_targets(&new, &self.targets)?;
        fill_schedules(&new, self.schedules, &self.instants)?;
        fill_fleet(&new, &self.fleet)?;
        scrape_success(&new, 1)?;
        let duration = self.duration.as_secs_f64();
        new.gauge(
            "pgmill_fleet_scrape_duration_seconds",
            "Duration of the last query for the fleet metrics",
            duration,
        )?;
        Ok(registry)
    }
}

/// Returns a registry that only shows that the counts are missing.
///
/// # Errors
/// As [`FleetCounts::registry`].
pub(crate) fn failed() -> Result<Registry> {
    let registry = Registry::new();
    scrape_success(&Registrar(&registry), 0)?;
    Ok(registry)
}

fn scrape_success(new: &Registrar<'_>, value: i64) -> Result<()> {
    let help = "1 if the last query for the fleet metrics succeeded, else 0";
    new.whole("pgmill_fleet_scrape_success", help, value).map(drop)
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
fn fill_queues(new: &Registrar<'_>, queues: &[QueueStatus]) -> Result<()> {
    let label = &["queue"];
    let tasks = new.gauges("pgmill_queue_tasks", "Live tasks, by state", &["queue", "state"])?;
    let oldest = new.gauges(
        "pgmill_queue_oldest_runnable_age_seconds",
        "Seconds since the oldest pending task was due; 0 if no task is pending",
        label,
    )?;
    let longest = new.gauges(
        "pgmill_queue_longest_running_seconds",
        "Seconds since the longest-running task was claimed; 0 if no task is running",
        label,
    )?;
    let paused = new.gauges("pgmill_queue_paused", "1 while the queue is paused", label)?;
    let held_back = new.gauges(
        "pgmill_queue_held_back",
        "1 while a condition of the queue does not hold, so that workers claim nothing from it",
        label,
    )?;
    let max_running = new.gauges(
        "pgmill_queue_max_running",
        "Maximum number of running tasks, for queues with such a limit",
        label,
    )?;
    for queue in queues {
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
        held_back.with_label_values(&[name]).set(f64::from(u8::from(queue.held_back.is_some())));
        if let Some(limit) = queue.max_running {
            max_running.with_label_values(&[name]).set(limit.into());
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
fn fill_priorities(new: &Registrar<'_>, priorities: &[PriorityStatus]) -> Result<()> {
    let by_priority = |name: &str, help: &str| new.gauges(name, help, &["priority"]);
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

fn fill_targets(new: &Registrar<'_>, targets: &[(String, Option<String>)]) -> Result<()> {
    let held_back = new.gauges(
        "pgmill_target_held_back",
        "1 while a condition of the target does not hold, so that workers claim none of its tasks",
        &["target"],
    )?;
    for (target, condition) in targets {
        held_back.with_label_values(&[target]).set(f64::from(u8::from(condition.is_some())));
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
fn fill_fleet(new: &Registrar<'_>, fleet: &Fleet) -> Result<()> {
    let labelled = |name: &str, help: &str, label: &str| new.gauges(name, help, &[label]);
    let workers = labelled("pgmill_workers", "Workers, by status", "status")?;
    workers.with_label_values(&["alive"]).set(fleet.alive as f64);
    workers.with_label_values(&["stale"]).set(fleet.stale as f64);
    let runs = labelled("pgmill_runs", "Unfinished runs, by state", "state")?;
    runs.with_label_values(&["running"]).set(fleet.runs_running as f64);
    runs.with_label_values(&["cancelling"]).set(fleet.runs_cancelling as f64);
    let whole = [
        ("pgmill_runs_late", "Unfinished runs that have missed their deadline", fleet.runs_late),
        (
            "pgmill_fleet_paused",
            "1 while a maintenance window pauses the fleet",
            fleet.paused.into(),
        ),
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
            "Number of transactions since the oldest unfrozen row was written",
            fleet.frozen_age,
        ),
        (
            "pgmill_replication_lag_bytes",
            "WAL that the standby furthest behind has not replayed; 0 without a standby",
            fleet.replication_lag_bytes,
        ),
        (
            "pgmill_replication_slot_bytes",
            "WAL that the replication slot furthest behind retains; 0 without a slot",
            fleet.slot_bytes,
        ),
    ];
    for (name, help, value) in whole {
        new.whole(name, help, value)?;
    }
    fill_notifications(new, fleet)?;
    new.gauge(
        "pgmill_history_partitions_ahead_seconds",
        "Seconds until the first day (UTC) without a history partition",
        fleet.history_seconds,
    )?;
    fill_horizon(new, fleet)
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
fn fill_horizon(new: &Registrar<'_>, fleet: &Fleet) -> Result<()> {
    let labelled = |name: &str, help: &str, label: &str| new.gauges(name, help, &[label]);
    let seconds = labelled(
        "pgmill_horizon_age_seconds",
        "Age of the oldest transaction that holds back vacuum; 0 without such a transaction",
        "kind",
    )?;
    let transactions = labelled(
        "pgmill_horizon_age_transactions",
        "Number of transactions since the oldest snapshot that holds back vacuum; 0 without one",
        "kind",
    )?;
    for pinned in &fleet.horizon {
        transactions.with_label_values(&[&pinned.kind]).set(pinned.transactions as f64);
        // For a standby and for a replication slot, the server reports no time.
        if ["session", "prepared"].contains(&pinned.kind.as_str()) {
            seconds.with_label_values(&[&pinned.kind]).set(pinned.seconds);
        }
    }
    Ok(())
}

fn fill_notifications(new: &Registrar<'_>, fleet: &Fleet) -> Result<()> {
    new.gauge(
        "pgmill_notification_oldest_pending_seconds",
        "Seconds since the event of the oldest notification that is not delivered; 0 if none",
        fleet.notification_seconds,
    )?;
    let help = "Notifications that could not be delivered";
    new.whole("pgmill_notifications_dead", help, fleet.notifications_dead)?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
fn fill_schedules(new: &Registrar<'_>, health: Health, instants: &[Instants]) -> Result<()> {
    let gauges = |name: &str, help: &str, label: &str| new.gauges(name, help, &[label]);
    let by_status = gauges("pgmill_schedules", "Schedules, by status", "status")?;
    let counts =
        [("enabled", health.enabled), ("error", health.errors), ("disabled", health.disabled)];
    for (status, count) in counts {
        by_status.with_label_values(&[status]).set(count as f64);
    }
    new.gauge(
        "pgmill_schedule_overdue_seconds",
        "Longest time that a due schedule has waited for a worker; 0 if no schedule is due",
        health.overdue_seconds,
    )?;
    new.whole(
        "pgmill_schedule_declaration_errors",
        "Errors in schedule declarations in comments of procedures",
        health.declaration_errors,
    )?;
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
