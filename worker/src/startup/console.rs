//! The web console inside a worker.
//!
//! The console has its own thread, runtime and sessions. So its requests take no time from the
//! claim loop, and its failure does not affect the worker. It is served until the worker ends.

pub(crate) use ::console::BoundConsole;
use ::console::StartError;
use cli::Failure;
use conninfo::ConnectionTarget;
use http_server::RefusalObserver;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::startup::settings::Settings;

/// An open console.
pub(crate) struct Console {
    ended: oneshot::Receiver<()>,
}

/// Binds the address of `--console`, if it is set. `observer` counts the refused clients.
///
/// # Errors
/// The address is in use; the flags of the console contradict each other: [`Failure`].
pub(crate) fn bind(
    settings: &Settings,
    observer: RefusalObserver,
) -> anyhow::Result<Option<BoundConsole>> {
    let Some(address) = settings.console else { return Ok(None) };
    let options = settings.console_flags.options(address).map_err(startup_error)?;
    let bound = BoundConsole::new(options).map_err(startup_error)?;
    Ok(Some(bound.observed_by(observer)))
}

/// Opens the console with the privileges of `target`'s login, and serves it until `end`.
///
/// # Errors
/// The database is unreachable, has another schema version or denies access; the thread cannot be
/// started.
pub(crate) async fn open(
    bound: BoundConsole,
    target: &ConnectionTarget,
    end: CancellationToken,
) -> anyhow::Result<Console> {
    let target = target.with_application_name("pgmill console");
    let (opened_sender, opened) = oneshot::channel();
    let (ended_sender, ended) = oneshot::channel();
    let serve = move || {
        // The sender is dropped when the thread ends, even after a panic.
        let _ended: oneshot::Sender<()> = ended_sender;
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(opened_sender.send(Err(error.into()))),
        };
        runtime.block_on(async {
            let console = match bound.open(&target).await {
                Ok(console) => console,
                Err(error) => return drop(opened_sender.send(Err(startup_error(error)))),
            };
            let url = console.url().unwrap_or_default();
            tracing::info!(url, "console is served");
            let _ = opened_sender.send(Ok(()));
            console.serve(end.cancelled_owned()).await;
        });
    };
    std::thread::Builder::new().name("console".to_owned()).spawn(serve)?;
    opened.await??;
    Ok(Console { ended })
}

impl Console {
    /// Resolves once the console has sent its last response.
    pub(crate) async fn ended(self) {
        let _ = self.ended.await;
    }
}

/// Converts the error so that the worker maps it to an exit code.
fn startup_error(error: StartError) -> anyhow::Error {
    match error {
        StartError::Connect(error) => error.into(),
        StartError::Database(error) => anyhow::Error::from(error).context("no console"),
        StartError::Usage { message, hint } => Failure::usage(message).hint(hint).into(),
        error @ StartError::Listen { .. } => error.into(),
    }
}
