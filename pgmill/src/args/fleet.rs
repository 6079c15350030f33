//! Arguments of `pgmill top`, `health`, `pause`, `resume`, `queue` and `worker`.

use std::time::Duration;

use clap::{ArgGroup, Subcommand};
use cli::time::PeriodBound;
use terminal::queue_name;

use super::capacity::QueueSetArgs;
use super::task::BulkFlags;
use super::value::{DryRun, duration};

/// Minimum interval between two refreshes of `top`.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);
/// Path that is requested if the URL has no path.
const DEFAULT_PATH: &str = "/readyz";

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Interval between two refreshes
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    pub(crate) interval: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HealthArgs {
    /// URL of a worker's health page: the address of the worker's option --http, followed by /livez
    /// or /readyz; without a path, /readyz is requested
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:9187/readyz", value_parser = parse_url)]
    pub(crate) page: HealthUrl,
    /// Maximum wait for the response
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) timeout: Duration,
}

/// URL of a health endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthUrl {
    /// HOST:PORT, with an IPv6 address in brackets.
    pub(crate) place: String,
    pub(crate) path: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PauseArgs {
    /// Length of the pause; without --for and --until, it lasts until pgmill resume
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, conflicts_with = "until")]
    pub(crate) length: Option<Duration>,
    /// End of the pause: "2026-12-01 03:00", "03:00", "tomorrow 03:00" or RFC 3339
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<PeriodBound>,
    /// Plan a pause that begins at this time, in the forms of --until
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<PeriodBound>,
    /// Reason that status, why and the console show
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    /// Also remove planned pauses
    #[arg(long)]
    pub(crate) planned: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueueVerb {
    /// List queues that have live tasks or settings
    List,
    /// Stop claiming from a queue; running tasks continue
    Pause(QueuePauseArgs),
    /// Resume claiming from a paused queue
    Resume(QueueArgs),
    /// Change the shared commit and the limits of a queue
    Set(QueueSetArgs),
    /// Cancel all tasks that wait in a queue; running tasks continue
    Purge(QueuePurgeArgs),
    /// Remove the settings of a queue: pause, shared commit and limits
    Remove(QueueArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct QueuePauseArgs {
    #[command(flatten)]
    pub(crate) queue: QueueArgs,
    /// Accept a queue that has no tasks, settings or workers yet
    #[arg(long)]
    pub(crate) create: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct QueuePurgeArgs {
    /// Queue name
    #[arg(value_name = "NAME", value_parser = queue_name)]
    pub(crate) queue: String,
    #[command(flatten)]
    pub(crate) flags: BulkFlags,
}

#[derive(Debug, clap::Args)]
pub(crate) struct QueueArgs {
    /// Queue name
    #[arg(value_parser = queue_name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerVerb {
    /// List registered workers
    List,
    /// Make workers stop claiming; their running tasks continue
    Drain(DrainArgs),
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").required(true).args(["id", "host"]))]
pub(crate) struct DrainArgs {
    /// Worker id or unique prefix
    pub(crate) id: Option<String>,
    /// Drain every worker on this host
    #[arg(long)]
    pub(crate) host: Option<String>,
    /// End the drain: make the workers claim again
    #[arg(long)]
    pub(crate) undo: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

/// Parses the interval of `top`. The lower bound keeps the cost of refreshing small compared with
/// the work of the fleet.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < SHORTEST_INTERVAL {
        return Err(format!("must be at least {}ms", SHORTEST_INTERVAL.as_millis()));
    }
    Ok(interval)
}

/// Parses `http://HOST:PORT/PATH`; only HOST:PORT is required.
///
/// # Errors
/// Fails for another protocol, or without a host or port.
fn parse_url(text: &str) -> Result<HealthUrl, String> {
    let rest = match text.split_once("://") {
        None => text,
        Some(("http", rest)) => rest,
        Some((other, _)) => {
            return Err(format!("unsupported protocol \"{other}\"; a worker serves http"));
        }
    };
    let (place, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let known = place.rsplit_once(':').is_some_and(|(host, port)| {
        let plain = |c: char| c.is_ascii_graphic() && c != '@';
        !host.is_empty() && host.chars().all(plain) && port.parse::<u16>().is_ok()
    });
    if !known || path.chars().any(|c| !c.is_ascii_graphic()) {
        return Err("expected HOST:PORT, http://HOST:PORT or http://HOST:PORT/livez".to_owned());
    }
    let path = if path.trim_matches('/').is_empty() { DEFAULT_PATH } else { path };
    Ok(HealthUrl { place: place.to_owned(), path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_a_port_and_a_path() {
        let page_of =
            |place: &str, path: &str| HealthUrl { place: place.into(), path: path.into() };
        for (text, expected) in [
            ("127.0.0.1:9187", page_of("127.0.0.1:9187", "/readyz")),
            ("http://worker:80/", page_of("worker:80", "/readyz")),
            ("http://[::1]:9187/livez", page_of("[::1]:9187", "/livez")),
        ] {
            assert_eq!(parse_url(text), Ok(expected), "{text}");
        }
        for wrong in ["", "9187", "https://a:1", "a:70000", ":1", "a b:1", "u@a:1", "a:1/ x"] {
            assert!(parse_url(wrong).is_err(), "{wrong}");
        }
    }
}
