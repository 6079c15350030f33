//! Listener, router, startup and shutdown of the console.

use std::future::Future;
use std::sync::Arc;

use axum::response::Redirect;
use axum::routing::get;
use axum::{Router, middleware};
use conninfo::ConnectionTarget;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::database::Database;
use crate::http::access_control::{AccessControl, TlsMode};
use crate::http::app::{App, AppState};
use crate::http::peer_address::PeerAddress;
use crate::http::tls::TlsListener;
use crate::http::{access_check, assets, error_response, login};
use crate::options::{Options, StartError, TlsFiles};
use crate::screens::{fleet, tasks};
use crate::throughput::cache::ThroughputCache;
use crate::{api, screens};

/// A console with an open listener and a checked database.
pub struct Console {
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    app: App,
}

/// A listener that is bound but does not serve yet. Clients can already connect; they wait until
/// the console serves.
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
        database.check(&options.access).await?;
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
            access: AccessControl::new(options.access, options.hosts, https),
            read_only: options.read_only,
            event_streams: Arc::new(Semaphore::new(tasks::events::MAX_STREAMS)),
            shutdown: CancellationToken::new(),
            nav_items: screens::NAV_ITEMS,
            environment: options.environment,
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
        let service = router(&self.app).into_make_service_with_connect_info::<PeerAddress>();
        let served = match self.tls {
            None => axum::serve(self.listener, service).with_graceful_shutdown(end).await,
            Some(config) => {
                let listener = TlsListener::new(self.listener, config);
                axum::serve(listener, service).with_graceful_shutdown(end).await
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
    if !options.access.require_sign_in() {
        let hint =
            format!("pass {flag}token-file FILE or {flag}access-file FILE, or listen on 127.0.0.1");
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
        .merge(screens::saved_filters::routes())
        .merge(api::routes())
        .merge(login::routes())
        .merge(assets::routes())
        .route("/livez", get(|| async { "alive\n" }))
        .fallback(error_response::page_not_found);
    let placed = if app.base.is_empty() {
        inner
    } else {
        let home = format!("{}/", app.base);
        Router::new()
            .nest(&app.base, inner)
            .route(&home, get(fleet::overview::show))
            .route("/", get(move || async move { Redirect::to(&home) }))
            .fallback(error_response::page_not_found)
    };
    placed
        .layer(middleware::map_response_with_state(Arc::clone(app), error_response::render_errors))
        .layer(middleware::from_fn_with_state(Arc::clone(app), access_check::enforce))
        .with_state(Arc::clone(app))
}
