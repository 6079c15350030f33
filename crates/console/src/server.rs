//! Listener, router, startup and shutdown of the console.

use std::future::Future;
use std::sync::Arc;

use axum::response::Redirect;
use axum::routing::get;
use axum::{Router, middleware};
use conninfo::ConnectionTarget;
use http_server::{RefusalObserver, Server};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::database::Database;
use crate::http::access_control::{AccessControl, TlsMode};
use crate::http::app::{App, AppState, Frame};
use crate::http::tls::TlsConfig;
use crate::http::{access_check, assets, body_limit, error_response, login};
use crate::options::access_file::read_source;
use crate::options::contexts::ContextDatabase;
use crate::options::environment::Environment;
use crate::options::{AccessSource, Options, StartError};
use crate::reload::{self, Reload};
use crate::screens::{databases, fleet, tasks};
use crate::throughput::cache::ThroughputCache;
use crate::{api, screens};

/// Maximum number of connections: a browser opens six for each page, so this is enough for 85 pages
/// at once. With 64 kB for the header and 8 kB for a body of a client that has not signed in, all
/// connections together need less than 40 MB.
const MAX_CONNECTIONS: usize = 512;

/// A console with an open listener and a checked database.
pub struct Console {
    listener: TcpListener,
    tls: Option<TlsConfig>,
    observer: RefusalObserver,
    /// The databases; at least one.
    apps: Vec<App>,
    /// Frame of the pages of all databases.
    front: Arc<Frame>,
    /// Whether the console serves several databases, with a front page.
    several: bool,
    access: Arc<AccessControl>,
    access_source: Option<AccessSource>,
    shutdown: CancellationToken,
}

/// Name of the context, database and environment.
type NamedDatabase = (Option<String>, Database, Option<Environment>);

/// A listener that is bound but does not serve yet. Clients can already connect; they wait until
/// the console serves.
pub struct BoundConsole {
    listener: std::net::TcpListener,
    tls: Option<TlsConfig>,
    observer: RefusalObserver,
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
        let tls = options.tls.as_ref().map(TlsConfig::read).transpose()?;
        let listener = std::net::TcpListener::bind(options.listen)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|source| StartError::Listen { address: options.listen.to_string(), source })?;
        Ok(Self { listener, tls, observer: Arc::new(|_| {}), options })
    }

    /// Calls `observer` for each client that is refused.
    #[must_use]
    pub fn observed_by(self, observer: RefusalObserver) -> Self {
        Self { observer, ..self }
    }

    /// Checks the database. Call [`Console::serve`] on the same runtime.
    ///
    /// # Errors
    /// Returns an error if the database is unreachable, has another schema version, or does not
    /// allow the login to read the queue.
    pub async fn open(self, target: &ConnectionTarget) -> Result<Console, StartError> {
        let database = Database::new(target, &self.options.access)?;
        database.check().await?;
        self.console(vec![(None, database, None)])
    }

    /// Prepares a console with several databases. A database that is unreachable is not an error:
    /// the console checks each database when its first page is requested. Call [`Console::serve`]
    /// on the same runtime.
    ///
    /// # Errors
    /// Returns an error if a pool cannot be created.
    pub fn open_all(self, databases: Vec<ContextDatabase>) -> Result<Console, StartError> {
        let named = |it: ContextDatabase| {
            let database = Database::new(&it.target, &self.options.access)?;
            Ok::<_, StartError>((Some(it.name), database, it.environment))
        };
        let databases = databases.into_iter().map(named).collect::<Result<_, _>>()?;
        self.console(databases)
    }

    /// Prepares a console with these databases, each with the name of its context and its environment.
    fn console(self, databases: Vec<NamedDatabase>) -> Result<Console, StartError> {
        let Self { listener, tls, observer, options } = self;
        let listener = into_tokio(listener, &options)?;
        let root = options.base_path.trim_end_matches('/').to_owned();
        let access = access_control(&options, &observer);
        let shutdown = CancellationToken::new();
        let frame = Frame {
            access: Arc::clone(&access),
            base: root.clone(),
            root,
            context: None,
            environment: options.environment,
            trace_url: options.trace_url,
            nav_items: screens::NAV_ITEMS,
        };
        let of_database = |(name, database, environment): NamedDatabase| {
            let mut frame = frame.clone();
            if let Some(name) = &name {
                frame.base = format!("{}/db/{name}", frame.root);
            }
            frame.context = name;
            frame.environment = environment.or(frame.environment);
            app(Arc::new(frame), database, options.read_only, shutdown.clone())
        };
        let several = databases.iter().any(|(name, ..)| name.is_some());
        let apps = databases.into_iter().map(of_database).collect();
        let access_source = options.access_source;
        let front = Arc::new(Frame { nav_items: &[], ..frame });
        Ok(Console {
            listener,
            tls,
            observer,
            apps,
            front,
            several,
            access,
            access_source,
            shutdown,
        })
    }
}

/// Hands the listener over to this runtime.
fn into_tokio(
    listener: std::net::TcpListener,
    options: &Options,
) -> Result<TcpListener, StartError> {
    TcpListener::from_std(listener)
        .map_err(|source| StartError::Listen { address: options.listen.to_string(), source })
}

fn access_control(options: &Options, observer: &RefusalObserver) -> Arc<AccessControl> {
    let https = match () {
        () if options.behind_proxy => TlsMode::Proxy,
        () if options.tls.is_some() => TlsMode::Own,
        () => TlsMode::None,
    };
    let (rules, hosts) = (options.access.clone(), options.hosts.clone());
    let root = options.base_path.trim_end_matches('/').to_owned();
    Arc::new(AccessControl::new(rules, hosts, https, root, Arc::clone(observer)))
}

fn app(frame: Arc<Frame>, database: Database, read_only: bool, shutdown: CancellationToken) -> App {
    Arc::new(AppState {
        frame,
        database,
        throughput: ThroughputCache::new(),
        read_only,
        event_streams: Arc::new(Semaphore::new(tasks::events::MAX_STREAMS)),
        shutdown,
    })
}

impl Console {
    /// Returns the URL of the console.
    ///
    /// # Errors
    /// Returns an error if the local address of the socket is not available.
    pub fn url(&self) -> std::io::Result<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(format!("{scheme}://{}{}/", self.listener.local_addr()?, self.front.root))
    }

    /// Serves requests until `end` completes and all open requests are answered, but at most 30 s
    /// longer.
    pub async fn serve(self, end: impl Future<Output = ()>) {
        let tasks = TaskTracker::new();
        let run = |app: &App| tasks.spawn(run_throughput_cache(Arc::clone(app)));
        let mut background: Vec<_> = self.apps.iter().map(run).collect();
        let shutdown = self.shutdown;
        let end = async move {
            end.await;
            shutdown.cancel();
        };
        let mut server = Server::new(self.listener, MAX_CONNECTIONS, self.observer);
        if let Some(tls) = self.tls {
            server = server.with_tls(tls.subscribe());
            background.push(tasks.spawn(tls.reload()));
        }
        if let Some(source) = self.access_source {
            background.push(tasks.spawn(reload_access(self.access, source)));
        }
        let front = self.several.then_some(self.front);
        server.serve(router(self.apps, front), end).await;
        background.iter().for_each(tokio::task::JoinHandle::abort);
        tasks.close();
        tasks.wait().await;
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

/// Reads the access rules again at an interval. What changed applies to the next request of each user.
async fn reload_access(access: Arc<AccessControl>, source: AccessSource) {
    let mut reload = Reload::of("access file");
    loop {
        reload.due().await;
        let source = source.clone();
        let read = reload::read(move || read_source(&source)).await;
        reload.done(read.map(|rules| {
            if rules.is_some_and(|rules| access.set_rules(rules)) {
                tracing::info!("the access file was read again");
            }
        }));
    }
}

async fn run_throughput_cache(app: App) {
    app.throughput.run(&app.database).await;
}

fn router(apps: Vec<App>, front: Option<Arc<Frame>>) -> Router {
    let Some(front) = front else {
        // A single database.
        return apps.into_iter().map(single_router).next().unwrap_or_default();
    };
    let routers = apps.iter().map(|app| database_router(app, database_routes()));
    let of_databases = routers.fold(Router::new(), Router::merge);
    let at_root = common_routes(&front)
        .merge(assets::routes())
        .merge(databases::route("/", &front, &apps))
        .fallback(error_response::page_not_found);
    let placed = if front.base.is_empty() {
        at_root
    } else {
        let home = format!("{}/", front.base);
        Router::new()
            .nest(&front.base, at_root)
            .merge(databases::route(&home, &front, &apps))
            .route("/", get(move || async move { Redirect::to(&home) }))
            .fallback(error_response::page_not_found)
    };
    of_databases.merge(checked(placed, &front))
}

/// Returns the routes of a console with one database.
fn single_router(app: App) -> Router {
    let inner = database_routes().merge(common_routes(&app.frame));
    if app.frame.base.is_empty() {
        let inner = inner.fallback(error_response::page_not_found);
        return checked(inner, &app.frame).with_state(app);
    }
    let home = format!("{}/", app.frame.base);
    let to_home = Router::new()
        .route("/", get(move || async move { Redirect::to(&home) }))
        .fallback(error_response::page_not_found);
    database_router(&app, inner).merge(checked(to_home, &app.frame))
}

/// Places the routes of a database below its base path.
fn database_router(app: &App, routes: Router<App>) -> Router {
    let placed = Router::new()
        .nest(&app.frame.base, routes.fallback(error_response::page_not_found))
        .route(&format!("{}/", app.frame.base), get(fleet::overview::show));
    checked(placed, &app.frame).with_state(Arc::clone(app))
}

fn database_routes() -> Router<App> {
    screens::routes()
        .merge(api::routes())
        .layer(middleware::from_fn(body_limit::enforce))
        .merge(assets::routes())
}

/// Returns the routes that need no database.
fn common_routes<S: Clone + Send + Sync + 'static>(frame: &Arc<Frame>) -> Router<S> {
    login::routes().with_state(Arc::clone(frame)).route("/livez", get(|| async { "alive\n" }))
}

/// Adds the access checks and the error pages.
fn checked<S: Clone + Send + Sync + 'static>(router: Router<S>, frame: &Arc<Frame>) -> Router<S> {
    let (errors, access) = (Arc::clone(frame), Arc::clone(frame));
    router
        .layer(middleware::map_response_with_state(errors, error_response::render_errors))
        .layer(middleware::from_fn_with_state(access, access_check::enforce))
}
