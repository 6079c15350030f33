//! Life cycle of the worker process: startup checks, background services, readers and shutdown.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use cli::duration::HumanDuration;
use conninfo::Environment;
use fleet_decisions::timing::{CANCEL_TIMEOUT, DEREGISTRATION_TIMEOUT};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::attempt::call::handlers::Handlers;
use crate::context::Context;
use crate::context::attempt_end::AttemptEndHook;
use crate::startup::config::Config;
use crate::startup::console::{self, BoundConsole, Console};
use crate::startup::parts::Parts;
use crate::startup::services::{self, Registered, Services};
use crate::startup::shutdown::{Signals, wait_for_readers};
use crate::startup::{checks, readers};
use crate::telemetry::sd_notify::SdNotify;

/// The program that runs the worker.
pub(crate) struct Program {
    signals: Signals,
    sd_notify: SdNotify,
    handlers: Handlers,
    on_attempt_end: Option<AttemptEndHook>,
}

impl Program {
    /// Returns the program `worker`. Installs its signal handlers.
    ///
    /// # Errors
    /// The operating system refuses a handler.
    pub(crate) fn worker() -> io::Result<Self> {
        Ok(Self {
            signals: Signals::new()?,
            sd_notify: SdNotify::from_environment(),
            handlers: Handlers::default(),
            on_attempt_end: None,
        })
    }

    /// Returns a program that embeds the worker, and that shuts it down when the future resolves.
    pub(crate) fn embedding(
        shutdown: impl Future<Output = ()> + Send + 'static,
        handlers: Handlers,
        on_attempt_end: Option<AttemptEndHook>,
    ) -> Self {
        Self {
            signals: Signals::OfProgram(Some(Box::pin(shutdown))),
            sd_notify: SdNotify::default(),
            handlers,
            on_attempt_end,
        }
    }
}

/// Ends what is still running if the program drops the worker's future.
struct DropGuard(Arc<Context>);

impl Drop for DropGuard {
    fn drop(&mut self) {
        self.0.shutdown.drain.cancel();
        self.0.in_flight.stop_all();
        self.0.shutdown.end.cancel();
    }
}

/// Runs the worker until a signal, or until it has been idle for `exit_when_idle`.
///
/// # Errors
/// At startup: the database is unreachable or refuses this worker, or the HTTP address is in use.
/// After startup, database errors do not end the worker, which waits until they are over.
pub(crate) async fn run(
    config: Config,
    environment: &Environment,
    program: Program,
) -> anyhow::Result<()> {
    let Program { mut signals, sd_notify, handlers, on_attempt_end } = program;
    let (mut parts, claimer, channels) = Parts::new(config, environment, handlers, on_attempt_end)?;
    let _guard = DropGuard(Arc::clone(&parts.context));
    let http = match parts.settings.http {
        Some(address) => Some(
            TcpListener::bind(address)
                .await
                .with_context(|| format!("could not listen on {address}"))?,
        ),
        None => None,
    };
    let bound = console::bind(&parts.settings, parts.context.metrics.refusal_observer("console"))?;
    let started = tokio::select! {
        started = start(&parts, &sd_notify, bound) => started?,
        _ = signals.next() => return Ok(()),
    };
    let (registered, console) = started;
    let policy = channels.polls.claim_policy.subscribe();
    let orders = registered.heartbeat.orders();
    let services = services::start(&mut parts, channels, registered, http);
    if let Some(console) = console {
        services.spawn(console.ended());
    }
    let readers = readers::start(&mut parts, claimer, policy, orders);
    tracing::info!(
        worker = %parts.context.worker,
        readers = parts.readers(),
        database = %parts.context.control.target(),
        task_login = parts.logins[0].target.user(),
        profiles = parts.profiles()[1..].join(","),
        "ready"
    );
    sd_notify.ready(parts.readers());
    tokio::select! {
        signal = signals.next() => tracing::info!(signal, "shutdown requested"),
        () = idle_timeout(&parts) => tracing::info!("idle, shutting down"),
    }
    stop(&parts, &services, &readers, &mut signals, &sd_notify).await;
    tracing::info!("shut down");
    Ok(())
}

/// Runs the startup checks, opens the console and registers the worker.
async fn start(
    parts: &Parts,
    sd_notify: &SdNotify,
    console: Option<BoundConsole>,
) -> anyhow::Result<(Registered, Option<Console>)> {
    let Context { control, shutdown, .. } = &*parts.context;
    checks::check(&parts.context, &parts.logins, parts.own_login).await?;
    let console = match console {
        Some(bound) => Some(console::open(bound, control.target(), shutdown.end.clone()).await?),
        None => None,
    };
    Ok((services::register(parts, sd_notify).await?, console))
}

/// Lets the readers finish, then ends the services.
async fn stop(
    parts: &Parts,
    services: &Services,
    readers: &TaskTracker,
    signals: &mut Signals,
    sd_notify: &SdNotify,
) {
    let Context { control, in_flight, shutdown, tasks, .. } = &*parts.context;
    let grace = parts.settings.shutdown_timeout.0;
    let deadline = Instant::now() + grace;
    shutdown.drain.cancel();
    sd_notify.stopping(in_flight.count(), grace + CANCEL_TIMEOUT + DEREGISTRATION_TIMEOUT);
    wait_for_readers(readers, in_flight, signals, grace, control.registration()).await;
    shutdown.end.cancel();
    // Deregisters the worker. The time limit keeps an unreachable database from blocking the
    // shutdown.
    let limit = match control.registration().server() {
        Some(_) => DEREGISTRATION_TIMEOUT,
        None => DEREGISTRATION_TIMEOUT.min(deadline.saturating_duration_since(Instant::now())),
    };
    let ended = async {
        services.ended().await;
        // A reader that was left running keeps its session.
        if readers.is_empty() {
            tasks.ended().await;
        }
    };
    let _ = tokio::time::timeout(limit, ended).await;
}

/// Resolves once no task has been runnable or running for `exit_when_idle`. At the end of that
/// time, a sweep confirms that nothing is runnable.
async fn idle_timeout(parts: &Parts) {
    let Some(HumanDuration(limit)) = parts.settings.exit_when_idle else {
        return std::future::pending().await;
    };
    let mut idle = parts.context.claimer.idle();
    loop {
        if idle.wait_for(|idle| *idle).await.is_err() {
            return std::future::pending().await;
        }
        tokio::select! {
            () = tokio::time::sleep(limit) => {}
            _ = idle.wait_for(|idle| !*idle) => continue,
        }
        idle.mark_unchanged();
        parts.context.claimer.request_sweep();
        if idle.changed().await.is_ok() && *idle.borrow() {
            return;
        }
    }
}
