//! The worker process: claims tasks, runs their SQL and records each attempt.
//!
//! Path of a task: `claim` claims it for an idle reader, `attempt` runs it in the reader's session and
//! records the result. `duties` are the background services; `startup` starts and stops the process;
//! `telemetry` reports what it does. At the top level is what all of them share, in a
//! `context`: `control`, the sessions to the queue; `registration`; `shutdown`; `wakeup`; `timing`.

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
mod timing;
mod wakeup;

pub use attempt::output::decode;
pub use attempt::params;

use std::process::ExitCode;

use clap::CommandFactory;
use conninfo::{ConnectError, Environment};
use queue::{QueueError, exit};

use crate::startup::config::{Config, SettingError};
use crate::startup::settings::Settings;

/// Returns the command-line definition, for man page and completions.
#[must_use]
pub fn command() -> clap::Command {
    Settings::command()
}

/// Runs the program: parses the command line, runs the worker, returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let config = match Config::resolve(std::env::args_os()) {
        Ok(config) => config,
        Err(error) => return refuse(error),
    };
    if config.settings.print_config {
        config.print();
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

/// Reports an invalid configuration, or prints help.
fn refuse(error: anyhow::Error) -> ExitCode {
    match error.downcast::<clap::Error>() {
        Ok(error) => {
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::USAGE))
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            if let Some(hint) = error.downcast_ref().and_then(|it: &SettingError| it.hint.as_ref())
            {
                eprintln!("hint: {hint}");
            }
            ExitCode::from(exit::USAGE)
        }
    }
}

fn start(config: Config) -> anyhow::Result<()> {
    telemetry::log::start(&config.settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(startup::process::run(config, &Environment::from_process()))
}

fn hint(error: &anyhow::Error) -> Option<String> {
    if let Some(error) = error.downcast_ref::<ConnectError>() {
        return error.hint();
    }
    if let Some(error) = error.downcast_ref::<SettingError>() {
        return error.hint.clone();
    }
    error.downcast_ref::<QueueError>().and_then(QueueError::hint)
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<ConnectError>() {
        return exit::of_connection(error);
    }
    if error.is::<SettingError>() {
        return exit::USAGE;
    }
    error.downcast_ref::<QueueError>().map_or(exit::FAILURE, exit::of)
}
