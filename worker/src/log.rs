//! The log on stderr. It carries task ids, names and codes; statements and parameters stay out.

use std::io::{IsTerminal, stderr};

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};

/// From here on events are logged, and a panic ends the process: the fleet reclaims its tasks.
///
/// # Errors
/// The filter cannot be understood.
pub(crate) fn start(config: &Config) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&config.log)
        .with_context(|| format!("\"{}\" is no log filter", config.log))?;
    let terminal = stderr().is_terminal();
    let format =
        config.log_format.unwrap_or(if terminal { LogFormat::Text } else { LogFormat::Json });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
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
