//! The steps of a shutdown, which all parts of the process observe.

use tokio_util::sync::CancellationToken;

/// The steps of a shutdown, as cancellation tokens.
#[derive(Clone, Default)]
pub(crate) struct Shutdown {
    /// Cancelled when the worker stops claiming.
    pub(crate) drain: CancellationToken,
    /// Cancelled when all readers have finished. Then heartbeat, reclaimer and metrics stop.
    pub(crate) end: CancellationToken,
}
