//! Metrics of the duties, labelled with the name of the duty.

use std::time::Duration;

use prometheus::{Counter, CounterVec, IntCounter, IntCounterVec};

use crate::telemetry::registrar::Registrar;

/// Metrics of all duties; clones share the values.
#[derive(Clone)]
pub(crate) struct DutyMetrics {
    runs: IntCounterVec,
    errors: IntCounterVec,
    seconds: CounterVec,
    items: IntCounterVec,
}

/// Metrics of one duty.
pub(crate) struct RunMetrics {
    runs: IntCounter,
    errors: IntCounter,
    seconds: Counter,
    items: IntCounter,
}

impl DutyMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// Does not occur: the names are constants.
    pub(crate) fn new(new: &Registrar<'_>) -> prometheus::Result<Self> {
        let label = &["duty"];
        Ok(Self {
            runs: new.counters(
                "pgmill_duty_runs_total",
                "Runs of a background service, by duty",
                label,
            )?,
            errors: new.counters(
                "pgmill_duty_errors_total",
                "Failed runs of a background service, by duty",
                label,
            )?,
            seconds: new.float_counters(
                "pgmill_duty_seconds_total",
                "Total duration of the runs of a background service, by duty",
                label,
            )?,
            items: new.counters(
                "pgmill_duty_items_total",
                "Tasks, runs or fires that a background service has processed, by duty",
                label,
            )?,
        })
    }

    /// Returns the metrics of one duty, which start at zero.
    pub(crate) fn of(&self, duty: &str) -> RunMetrics {
        RunMetrics {
            runs: self.runs.with_label_values(&[duty]),
            errors: self.errors.with_label_values(&[duty]),
            seconds: self.seconds.with_label_values(&[duty]),
            items: self.items.with_label_values(&[duty]),
        }
    }
}

impl RunMetrics {
    /// Records a run of the duty. `items` is the number of items that it processed; `None` if it
    /// failed.
    pub(crate) fn record(&self, duration: Duration, items: Option<u64>) {
        self.runs.inc();
        self.seconds.inc_by(duration.as_secs_f64());
        match items {
            Some(items) => self.items.inc_by(items),
            None => self.errors.inc(),
        }
    }
}
