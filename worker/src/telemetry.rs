//! Log, metrics and traces, and notifications of the service manager.
//!
//! | output | file |
//! |---|---|
//! | log lines on stderr, as text or JSON; abort after a panic | `log` |
//! | creation and registration of metrics | `registrar` |
//! | metrics of this process, and their text for Prometheus | `metrics` |
//! | runs, errors, durations and items of each duty | `duty_metrics` |
//! | fires, skips and delays of schedules; durations of probes | `schedule_metrics` |
//! | gauges of these counts: queues, priorities, targets, workers, schedules | `fleet_gauges` |
//! | spans of tasks: sampled, made and exported by OTLP | `traces` |
//! | messages to the service manager: ready, alive, stopping | `sd_notify` |

pub(crate) mod duty_metrics;
pub(crate) mod fleet_gauges;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod registrar;
pub(crate) mod schedule_metrics;
pub(crate) mod sd_notify;
pub(crate) mod traces;
