//! Stands in for the web console in a worker that is built without it, and refuses `--console`.

use cli::Failure;
use conninfo::ConnectionTarget;
use http_server::RefusalObserver;
use tokio_util::sync::CancellationToken;

use crate::startup::settings::Settings;

/// A console before it is opened. This build has none, so no value of this type exists.
pub(crate) enum BoundConsole {}

/// An open console. This build has none, so no value of this type exists.
pub(crate) enum Console {}

/// # Errors
/// `--console` is set.
pub(crate) fn bind(
    settings: &Settings,
    _: RefusalObserver,
) -> anyhow::Result<Option<BoundConsole>> {
    if settings.console.is_none() {
        return Ok(None);
    }
    Err(Failure::usage("this worker was built without the web console")
        .hint("Use `pgmill console`, or build the worker with the feature `console`.")
        .into())
}

/// Cannot be called.
pub(crate) async fn open(
    bound: BoundConsole,
    _: &ConnectionTarget,
    _: CancellationToken,
) -> anyhow::Result<Console> {
    match bound {}
}

impl Console {
    /// Cannot be called.
    pub(crate) async fn ended(self) {
        match self {}
    }
}
