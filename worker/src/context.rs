//! State that all parts of the process share: the claims `in_flight`, the `reader_sessions`, and the
//! function of an embedding program for each `attempt_end`.

pub(crate) mod attempt_end;
pub(crate) mod in_flight;
pub(crate) mod reader_sessions;

use std::sync::Arc;
use std::time::Duration;

use queue::{Claim, Disposition, WorkerId};

use crate::context::attempt_end::AttemptEndHook;
use crate::context::in_flight::InFlight;
use crate::context::reader_sessions::ReaderSessions;
use crate::control::Control;
use crate::shutdown::{Shutdown, Tasks};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;
use crate::wakeup::claimer::ClaimerHandle;

/// The worker's identity, its access to the queue, and the channels between its parts.
pub(crate) struct Context {
    pub(crate) worker: WorkerId,
    pub(crate) control: Arc<Control>,
    pub(crate) in_flight: InFlight,
    pub(crate) reader_sessions: ReaderSessions,
    pub(crate) claimer: ClaimerHandle,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Traces,
    pub(crate) shutdown: Shutdown,
    pub(crate) tasks: Tasks,
    pub(crate) on_attempt_end: Option<AttemptEndHook>,
}

impl Context {
    /// Reports the end of an attempt to the program that embeds the worker.
    pub(crate) fn attempt_ended(&self, claim: &Claim, disposition: Disposition, ran: Duration) {
        if let Some(hook) = &self.on_attempt_end {
            attempt_end::report(hook, claim, disposition, ran);
        }
    }
}
