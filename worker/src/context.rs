//! State that all parts of the process share.

use std::sync::Arc;

use queue::WorkerId;

use crate::claim::in_flight::InFlight;
use crate::control::Control;
use crate::shutdown::Shutdown;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;
use crate::wakeup::Wakeup;

/// The worker's identity, its access to the queue, and the channels between its parts.
pub(crate) struct Context {
    pub(crate) worker: WorkerId,
    pub(crate) control: Arc<Control>,
    pub(crate) in_flight: InFlight,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Traces,
    pub(crate) shutdown: Shutdown,
}
