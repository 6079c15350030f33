//! Creates metrics and registers them.

use prometheus::core::Collector;
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGauge, Opts, Registry, Result,
};

/// A registry under construction. Each method returns the metric after registering it.
///
/// # Errors
/// All methods: the name is invalid or already registered.
pub(crate) struct Registrar<'a>(pub(crate) &'a Registry);

impl Registrar<'_> {
    pub(crate) fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        self.add(IntCounter::new(name, help))
    }

    pub(crate) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub(crate) fn float_counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<CounterVec> {
        self.add(CounterVec::new(Opts::new(name, help), labels))
    }

    /// Registers a gauge with this value, which is whole.
    pub(crate) fn whole(&self, name: &str, help: &str, value: i64) -> Result<IntGauge> {
        let gauge = self.add(IntGauge::new(name, help))?;
        gauge.set(value);
        Ok(gauge)
    }

    /// Registers a gauge with this value.
    pub(crate) fn gauge(&self, name: &str, help: &str, value: f64) -> Result<Gauge> {
        let gauge = self.add(Gauge::new(name, help))?;
        gauge.set(value);
        Ok(gauge)
    }

    pub(crate) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec> {
        self.add(GaugeVec::new(Opts::new(name, help), labels))
    }

    pub(crate) fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
    }

    pub(crate) fn histograms(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
        labels: &[&str],
    ) -> Result<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.add(HistogramVec::new(options, labels))
    }

    fn add<M: Collector + Clone + 'static>(&self, metric: Result<M>) -> Result<M> {
        let metric = metric?;
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}
