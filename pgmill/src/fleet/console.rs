//! `pgmill console`.

use cli::{Failure, exit};
use console::{BoundConsole, Console, ContextDatabase, Options, StartError};
use terminal::print_stderr;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{ConsoleArgs, Global};
use crate::session::connection_target;
use crate::session::contexts::{Context, ContextsFile};

/// Name of the console's sessions.
const APPLICATION: &str = "pgmill console";

/// Serves the console until SIGINT or SIGTERM.
///
/// # Errors
/// Fails for an invalid token file or contexts file, an address that cannot be bound, or a failed
/// connection to a single database.
pub(crate) async fn run(global: &Global, args: &ConsoleArgs) -> Result<u8, Failure> {
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
    console.serve(end).await?;
    Ok(exit::OK)
}

async fn open(global: &Global, options: Options) -> Result<Console, Failure> {
    let file = global.contexts_file.as_deref();
    if global.all_contexts {
        let file = ContextsFile::read(file)?;
        let databases = file.contexts.iter().map(database).collect::<Result<_, _>>()?;
        let console = BoundConsole::new(options).map_err(failure)?;
        return console.open_all(databases).map_err(failure);
    }
    let options = match global.context() {
        Some(name) if options.environment.is_none() => {
            let environment = ContextsFile::read(file)?.find(name)?.environment.clone();
            Options { environment, ..options }
        }
        _ => options,
    };
    let target = connection_target(global.given.as_ref(), file)?.with_application_name(APPLICATION);
    Console::start(&target, options).await.map_err(failure)
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
