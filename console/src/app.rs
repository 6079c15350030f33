//! From a listener to answers.

use std::future::Future;
use std::sync::Arc;

use axum::response::Redirect;
use axum::routing::get;
use axum::{Router, middleware};
use queue::QueueError;
use queue::connect::{ConnectError, Target};
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

/// What every handler may look at.
pub(crate) struct AppState {
    pub(crate) database: Database,
    pub(crate) throughput: ThroughputCache,
    pub(crate) access: AccessControl,
    pub(crate) read_only: bool,
    /// Seats for pages that watch a task.
    pub(crate) event_streams: Arc<Semaphore>,
    /// Cancelled when the server is to end: what would go on for ever ends then.
    pub(crate) shutdown: CancellationToken,
    /// In front of every path; empty or `/x`.
    pub(crate) base: String,
}

/// Shared by all handlers.
pub(crate) type App = Arc<AppState>;

/// Why a console does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The options do not fit together.
    #[error("{message}")]
    Usage {
        /// What is wrong.
        message: String,
        /// What to do about it.
        hint: String,
    },
    /// Nobody can listen there.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The database is none of pgmill's, or in trouble.
    #[error(transparent)]
    Database(#[from] QueueError),
}

/// A console that listens and has seen its database.
pub struct Console {
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    app: App,
}

/// An address that is listened on; who connects waits until the console is opened.
pub struct BoundConsole {
    listener: std::net::TcpListener,
    tls: Option<Arc<ServerConfig>>,
    options: Options,
}

impl BoundConsole {
    /// Checks the options, and listens.
    ///
    /// # Errors
    /// An address beyond this machine without a token or without TLS; files that do not fit; an
    /// address that is taken.
    pub fn new(options: Options) -> Result<Self, StartError> {
        check(&options)?;
        let tls = options.tls.as_ref().map(TlsFiles::read).transpose()?;
        let listener = std::net::TcpListener::bind(options.listen)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|source| StartError::Listen { address: options.listen.to_string(), source })?;
        Ok(Self { listener, tls, options })
    }

    /// Checks the database. Serve it on the runtime that this is called on.
    ///
    /// # Errors
    /// No database, or one with another schema, or one that the login may not look at.
    pub async fn open(self, target: &Target) -> Result<Console, StartError> {
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
    /// Checks the options and the database, and listens.
    ///
    /// # Errors
    /// Those of [`BoundConsole::new`] and [`BoundConsole::open`].
    pub async fn start(target: &Target, options: Options) -> Result<Self, StartError> {
        BoundConsole::new(options)?.open(target).await
    }

    /// Where to point a browser.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn url(&self) -> std::io::Result<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(format!("{scheme}://{}{}/", self.listener.local_addr()?, self.app.base))
    }

    /// Serves until `end` is ready and the last answer has been given.
    ///
    /// # Errors
    /// The socket is gone.
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

/// What can be reached from elsewhere asks for a token, and nobody on the way reads it.
fn check(options: &Options) -> Result<(), StartError> {
    if options.listen.ip().is_loopback() {
        return Ok(());
    }
    let (here, flag) = (options.listen, options.flag_prefix);
    let refused = |what: &str, hint: String| {
        let message = format!("{here} can be reached from elsewhere, and there is {what}");
        Err(StartError::Usage { message, hint })
    };
    if options.tokens.is_empty() {
        let hint =
            format!("name a file with a token: {flag}token-file FILE; or listen on 127.0.0.1");
        return refused("no token", hint);
    }
    if options.tls.is_none() && !options.behind_proxy {
        let hint = format!(
            "{flag}tls-cert FILE {flag}tls-key FILE, or {flag}behind-proxy if a proxy speaks TLS"
        );
        return refused("no TLS: the token could be read on the way", hint);
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
