//! Checks of the monitoring: Prometheus and its rules, Grafana, runbooks.

pub(super) mod grafana;
pub(super) mod prometheus;
pub(super) mod runbooks;
