//! Histogram of single latencies, and its percentile curve.

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::result::Percentiles;

/// Maximum recorded latency in microseconds: one hour. A longer event is recorded as one hour.
const MAX_MICROSECONDS: u64 = 3_600_000_000;

/// Histogram in microseconds with three significant digits.
pub(crate) struct LatencyHistogram {
    histogram: Histogram<u64>,
}

impl LatencyHistogram {
    pub(crate) fn new() -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, MAX_MICROSECONDS, 3);
        Ok(Self { histogram: histogram.context("could not create the histogram")? })
    }

    /// Records one event; negative durations count as zero.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rounded, not negative, and far from the ends of the type"
    )]
    pub(crate) fn add(&mut self, milliseconds: f64) {
        self.histogram.saturating_record((milliseconds.max(0.0) * 1000.0).round() as u64);
    }

    /// Adds all events of another histogram.
    pub(crate) fn merge(&mut self, other: &Self) -> Result<()> {
        self.histogram.add(&other.histogram).context("could not merge the histograms")
    }

    /// Returns the latency in milliseconds at a percentile from 0 to 100.
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a measurement")]
    pub(crate) fn at(&self, percentile: f64) -> f64 {
        self.histogram.value_at_percentile(percentile) as f64 / 1000.0
    }

    /// Returns the percentile curve, up to the point supported by the number of events.
    pub(crate) fn percentiles(&self) -> Percentiles {
        let mut curve: Vec<(f64, f64)> = self
            .histogram
            .iter_quantiles(2)
            .map(|step| (step.percentile(), self.at(step.percentile())))
            .collect();
        curve.dedup();
        Percentiles {
            count: self.histogram.len(),
            p50: self.at(50.0),
            p90: self.at(90.0),
            p99: self.at(99.0),
            p999: self.at(99.9),
            max: self.at(100.0),
            curve,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_events() {
        let mut times = LatencyHistogram::new().unwrap();
        for n in 1..=1000 {
            times.add(f64::from(n) / 10.0);
        }
        times.add(-1.0);
        let p = times.percentiles();
        assert_eq!(p.count, 1001);
        assert!((p.p50 - 50.0).abs() < 0.2 && (p.p99 - 99.0).abs() < 0.2, "{p:?}");
        assert!((p.max - 100.0).abs() < 0.2, "{p:?}");
        assert!(p.curve.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
        assert!(p.curve.len() > 10);
    }
}
