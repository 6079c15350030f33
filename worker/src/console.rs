//! The web console inside of a worker.
//!
//! It has a thread, a runtime and sessions of its own: what somebody looks at takes no time from the
//! claim loop, and a console that fails leaves the worker as it is. It is served until the worker has ended.

pub(crate) use ::console::BoundConsole;
use ::console::StartError;
use queue::connect::Target;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// A console that has been opened.
pub(crate) struct Console {
    ended: oneshot::Receiver<()>,
}

/// Opens it with the rights of this target's login, and serves it until `end`.
///
/// # Errors
/// The database is out of reach, has another schema, or may not be looked at; no thread.
pub(crate) async fn open(
    bound: BoundConsole,
    target: &Target,
    end: CancellationToken,
) -> anyhow::Result<Console> {
    let target = target.with_application_name("pgmill console");
    let (opened_sender, opened) = oneshot::channel();
    let (ended_sender, ended) = oneshot::channel();
    let serve = move || {
        // Dropped with the thread, whatever its end is.
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
            tracing::info!(url, "the console is served");
            let _ = opened_sender.send(Ok(()));
            if let Err(error) = console.serve(end.cancelled_owned()).await {
                tracing::error!(%error, "the console is no longer served");
            }
        });
    };
    std::thread::Builder::new().name("console".to_owned()).spawn(serve)?;
    opened.await??;
    Ok(Console { ended })
}

impl Console {
    /// Once it has given its last answer.
    pub(crate) async fn ended(self) {
        let _ = self.ended.await;
    }
}

/// The errors that a worker tells by their kind.
pub(crate) fn startup_error(error: StartError) -> anyhow::Error {
    match error {
        StartError::Connect(error) => error.into(),
        StartError::Database(error) => anyhow::Error::from(error).context("no console"),
        error => error.into(),
    }
}
