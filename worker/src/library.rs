//! The worker as a library: a Rust program embeds a worker, and runs calls with handlers in Rust.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{ArgAction, CommandFactory};
use conninfo::Environment;
use serde::Serialize;

use crate::attempt::call::Call;
use crate::attempt::call::handlers::{HandlerFuture, Handlers};
use crate::context::attempt_end::{AttemptEnd, AttemptEndHook};
use crate::startup::config::Config;
use crate::startup::process::{self, Program};
use crate::startup::settings::{Settings, settings};

/// A worker inside another program. It claims and runs tasks as the program `worker` does, and
/// runs calls with the handlers of the program.
///
/// The worker installs no signal handlers and no subscriber of log lines, and does not notify a
/// service manager.
pub struct Worker {
    config: Config,
    handlers: Handlers,
    on_attempt_end: Option<AttemptEndHook>,
}

/// Configures a [`Worker`].
///
/// A setting that the program does not give comes from its environment variable or the configuration
/// file, as for the program `worker`.
#[derive(Default)]
#[must_use]
pub struct Builder {
    settings: Vec<(String, String)>,
    config_file: Option<PathBuf>,
    handlers: Handlers,
    on_attempt_end: Option<AttemptEndHook>,
    /// Error of an earlier call, returned by `build`.
    refused: Option<anyhow::Error>,
}

impl Worker {
    /// Returns a builder without settings and handlers.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Runs until `shutdown` resolves, or until the worker has been idle for `exit_when_idle`. Then
    /// stops claiming, waits up to `shutdown_timeout` for running tasks, and releases the others.
    ///
    /// Dropping the future stops the worker without waiting: its tasks run again elsewhere.
    ///
    /// # Errors
    /// At startup: the database is unreachable or refuses this worker. After startup, database errors
    /// do not end the worker, which waits until they are over.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let Self { config, handlers, on_attempt_end } = self;
        let program = Program::embedding(shutdown, handlers, on_attempt_end);
        process::run(config, &Environment::from_process(), program).await
    }
}

impl Builder {
    /// Sets the connection string of the queue's database.
    pub fn database_url(self, url: &str) -> Self {
        self.setting("database_url", url)
    }

    /// Sets the connection string of the login that tasks and handlers run as.
    pub fn task_url(self, url: &str) -> Self {
        self.setting("task_url", url)
    }

    /// Sets the queues to serve.
    pub fn queues(self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        self.setting("queues", &names.join(","))
    }

    /// Sets the maximum number of tasks that run at once.
    pub fn readers(self, readers: u32) -> Self {
        self.setting("readers", &readers.to_string())
    }

    /// Reads the settings that the program does not give, profiles, targets and destinations from a
    /// configuration file of the program `worker`.
    pub fn config_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.config_file = Some(path.into());
        self
    }

    /// Sets any setting of the program `worker`, by its key in the configuration file. The value is
    /// written as on the command line; `true` or `false` for a flag without a value.
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Runs calls of this name with the handler.
    ///
    /// The handler returns a boxed future: `|call| Box::pin(send_invoice(call))` for a function
    /// `async fn send_invoice(call: Call<'_>) -> anyhow::Result<()>`. Its result is stored as JSON
    /// with the attempt, unless it is `()` or another null.
    pub fn handler<F, T>(mut self, name: &str, handler: F) -> Self
    where
        F: for<'a> Fn(Call<'a>) -> HandlerFuture<'a, T> + Send + Sync + 'static,
        T: Serialize + 'static,
    {
        let added = self.handlers.add(name, handler);
        self.refused = self.refused.or(added.err());
        self
    }

    /// Calls the function at the end of each attempt, on the thread of the worker.
    pub fn on_attempt_end(
        mut self,
        hook: impl Fn(&AttemptEnd<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.on_attempt_end = Some(Box::new(hook));
        self
    }

    /// Resolves the settings. Opens no connection.
    ///
    /// # Errors
    /// A setting or the name of a handler is unknown, invalid or given twice, or settings contradict
    /// each other.
    pub fn build(self) -> Result<Worker> {
        let Self { settings, config_file, handlers, on_attempt_end, refused } = self;
        if let Some(error) = refused {
            return Err(error);
        }
        let mut arguments = arguments(&settings)?;
        if let Some(path) = config_file {
            arguments.extend(["--config".into(), path.into_os_string()]);
        }
        let config = Config::resolve(arguments).context("invalid settings")?;
        Ok(Worker { config: config.in_program(), handlers, on_attempt_end })
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

/// Returns the settings as a command line, so that they have the parsers and the checks of the
/// program `worker`.
fn arguments(given: &[(String, String)]) -> Result<Vec<OsString>> {
    let command = Settings::command();
    let mut arguments: Vec<OsString> = vec!["worker".into()];
    for (key, value) in given {
        let Some(setting) = settings(&command).find(|setting| setting.get_id() == &**key) else {
            bail!("unknown setting \"{key}\"; settings are the keys of the configuration file");
        };
        let flag = format!("--{}", setting.get_long().unwrap_or_default());
        match (setting.get_action(), &**value) {
            (ArgAction::SetTrue, "true") => arguments.push(flag.into()),
            (ArgAction::SetTrue, "false") => {}
            (ArgAction::SetTrue, _) => bail!("{key} is \"{value}\"; it must be true or false"),
            _ => arguments.push(format!("{flag}={value}").into()),
        }
    }
    Ok(arguments)
}
