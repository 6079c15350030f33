//! The table of the worker's settings. It is the only place that declares them.
//!
//! Each field is a setting. Its flag is the field's name with hyphens, its key in the configuration
//! file is the field's name, and its environment variable is `env`. Type, default, help and heading
//! are declared with the field. Everything else is derived from the [`clap::Command`] of this
//! table: the keys of the file and their types (`config/file.rs`), `--print-config` (`config.rs`),
//! and the table of docs/worker.md (`make settings`).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Arg, Command, Parser};
use cli::duration::{self, HumanDuration, within};
use fleet_decisions::timing;
use queue::retry::FATAL_CLASSES;

use crate::telemetry::log::LogFormat;
use crate::telemetry::traces::sampler::Sampler;

const DEFAULT_READERS: u32 = 8;
const DEFAULT_HEARTBEAT_INTERVAL: HumanDuration = HumanDuration(timing::HEARTBEAT_INTERVAL);
const DEFAULT_ORPHAN_TIMEOUT: HumanDuration = HumanDuration(timing::ORPHAN_TIMEOUT);
const DEFAULT_POLL_INTERVAL: HumanDuration = HumanDuration(timing::MAX_POLL_INTERVAL);
const DEFAULT_SHUTDOWN_TIMEOUT: HumanDuration = HumanDuration(timing::SHUTDOWN_TIMEOUT);
/// Value of `--exit-when-idle` if the flag is given without a value.
const DEFAULT_IDLE_TIME: &str = "1s";
const DEFAULT_FLEET_METRICS_INTERVAL: HumanDuration = HumanDuration(timing::FLEET_METRICS_INTERVAL);
const DEFAULT_LOG: &str = "info";
const DEFAULT_SERVICE_NAME: &str = "pgmill-worker";
const DEFAULT_SAMPLING_RATIO: f64 = 1.0;
static DEFAULT_FATAL_SQLSTATES: LazyLock<String> = LazyLock::new(|| FATAL_CLASSES.join(","));

/// Minimum of the heartbeat interval and of the fleet metrics interval. Shorter intervals would
/// load the database: a heartbeat is a write, and each count of the fleet metrics reads the whole
/// live table.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Headings of `--help`.
const CONNECTION: &str = "Connection";
const READERS: &str = "Readers and queues";
const TIMING: &str = "Timing";
const SCHEDULES: &str = "Schedules";
const HTTP: &str = "HTTP and console";
const LOGGING: &str = "Logging";
const TRACES: &str = "Traces";

/// Run SQL tasks that are queued in PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "worker", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Settings {
    /// Connection string of the queue's database: a URI or key=value pairs, as for psql; its login is
    /// a member of mill_worker [default: the PG* variables]
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL",
          help_heading = CONNECTION)]
    pub(crate) database_url: Option<String>,
    /// File that contains the connection string, instead of --database-url
    #[arg(long, env = "PGMILL_DATABASE_URL_FILE", value_name = "FILE", help_heading = CONNECTION)]
    pub(crate) database_url_file: Option<PathBuf>,
    /// Connection string of the login that task SQL runs as, on the same server and database;
    /// preferably without privileges on the queue [default: same as --database-url]
    #[arg(long, env = "PGMILL_TASK_URL", hide_env_values = true, value_name = "URL",
          help_heading = CONNECTION)]
    pub(crate) task_url: Option<String>,
    /// File that contains the connection string for task SQL, instead of --task-url
    #[arg(long, env = "PGMILL_TASK_URL_FILE", value_name = "FILE", help_heading = CONNECTION)]
    pub(crate) task_url_file: Option<PathBuf>,
    /// Number of readers: maximum number of tasks that run at once
    #[arg(long, env = "PGMILL_READERS", value_name = "N", default_value_t = DEFAULT_READERS,
          value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = READERS)]
    pub(crate) readers: u32,
    /// Queues to serve, separated by commas [default: every queue]
    #[arg(long, env = "PGMILL_QUEUES", value_name = "NAMES", value_delimiter = ',',
          value_parser = queue_name, help_heading = READERS)]
    pub(crate) queues: Option<Vec<String>>,
    /// Do not retry attempts that fail with these SQLSTATEs, or prefixes of SQLSTATEs, separated by
    /// commas
    #[arg(long, env = "PGMILL_FATAL_SQLSTATES", value_name = "CODES", value_delimiter = ',',
          default_value = DEFAULT_FATAL_SQLSTATES.as_str(), value_parser = sqlstate,
          help_heading = READERS)]
    pub(crate) fatal_sqlstates: Vec<String>,
    /// Run tasks even if the login that task SQL runs as is a superuser, instead of refusing to start
    #[arg(long, env = "PGMILL_ALLOW_SUPERUSER", help_heading = READERS)]
    pub(crate) allow_superuser: bool,
    /// Time between two heartbeats of this worker
    #[arg(long, env = "PGMILL_HEARTBEAT_INTERVAL", value_name = "DURATION",
          default_value_t = DEFAULT_HEARTBEAT_INTERVAL,
          value_parser = within(MIN_INTERVAL..=duration::MAX), help_heading = TIMING)]
    pub(crate) heartbeat_interval: HumanDuration,
    /// Time after which a worker whose heartbeat has not changed is considered dead; at least three
    /// times the heartbeat interval
    #[arg(long, env = "PGMILL_ORPHAN_TIMEOUT", value_name = "DURATION",
          default_value_t = DEFAULT_ORPHAN_TIMEOUT, help_heading = TIMING)]
    pub(crate) orphan_timeout: HumanDuration,
    /// Maximum time between two polls of the queue while this worker is idle; cannot exceed the
    /// default. A poll finds new tasks, due tasks and dead workers without a notification
    #[arg(long, env = "PGMILL_POLL_INTERVAL", value_name = "DURATION",
          default_value_t = DEFAULT_POLL_INTERVAL,
          value_parser = within(MIN_POLL_INTERVAL..=timing::MAX_POLL_INTERVAL),
          help_heading = TIMING)]
    pub(crate) poll_interval: HumanDuration,
    /// Time for running tasks to finish after SIGTERM before they are cancelled
    #[arg(long, env = "PGMILL_SHUTDOWN_TIMEOUT", value_name = "DURATION",
          default_value_t = DEFAULT_SHUTDOWN_TIMEOUT, help_heading = TIMING)]
    pub(crate) shutdown_timeout: HumanDuration,
    #[arg(long, env = "PGMILL_EXIT_WHEN_IDLE", value_name = "DURATION", num_args = 0..=1,
          default_missing_value = DEFAULT_IDLE_TIME, require_equals = true, help_heading = TIMING,
          help = format!("Exit once no task has been runnable or running for this long \
                          [default: never; without a value: {DEFAULT_IDLE_TIME}]"))]
    pub(crate) exit_when_idle: Option<HumanDuration>,
    /// Do not fire schedules; leave them to other workers
    #[arg(long, env = "PGMILL_NO_SCHEDULER", help_heading = SCHEDULES)]
    pub(crate) no_scheduler: bool,
    /// Serve /metrics, /livez and /readyz on this address, such as 127.0.0.1:9187 [default: off]
    #[arg(long, env = "PGMILL_HTTP", value_name = "ADDR", help_heading = HTTP)]
    pub(crate) http: Option<SocketAddr>,
    /// Time between two counts of the tasks in the database, for the fleet-wide metrics; each count
    /// reads mill.tasks once
    #[arg(long, env = "PGMILL_FLEET_METRICS_INTERVAL", value_name = "DURATION",
          default_value_t = DEFAULT_FLEET_METRICS_INTERVAL,
          value_parser = within(MIN_INTERVAL..=duration::MAX), help_heading = HTTP)]
    pub(crate) fleet_metrics_interval: HumanDuration,
    /// Serve the web console on this address, such as 127.0.0.1:8787; the login of --database-url
    /// must be a member of mill_viewer [default: off]
    #[arg(long, env = "PGMILL_CONSOLE", value_name = "ADDR", help_heading = HTTP)]
    pub(crate) console: Option<SocketAddr>,
    #[cfg(feature = "console")]
    #[command(flatten)]
    pub(crate) console_flags: console::WorkerConsoleFlags,
    /// Log format on stderr [default: text on a terminal, else json]
    #[arg(long, env = "PGMILL_LOG_FORMAT", value_enum, value_name = "FORMAT",
          help_heading = LOGGING)]
    pub(crate) log_format: Option<LogFormat>,
    /// Log level: error, warn, info or debug, also per module as in pgmill_worker=debug
    #[arg(long, env = "PGMILL_LOG", value_name = "FILTER", default_value = DEFAULT_LOG,
          help_heading = LOGGING)]
    pub(crate) log: String,
    /// Export traces of tasks to this receiver of OTLP over HTTP, such as http://127.0.0.1:4318; the
    /// worker appends /v1/traces [default: no traces]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL", help_heading = TRACES)]
    pub(crate) otlp_endpoint: Option<String>,
    /// File with headers for the receiver, one "Name: value" per line
    #[arg(long, env = "PGMILL_OTLP_HEADERS_FILE", value_name = "FILE", help_heading = TRACES)]
    pub(crate) otlp_headers_file: Option<PathBuf>,
    /// File with root certificates for the receiver, in addition to those of the system (PEM)
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_name = "FILE",
          help_heading = TRACES)]
    pub(crate) otlp_ca_file: Option<PathBuf>,
    /// Attribute service.name of the traces
    #[arg(long, env = "OTEL_SERVICE_NAME", value_name = "NAME",
          default_value = DEFAULT_SERVICE_NAME, help_heading = TRACES)]
    pub(crate) otlp_service_name: String,
    /// Further attributes of the resource, separated by commas, such as service.namespace=etl
    #[arg(long, env = "OTEL_RESOURCE_ATTRIBUTES", value_name = "KEY=VALUE,…",
          value_delimiter = ',', help_heading = TRACES)]
    pub(crate) otlp_resource_attributes: Vec<String>,
    /// Which tasks are traced
    #[arg(long, env = "OTEL_TRACES_SAMPLER", value_enum, value_name = "SAMPLER",
          default_value = "parentbased_always_on", help_heading = TRACES)]
    pub(crate) traces_sampler: Sampler,
    /// Ratio of the traces that a sampler with a ratio samples, from 0 to 1
    #[arg(long, env = "OTEL_TRACES_SAMPLER_ARG", value_name = "RATIO",
          default_value_t = DEFAULT_SAMPLING_RATIO, value_parser = ratio, help_heading = TRACES)]
    pub(crate) traces_sampler_arg: f64,
    /// Include the texts of statements in traces
    #[arg(long, env = "PGMILL_TRACE_STATEMENTS", help_heading = TRACES)]
    pub(crate) trace_statements: bool,
    /// Append the trace context to the statements of tasks, as a comment in the format of sqlcommenter
    #[arg(long, env = "PGMILL_TRACE_COMMENTS", help_heading = TRACES)]
    pub(crate) trace_comments: bool,
    /// TOML configuration file. Its keys are the names of these flags with _ instead of -; its
    /// tables [run_as.NAME] define profiles, [targets.NAME] other databases, and [destinations.NAME]
    /// receivers of notifications; an unknown key is an error
    #[arg(long, env = "PGMILL_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print every setting with its source (flag, environment, file or default), then exit
    #[arg(long)]
    pub(crate) print_config: bool,
}

/// Flags that are not settings: a configuration file cannot contain them.
const NOT_SETTINGS: [&str; 2] = ["config", "print_config"];

/// Returns the settings among the flags.
pub(crate) fn settings(command: &Command) -> impl Iterator<Item = &Arg> {
    let of_clap = ["help", "version"];
    let other = move |id: &str| NOT_SETTINGS.contains(&id) || of_clap.contains(&id);
    command.get_arguments().filter(move |arg| !other(arg.get_id().as_str()))
}

const AFTER_HELP: &str = "\
Examples:
  worker --database-url postgres://mill@db/app --task-url postgres://etl@db/app
  PGSERVICE=app worker --readers 16 --queues etl,reports --http 127.0.0.1:9187
  worker --exit-when-idle=30s          # drain the queue, then exit
  worker --config worker.toml --print-config

Signals: SIGTERM or SIGINT stops claiming; running tasks may finish within --shutdown-timeout. After
that the worker cancels them and returns them to the queue, and the interrupted attempts do not
count. A second signal cancels the running tasks at once.

Exit codes:
    0  stopped by a signal or by --exit-when-idle
    1  failure without a code of its own
    2  invalid command line or configuration
    5  refused: unsupported schema version, missing privilege, or task login on another database
   75  database unreachable at startup: try again later";

fn queue_name(text: &str) -> Result<String, &'static str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
    if text.is_empty() || text.len() > 128 || !text.chars().all(fits) {
        return Err("a queue's name has up to 128 letters, digits and _ . : -");
    }
    Ok(text.to_owned())
}

fn ratio(text: &str) -> Result<f64, &'static str> {
    let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or("a ratio is a number from 0 to 1, such as 0.1")
}

fn sqlstate(text: &str) -> Result<String, &'static str> {
    let fits = |c: char| c.is_ascii_digit() || c.is_ascii_uppercase();
    if text.is_empty() || text.len() > 5 || !text.chars().all(fits) {
        return Err(
            "write a SQLSTATE, or the characters that it begins with: up to 5 digits and capital letters, such as 42P01 or 42",
        );
    }
    Ok(text.to_owned())
}
