//! Log on stderr. It contains task ids, names and codes, but never statements or parameters.

use std::io::{IsTerminal, stderr};

use anyhow::Context;
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging, and makes a panic abort the process, so that the fleet reclaims its tasks. Without a
/// format, writes text to a terminal, and else JSON.
///
/// # Errors
/// Returns an error if the log filter is invalid.
pub(crate) fn start(filter: &str, format: Option<LogFormat>) -> anyhow::Result<()> {
    let filter =
        EnvFilter::try_new(filter).with_context(|| format!("invalid log filter \"{filter}\""))?;
    let terminal = stderr().is_terminal();
    let format = format.unwrap_or(if terminal { LogFormat::Text } else { LogFormat::Json });
    // Without this setting, the subscriber reports a line that cannot be written with a macro that
    // panics if the report cannot be written either: a full disk under the log would end the worker.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => builder.with_ansi(terminal).with_target(false).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default_hook(panic);
        std::process::abort();
    }));
    Ok(())
}
