//! One process of the fleet.
//!
//! A task's way through the files: `claimer` claims it for an idle `reader`, `execute` runs it in
//! the reader's `session` under a `guard`, `finish` brings the ending into the queue. Beside them
//! `beat` keeps the worker alive in the fleet's eyes, `reclaimer` looks after the others,
//! `promoter`, `granter`, `listener` and `maintenance` keep the queue moving, `scheduler` fires
//! schedules, `progress` tells what running tasks say, `shutdown` ends it all; `manager` tells who started it;
//! `console` shows all of it to people, if it is asked to.

mod advancer;
mod beat;
mod bell;
mod claimer;
mod config;
mod console;
mod control;
pub mod decode;
mod direct;
mod execute;
mod explain;
mod finish;
mod gauges;
mod glance;
mod granter;
mod group;
mod guard;
mod held;
mod http;
mod lanes;
mod listener;
mod log;
mod login;
mod look;
mod maintenance;
mod manager;
mod metrics;
mod notices;
mod pace;
pub mod params;
mod pick;
mod privileges;
mod process;
mod progress;
mod promoter;
mod reader;
mod reclaimer;
mod reconciler;
mod registration;
mod rows;
mod scheduler;
mod session;
mod shutdown;
pub mod span;
mod statement;
mod ticks;
mod trouble;
mod watch;

use std::process::ExitCode;

use ::console::StartError;
use clap::{CommandFactory, FromArgMatches};
use queue::connect::{ConnectError, Environment};
use queue::{QueueError, exit};

use crate::config::{Args, Config};

/// The definition of the command line, for its man page and completions.
#[must_use]
pub fn command() -> clap::Command {
    Args::command()
}

/// The program: reads the command line, runs the worker, says how it went.
#[must_use]
pub fn main() -> ExitCode {
    let matches = Args::command().get_matches();
    let decided = Args::from_arg_matches(&matches)
        .map_err(anyhow::Error::from)
        .and_then(|args| Ok((args.print_config, Config::decide(args, &matches)?)));
    let (print_config, config) = match decided {
        Ok(decided) => decided,
        Err(error) => {
            eprintln!("worker: {error:#}");
            return ExitCode::from(exit::USAGE);
        }
    };
    if print_config {
        for origin in &config.origins {
            println!("{:<18} {:<28} {}", origin.name, origin.value, origin.origin);
        }
        return ExitCode::SUCCESS;
    }
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker: {error:#}");
            if let Some(hint) = hint(&error) {
                eprintln!("hint: {hint}");
            }
            ExitCode::from(exit_code(&error))
        }
    }
}

fn run(config: Config) -> anyhow::Result<()> {
    log::start(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(process::run(config, &Environment::from_process()))
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
        return if error.is_usage() { exit::USAGE } else { exit::UNREACHABLE };
    }
    if let Some(StartError::Usage { .. }) = error.downcast_ref::<StartError>() {
        return exit::USAGE;
    }
    match error.downcast_ref::<QueueError>() {
        Some(QueueError::Unreachable(error)) if error.is_usage() => exit::USAGE,
        Some(QueueError::Unreachable(_)) => exit::UNREACHABLE,
        Some(QueueError::Refused { .. }) => exit::REFUSED,
        // It went away while the worker looked around.
        Some(error) if error.temporary() => exit::UNREACHABLE,
        _ => exit::FAILURE,
    }
}
