//! Metrics of the scheduler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec};
use schedule::tick::TickSummary;

use crate::telemetry::registrar::Registrar;

/// Upper bounds of the buckets for delays, in seconds: 5 ms to 1 h.
const DELAY_SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 3600.0];

/// Reasons for skipping a fire.
const REASONS: [&str; 3] = ["overlap", "missed", "error"];

/// Metrics of the scheduler. Clones share the values.
#[derive(Clone)]
pub(crate) struct ScheduleMetrics {
    fired: IntCounter,
    skipped: IntCounterVec,
    delays: Histogram,
    probes: Histogram,
    age: Gauge,
    last: Arc<Mutex<Option<Instant>>>,
}

impl ScheduleMetrics {
    /// Registers the metrics, all at zero.
    ///
    /// # Errors
    /// Does not occur: the names are constants.
    pub(crate) fn new(new: &Registrar<'_>) -> prometheus::Result<Self> {
        let metrics = Self {
            fired: new.counter("pgmill_schedule_fires_total", "Runs that this worker fired")?,
            skipped: new.counters(
                "pgmill_schedule_skipped_total",
                "Schedule fires that this worker skipped",
                &["reason"],
            )?,
            delays: new.histogram(
                "pgmill_schedule_fire_delay_seconds",
                "Time from the scheduled instant of a fire to the start of its run, without jitter",
                DELAY_SECONDS,
            )?,
            probes: new.histogram(
                "pgmill_schedule_probe_seconds",
                "Duration of trigger probes, including connect",
                DELAY_SECONDS,
            )?,
            age: new.gauge(
                "pgmill_schedule_tick_age_seconds",
                "Time since this worker last had processed every due schedule, in seconds",
                0.0,
            )?,
            last: Arc::default(),
        };
        for reason in REASONS {
            metrics.skipped.with_label_values(&[reason]).inc_by(0);
        }
        Ok(metrics)
    }

    /// Records the time at which no schedule was left to tick.
    pub(crate) fn nothing_due(&self) {
        *self.last.lock() = Some(Instant::now());
    }

    pub(crate) fn record_pass(&self, pass: &TickSummary) {
        self.fired.inc_by(pass.fired);
        for (reason, count) in REASONS.iter().zip([pass.skipped, pass.missed, pass.errors]) {
            self.skipped.with_label_values(&[reason]).inc_by(count);
        }
        for delay in &pass.delays {
            self.delays.observe(delay.as_secs_f64());
        }
    }

    pub(crate) fn record_probe(&self, duration: Duration, answered: bool) {
        self.probes.observe(duration.as_secs_f64());
        if !answered {
            self.skipped.with_label_values(&["error"]).inc();
        }
    }

    pub(crate) fn record_evaluation(&self, fired: bool, skipped: bool) {
        self.fired.inc_by(fired.into());
        self.skipped.with_label_values(&["overlap"]).inc_by(skipped.into());
    }

    /// Updates the time since then, before a scrape.
    pub(crate) fn refresh(&self) {
        if let Some(at) = *self.last.lock() {
            self.age.set(at.elapsed().as_secs_f64());
        }
    }
}
