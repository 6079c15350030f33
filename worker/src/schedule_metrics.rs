//! What the scheduler did, as metrics.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};
use schedule::tick::TickSummary;

use crate::metrics::add;

/// 5 ms to 1 h.
const DELAY_SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 3600.0];

/// Why a fire was not made.
const REASONS: [&str; 3] = ["overlap", "missed", "error"];

/// The metrics; a clone shares them.
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
    /// All at zero.
    ///
    /// # Errors
    /// Never in practice: the names are constants.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let histogram = |name: &str, help: &str| {
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(DELAY_SECONDS.to_vec()))
                .and_then(|histogram| add(registry, histogram))
        };
        let skipped = IntCounterVec::new(
            Opts::new("pgmill_schedule_skipped_total", "Fires that this worker did not make"),
            &["reason"],
        )?;
        let fired =
            IntCounter::new("pgmill_schedule_fires_total", "Runs that this worker has fired")?;
        let age = Gauge::new(
            "pgmill_schedule_tick_age_seconds",
            "Since this worker last knew that no schedule was left to look at",
        )?;
        let metrics = Self {
            fired: add(registry, fired)?,
            skipped: add(registry, skipped)?,
            delays: histogram(
                "pgmill_schedule_fire_delay_seconds",
                "From the instant of a fire to its tick, less its jitter",
            )?,
            probes: histogram(
                "pgmill_schedule_probe_seconds",
                "Looks at what triggers a schedule, with their connection",
            )?,
            age: add(registry, age)?,
            last: Arc::default(),
        };
        for reason in REASONS {
            metrics.skipped.with_label_values(&[reason]).inc_by(0);
        }
        Ok(metrics)
    }

    /// Nothing is left to look at.
    pub(crate) fn nothing_due(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
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

    /// What is looked at when somebody asks.
    pub(crate) fn refresh(&self) {
        if let Some(at) = *self.last.lock().unwrap_or_else(PoisonError::into_inner) {
            self.age.set(at.elapsed().as_secs_f64());
        }
    }
}
