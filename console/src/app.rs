//! Listener, router, startup and shutdown of the console.

use std::future::Future;
use std::sync::Arc;

use axum::response::Redirect;
use axum::routing::get;
use axum::{Router, middleware};
use queue::QueueError;
use queue::connect::{ConnectError, ConnectionTarget};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access_control::{AccessControl, TlsMode};
use crate::database::Database;
use crate::throughput_cache::ThroughputCache;
use crate::tls::{TlsFiles, TlsListener};
use crate::{Options, access_control, api, assets, http_error, login, screens};

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
    /// Prefix of every path: empty or `/x`.
    pub(crate) base: String,
}

/// Shared handle to [`AppState`].
pub(crate) type App = Arc<AppState>;

/// Errors at the start of a console.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The options are invalid or contradictory.
    #[error("{message}")]
    Usage {
        /// The error message.
        message: String,
        /// A hint how to fix the options.
        hint: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The connection to the database failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The database has no pgmill schema, another schema version, or returned an error.
    #[error(transparent)]
    Database(#[from] QueueError),
}

/// A console with an open listener and a checked database.
pub struct Console {
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    app: App,
}

/// A bound listener. Clients can connect and wait until the console serves.
pub struct BoundConsole {
    listener: std::net::TcpListener,
    tls: Option<Arc<ServerConfig>>,
    options: Options,
}

impl BoundConsole {
    /// Checks the options and binds the address.
    ///
    /// # Errors
    /// Returns an error if the address is not a loopback address and the token or TLS is missing,
    /// if certificate and key are unusable, or if the address is in use.
    pub fn new(options: Options) -> Result<Self, StartError> {
        check(&options)?;
        let tls = options.tls.as_ref().map(TlsFiles::read).transpose()?;
        let listener = std::net::TcpListener::bind(options.listen)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|source| StartError::Listen { address: options.listen.to_string(), source })?;
        Ok(Self { listener, tls, options })
    }

    /// Checks the database. Call [`Console::serve`] on the same runtime.
    ///
    /// # Errors
    /// Returns an error if the database is unreachable, has another schema version, or does not
    /// allow the login to read the queue.
    pub async fn open(self, target: &ConnectionTarget) -> Result<Console, StartError> {
        let Self { listener, tls, options } = self;
        let database = Database::new(target)?;
        database.check().await?;
        let listener = TcpListener::from_std(listener)
            .map_err(|source| StartError::Listen { address: options.listen.to_string(), source })?;
        let https = match () {
            () if options.behind_proxy => TlsMode::Proxy,
            () if tls.is_some() => TlsMode::Own,
            () => TlsMode::None,
        };
        let app = Arc::new(AppState {
            database,
            throughput: ThroughputCache::new(),
            access: AccessControl::new(options.tokens, options.hosts, https),
            read_only: options.read_only,
            event_streams: Arc::new(Semaphore::new(screens::MAX_STREAMS)),
            shutdown: CancellationToken::new(),
            base: options.base_path.trim_end_matches('/').to_owned(),
        });
        Ok(Console { listener, tls, app })
    }
}

impl Console {
    /// Checks the options and the database and binds the address.
    ///
    /// # Errors
    /// Returns the errors of [`BoundConsole::new`] and [`BoundConsole::open`].
    pub async fn start(target: &ConnectionTarget, options: Options) -> Result<Self, StartError> {
        BoundConsole::new(options)?.open(target).await
    }

    /// Returns the URL of the console.
    ///
    /// # Errors
    /// Returns an error if the local address of the socket is not available.
    pub fn url(&self) -> std::io::Result<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(format!("{scheme}://{}{}/", self.listener.local_addr()?, self.app.base))
    }

    /// Serves requests until `end` completes and all open requests are answered.
    ///
    /// # Errors
    /// Returns an error if the socket fails.
    pub async fn serve(
        self,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let tasks = TaskTracker::new();
        let reader = tasks.spawn(run_throughput_cache(Arc::clone(&self.app)));
        let shutdown = self.app.shutdown.clone();
        let end = async move {
            end.await;
            shutdown.cancel();
        };
        let router = router(&self.app);
        let served = match self.tls {
            None => axum::serve(self.listener, router).with_graceful_shutdown(end).await,
            Some(config) => {
                let listener = TlsListener::new(self.listener, config);
                axum::serve(listener, router).with_graceful_shutdown(end).await
            }
        };
        reader.abort();
        tasks.close();
        tasks.wait().await;
        served
    }
}

/// Requires a token and TLS unless the address is a loopback address, so that nobody on the network
/// can read the token.
fn check(options: &Options) -> Result<(), StartError> {
    if options.listen.ip().is_loopback() {
        return Ok(());
    }
    let (here, flag) = (options.listen, options.flag_prefix);
    let refused = |what: &str, hint: String| {
        let message = format!("{here} is not a loopback address: {what}");
        Err(StartError::Usage { message, hint })
    };
    if options.tokens.is_empty() {
        let hint = format!("pass {flag}token-file FILE, or listen on 127.0.0.1");
        return refused("a token is required", hint);
    }
    if options.tls.is_none() && !options.behind_proxy {
        let hint = format!(
            "pass {flag}tls-cert FILE {flag}tls-key FILE, \
             or {flag}behind-proxy if a proxy terminates TLS"
        );
        return refused("TLS is required to protect the token", hint);
    }
    Ok(())
}

async fn run_throughput_cache(app: App) {
    app.throughput.run(&app.database).await;
}

fn router(app: &App) -> Router {
    let inner = screens::routes()
        .merge(api::routes())
        .merge(login::routes())
        .merge(assets::routes())
        .route("/livez", get(|| async { "alive\n" }))
        .fallback(http_error::page_not_found);
    let placed = if app.base.is_empty() {
        inner
    } else {
        let home = format!("{}/", app.base);
        Router::new()
            .nest(&app.base, inner)
            .route(&home, get(screens::home))
            .route("/", get(move || async move { Redirect::to(&home) }))
            .fallback(http_error::page_not_found)
    };
    placed
        .layer(middleware::map_response_with_state(Arc::clone(app), http_error::render_errors))
        .layer(middleware::from_fn_with_state(Arc::clone(app), access_control::enforce))
        .with_state(Arc::clone(app))
}
