//! `pgmill console`.

use cli::{Failure, exit};
use console::{Console, StartError};
use terminal::print_stderr;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{ConsoleArgs, Global};

/// Serves the console until SIGINT or SIGTERM.
///
/// # Errors
/// Fails for an invalid token file, an address that cannot be bound, or a failed connection.
pub(crate) async fn run(global: &Global, args: &ConsoleArgs) -> Result<u8, Failure> {
    let target =
        terminal::connection_target(global.given.as_ref())?.with_application_name("pgmill console");
    let options = args.flags.options(args.listen).map_err(failure)?;
    let console = Console::start(&target, options).await.map_err(failure)?;
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

fn failure(error: StartError) -> Failure {
    match error {
        StartError::Usage { message, hint } => Failure::usage(message).hint(hint),
        StartError::Listen { .. } => Failure::new(exit::FAILURE, error.to_string()),
        StartError::Connect(error) => error.into(),
        StartError::Database(error) => error.into(),
    }
}
