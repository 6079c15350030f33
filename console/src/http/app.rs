//! State shared by all handlers.

use std::sync::Arc;

use axum::Router;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::access_control::AccessControl;
use crate::database::Database;
use crate::options::environment::Environment;
use crate::throughput::cache::ThroughputCache;

/// State shared by all handlers.
pub(crate) struct AppState {
    pub(crate) database: Database,
    pub(crate) throughput: ThroughputCache,
    pub(crate) access: AccessControl,
    pub(crate) read_only: bool,
    /// Permits for open task event streams.
    pub(crate) event_streams: Arc<Semaphore>,
    /// Cancelled at shutdown, so that event streams end.
    pub(crate) shutdown: CancellationToken,
    /// Entries of the navigation, in order.
    pub(crate) nav_items: &'static [NavItem],
    /// The environment that every page names.
    pub(crate) environment: Option<Environment>,
    /// Prefix of every path: empty or `/x`.
    pub(crate) base: String,
}

/// Shared handle to [`AppState`].
pub(crate) type App = Arc<AppState>;

/// An entry of the navigation.
pub(crate) struct NavItem {
    /// Path of the screen without the base path.
    pub(crate) path: &'static str,
    /// Link text.
    pub(crate) label: &'static str,
    /// The key that opens the screen after `g`.
    pub(crate) key: char,
    pub(crate) routes: fn() -> Router<App>,
}
