//! The worker process: claims tasks, runs their SQL and records each attempt.
//!
//! Path of a task: `claim` claims it for an idle reader, and `attempt` runs it in the reader's
//! session and records the result. `target` keeps up the other databases in which tasks run. `duties`
//! are the background services, `startup` starts and stops the process, `library` embeds the worker
//! in another program, and `http` serves its metrics.
//!
//! Below all of these are a `context`, the state that they share; `control`, the sessions to the queue;
//! `login`, under which tasks run; `telemetry`, which reports what the process does; `wakeup`; and
//! `shutdown`. What a worker decides without I/O, and all intervals, are in the crate
//! `fleet-decisions`.
//!
//! Invariant: no two of these modules import each other.

mod attempt;
mod claim;
mod context;
mod control;
mod duties;
mod http;
mod library;
mod login;
mod shutdown;
mod startup;
mod target;
mod telemetry;
mod wakeup;

pub use attempt::call::Call;
pub use attempt::call::call_error::CallError;
pub use attempt::call::handlers::HandlerFuture;
pub use attempt::call::transaction::Transaction;
pub use attempt::output::decode;
pub use attempt::params;
pub use context::attempt_end::AttemptEnd;
pub use library::{Builder, Worker};
pub use queue::{Disposition, Outcome};
/// The crate whose types [`Transaction`] takes and returns.
pub use tokio_postgres;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory;
use cli::{Failure, exit};
use conninfo::Environment;

use crate::startup::config::Config;
use crate::startup::process::{self, Program};
use crate::startup::settings::Settings;

/// Returns the command-line definition, for man page and completions.
#[must_use]
pub fn command() -> clap::Command {
    Settings::command()
}

/// Runs the program: parses the command line, runs the worker, returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    cli::main(|| {
        let config = Config::resolve(std::env::args_os());
        let config = config.map_err(|error| Failure::from(error).or_usage())?;
        if config.settings.print_config {
            config.print()?;
            return Ok(exit::OK);
        }
        start(config).map(|()| exit::OK).map_err(Failure::from)
    })
}

fn start(config: Config) -> anyhow::Result<()> {
    telemetry::log::start(&config.settings.log, config.settings.log_format)?;
    cli::one_thread()?.block_on(async {
        let program = Program::worker().context("could not install the signal handlers")?;
        process::run(config, &Environment::from_process(), program).await
    })
}
