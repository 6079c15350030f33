//! The worker process: claims tasks, runs their SQL and records each attempt.
//!
//! Path of a task: `claim` claims it for an idle reader, `attempt` runs it in the reader's session and
//! records the result. `duties` are the background services; `startup` starts and stops the process;
//! `telemetry` reports what it does. At the top level is what all of them share, in a
//! `context`: `control`, the sessions to the queue; `registration`; `shutdown`; `wakeup`.

mod attempt;
mod claim;
mod context;
mod control;
pub mod duration;
mod duties;
mod registration;
mod shutdown;
mod startup;
mod telemetry;
mod wakeup;

pub use attempt::output::decode;
pub use attempt::params;

use std::process::ExitCode;

use ::console::StartError;
use clap::{CommandFactory, FromArgMatches};
use queue::connect::{ConnectError, Environment};
use queue::{QueueError, exit};

use crate::startup::config::{Args, Config};

/// Returns the command-line definition, for man page and completions.
#[must_use]
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the program: parses the command line, runs the worker, returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let matches = Args::command().get_matches();
    let decided = Args::from_arg_matches(&matches)
        .map_err(anyhow::Error::from)
        .and_then(|args| Ok((args.print_config, Config::resolve(args, &matches)?)));
    let (print_config, config) = match decided {
        Ok(decided) => decided,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(exit::USAGE);
        }
    };
    if print_config {
        for origin in &config.origins {
            println!("{:<24} {:<36} {}", origin.name, origin.value, origin.origin);
        }
        return ExitCode::SUCCESS;
    }
    match start(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if let Some(detail) = error.downcast_ref().and_then(QueueError::detail) {
                eprintln!("detail: {detail}");
            }
            if let Some(hint) = hint(&error) {
                eprintln!("hint: {hint}");
            }
            ExitCode::from(exit_code(&error))
        }
    }
}

fn start(config: Config) -> anyhow::Result<()> {
    telemetry::log::start(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(startup::process::run(config, &Environment::from_process()))
}

fn hint(error: &anyhow::Error) -> Option<String> {
    if let Some(error) = error.downcast_ref::<ConnectError>() {
        return error.hint();
    }
    if let Some(StartError::Usage { hint, .. }) = error.downcast_ref::<StartError>() {
        return Some(hint.clone());
    }
    error.downcast_ref::<QueueError>().and_then(QueueError::hint)
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<ConnectError>() {
        return exit::of_connection(error);
    }
    if let Some(StartError::Usage { .. }) = error.downcast_ref::<StartError>() {
        return exit::USAGE;
    }
    error.downcast_ref::<QueueError>().map_or(exit::FAILURE, exit::of)
}
