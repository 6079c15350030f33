//! Log, metrics, traces and the HTTP server that exposes them.

pub(crate) mod duty_metrics;
pub(crate) mod fleet_gauges;
pub(crate) mod fleet_metrics;
pub(crate) mod http;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod registrar;
pub(crate) mod schedule_metrics;
pub(crate) mod traces;
