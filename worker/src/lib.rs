//! The worker process: claims tasks, runs their SQL and records each attempt.
//!
//! Path of a task: `claimer` claims the task for an idle `reader`, `execute` runs it in the
//! reader's `session` under `supervise`, `finish` records the outcome in the queue.
//!
//! Background services: `heartbeat` reports that the worker is alive; `reclaimer` reclaims the
//! tasks of dead workers; `promoter`, `permit_granter`, `run_advancer`, `listener` and
//! `maintenance` keep the queue moving; `scheduler` fires schedules; `progress` publishes the
//! progress of running tasks; `shutdown` stops the process; `sd_notify` reports to the service
//! manager; `console` serves the web console if configured.

mod batch_size;
mod claimer;
mod config;
mod console;
mod control;
pub mod decode;
pub mod duration;
mod error;
mod execute;
mod explain;
mod failure_detector;
mod finish;
mod fleet_metrics;
mod heartbeat;
mod http;
mod in_flight;
mod lanes;
mod listener;
mod log;
mod login;
mod maintenance;
mod metrics;
mod notices;
pub mod params;
mod peer_sampling;
mod permit_granter;
mod poll;
mod pooler_check;
mod privileges;
mod process;
mod progress;
mod promoter;
mod reader;
mod reclaimer;
mod registration;
mod rows;
mod run_advancer;
mod schedule_metrics;
mod schedule_sync;
mod scheduler;
mod sd_notify;
mod session;
mod shared_commit;
mod shutdown;
mod statement;
mod supervise;
mod wakeup;
mod weights;

use std::process::ExitCode;

use ::console::StartError;
use clap::{CommandFactory, FromArgMatches};
use queue::connect::{ConnectError, Environment};
use queue::{QueueError, exit};

use crate::config::{Args, Config};

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
    match run(config) {
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
        return exit::of_connection(error);
    }
    if let Some(StartError::Usage { .. }) = error.downcast_ref::<StartError>() {
        return exit::USAGE;
    }
    error.downcast_ref::<QueueError>().map_or(exit::FAILURE, exit::of)
}
