//! `pgmill console`: opens the databases, and serves the web console until a signal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cli::{Exit, Failure, exit};
use console::{
    BoundConsole, Console, ContextDatabase, Options, Refusal, RefusalObserver, StartError,
};
use parking_lot::Mutex;
use terminal::print_stderr;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{ConsoleArgs, Global};
use crate::session::connection_target;
use crate::session::contexts::{Context, ContextsFile};

/// Name of the console's sessions.
const APPLICATION: &str = "pgmill console";

/// Minimum time between two lines about refused clients.
const PRINT_INTERVAL: Duration = Duration::from_secs(60);

/// Serves the console until SIGINT or SIGTERM.
///
/// # Errors
/// Fails for an invalid token file or contexts file, an address that cannot be bound, or a failed
/// connection to a single database.
pub(crate) async fn run(global: &Global, args: &ConsoleArgs) -> Exit {
    let options = args.flags.options(args.listen).map_err(failure)?;
    let console = open(global, options).await?;
    print_stderr(format_args!("console listening at {}", console.url()?));
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let end = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    console.serve(end).await;
    Ok(exit::OK)
}

async fn open(global: &Global, options: Options) -> Result<Console, Failure> {
    let file = global.contexts_file.as_deref();
    if global.all_contexts {
        let file = ContextsFile::read(file)?;
        let databases = file.contexts.iter().map(database).collect::<Result<_, _>>()?;
        return bind(options)?.open_all(databases).map_err(failure);
    }
    let options = match global.context() {
        Some(name) if options.environment.is_none() => {
            let environment = ContextsFile::read(file)?.find(name)?.environment.clone();
            Options { environment, ..options }
        }
        _ => options,
    };
    let target = connection_target(global.given.as_ref(), file)?.with_application_name(APPLICATION);
    bind(options)?.open(&target).await.map_err(failure)
}

fn bind(options: Options) -> Result<BoundConsole, Failure> {
    Ok(BoundConsole::new(options).map_err(failure)?.observed_by(refusal_observer()))
}

/// Returns an observer that prints the first refusal, and then one a minute, so that a flood does
/// not fill the log. The metric `pgmill_http_refused_total` of a worker counts all.
fn refusal_observer() -> RefusalObserver {
    let printed: Mutex<Option<Instant>> = Mutex::default();
    Arc::new(move |reason: Refusal| {
        let mut printed = printed.lock();
        if printed.is_none_or(|at| at.elapsed() >= PRINT_INTERVAL) {
            *printed = Some(Instant::now());
            print_stderr(format_args!("console refused a client: {}", reason.as_str()));
        }
    })
}

fn database(context: &Context) -> Result<ContextDatabase, Failure> {
    Ok(ContextDatabase {
        name: context.name.clone(),
        target: context.target()?.with_application_name(APPLICATION),
        environment: context.environment.clone(),
    })
}

fn failure(error: StartError) -> Failure {
    match error {
        StartError::Usage { message, hint } => Failure::usage(message).hint(hint),
        StartError::Listen { .. } => Failure::new(exit::FAILURE, error.to_string()),
        StartError::Connect(error) => error.into(),
        StartError::Database(error) => error.into(),
    }
}
