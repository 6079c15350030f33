//! State shared by all handlers of one database, and by the pages of all databases.

use std::sync::Arc;

use axum::Router;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::access_control::AccessControl;
use crate::database::Database;
use crate::options::environment::Environment;
use crate::throughput::cache::ThroughputCache;

/// What the pages below one path have in common.
#[derive(Clone)]
pub(crate) struct Frame {
    pub(crate) access: Arc<AccessControl>,
    /// Prefix of every path: empty or `/x`.
    pub(crate) base: String,
    /// Base path of the console, where users sign in and which lists the databases. The same as
    /// `base` if the console serves a single database.
    pub(crate) root: String,
    /// Name of the database among several.
    pub(crate) context: Option<String>,
    /// The environment that every page names.
    pub(crate) environment: Option<Environment>,
    /// Address of a trace, with `{trace_id}`, for links.
    pub(crate) trace_url: Option<String>,
    /// Entries of the navigation, in order.
    pub(crate) nav_items: &'static [NavItem],
}

/// State shared by all handlers of one database.
pub(crate) struct AppState {
    pub(crate) frame: Arc<Frame>,
    pub(crate) database: Database,
    pub(crate) throughput: ThroughputCache,
    pub(crate) read_only: bool,
    /// Permits for open task event streams.
    pub(crate) event_streams: Arc<Semaphore>,
    /// Cancelled at shutdown, so that event streams end.
    pub(crate) shutdown: CancellationToken,
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
