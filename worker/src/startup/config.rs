//! Settings of the worker, from flag, environment, file or default, in this order of precedence.

mod file;
mod resolver;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{ArgMatches, Parser};
use conninfo::{ConnectionSource, SourceNames};
use console::WorkerConsoleFlags;
use queue::retry::FATAL_CLASSES;

use self::file::ConfigFile;
pub(crate) use self::file::LogFormat;
use self::resolver::SettingResolver;
pub(crate) use self::resolver::{Console, Origin};
use crate::duration::HumanDuration;
use crate::startup::profile::Profile;
use crate::timing;

const DEFAULT_READERS: u32 = 8;
const DEFAULT_HEARTBEAT_INTERVAL: HumanDuration = HumanDuration(timing::HEARTBEAT_INTERVAL);
const DEFAULT_ORPHAN_TIMEOUT: HumanDuration = HumanDuration(timing::ORPHAN_TIMEOUT);
const DEFAULT_POLL_INTERVAL: HumanDuration = HumanDuration(timing::MAX_POLL_INTERVAL);
const DEFAULT_SHUTDOWN_TIMEOUT: HumanDuration = HumanDuration(timing::SHUTDOWN_TIMEOUT);
/// Value of `--exit-when-idle` without a value.
const DEFAULT_IDLE_TIME: &str = "1s";
const DEFAULT_FLEET_METRICS_INTERVAL: HumanDuration = HumanDuration(timing::FLEET_METRICS_INTERVAL);
const DEFAULT_LOG: &str = "info";
static DEFAULT_FATAL_SQLSTATES: LazyLock<String> = LazyLock::new(|| FATAL_CLASSES.join(","));

/// Headings of `--help`.
const CONNECTION: &str = "Connection";
const READERS: &str = "Readers and queues";
const TIMING: &str = "Timing";
const SCHEDULES: &str = "Schedules";
const HTTP: &str = "HTTP and console";
const LOGGING: &str = "Logging";

/// Run SQL tasks that are queued in PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "worker", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Connection string of the queue's database: a URI or key=value pairs, as for psql [default:
    /// the PG* variables]
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL",
          help_heading = CONNECTION)]
    database_url: Option<String>,
    /// File that contains the connection string, instead of --database-url
    #[arg(long, env = "PGMILL_DATABASE_URL_FILE", value_name = "FILE", help_heading = CONNECTION)]
    database_url_file: Option<PathBuf>,
    /// Connection string of the login that task SQL runs as, preferably without privileges on the
    /// queue [default: same as --database-url]
    #[arg(long, env = "PGMILL_TASK_URL", hide_env_values = true, value_name = "URL",
          help_heading = CONNECTION)]
    task_url: Option<String>,
    /// File that contains the connection string for task SQL, instead of --task-url
    #[arg(long, env = "PGMILL_TASK_URL_FILE", value_name = "FILE", help_heading = CONNECTION)]
    task_url_file: Option<PathBuf>,
    /// Number of readers: maximum number of tasks that run at once
    #[arg(long, env = "PGMILL_READERS", value_name = "N", default_value_t = DEFAULT_READERS,
          value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = READERS)]
    readers: u32,
    /// Queues to serve, separated by commas [default: every queue]
    #[arg(long, env = "PGMILL_QUEUES", value_name = "NAMES", value_delimiter = ',',
          help_heading = READERS)]
    queues: Option<Vec<String>>,
    /// Do not retry attempts that fail with these SQLSTATEs, or prefixes of SQLSTATEs, separated by
    /// commas
    #[arg(long, env = "PGMILL_FATAL_SQLSTATES", value_name = "CODES", value_delimiter = ',',
          default_value = DEFAULT_FATAL_SQLSTATES.as_str(), help_heading = READERS)]
    fatal_sqlstates: Vec<String>,
    /// Run tasks even if the login that task SQL runs as is a superuser
    #[arg(long, env = "PGMILL_ALLOW_SUPERUSER", help_heading = READERS)]
    allow_superuser: bool,
    /// Time between two heartbeats of this worker
    #[arg(long, env = "PGMILL_HEARTBEAT_INTERVAL", value_name = "DURATION",
          default_value_t = DEFAULT_HEARTBEAT_INTERVAL, help_heading = TIMING)]
    heartbeat_interval: HumanDuration,
    /// Time after which a worker whose heartbeat has not changed is considered dead
    #[arg(long, env = "PGMILL_ORPHAN_TIMEOUT", value_name = "DURATION",
          default_value_t = DEFAULT_ORPHAN_TIMEOUT, help_heading = TIMING)]
    orphan_timeout: HumanDuration,
    /// Maximum time between two polls of the queue while this worker is idle; cannot exceed the
    /// default
    #[arg(long, env = "PGMILL_POLL_INTERVAL", value_name = "DURATION",
          default_value_t = DEFAULT_POLL_INTERVAL, help_heading = TIMING)]
    poll_interval: HumanDuration,
    /// Time for running tasks to finish after SIGTERM before they are cancelled
    #[arg(long, env = "PGMILL_SHUTDOWN_TIMEOUT", value_name = "DURATION",
          default_value_t = DEFAULT_SHUTDOWN_TIMEOUT, help_heading = TIMING)]
    shutdown_timeout: HumanDuration,
    #[arg(long, env = "PGMILL_EXIT_WHEN_IDLE", value_name = "DURATION", num_args = 0..=1,
          default_missing_value = DEFAULT_IDLE_TIME, require_equals = true, help_heading = TIMING,
          help = format!("Exit once no task has been runnable or running for this long \
                          [default: never; without a value: {DEFAULT_IDLE_TIME}]"))]
    exit_when_idle: Option<HumanDuration>,
    /// Do not fire schedules; leave them to other workers
    #[arg(long, env = "PGMILL_NO_SCHEDULER", help_heading = SCHEDULES)]
    no_scheduler: bool,
    /// Serve /metrics, /livez and /readyz on this address, such as 127.0.0.1:9187 [default: off]
    #[arg(long, env = "PGMILL_HTTP", value_name = "ADDR", help_heading = HTTP)]
    http: Option<SocketAddr>,
    /// Time between two counts of the tasks in the database, for the fleet-wide metrics
    #[arg(long, env = "PGMILL_FLEET_METRICS_INTERVAL", value_name = "DURATION",
          default_value_t = DEFAULT_FLEET_METRICS_INTERVAL, help_heading = HTTP)]
    fleet_metrics_interval: HumanDuration,
    /// Serve the web console on this address, such as 127.0.0.1:8787; the login of --database-url
    /// must be a member of mill_viewer [default: off]
    #[arg(long, env = "PGMILL_CONSOLE", value_name = "ADDR", help_heading = HTTP)]
    console: Option<SocketAddr>,
    #[command(flatten)]
    console_flags: WorkerConsoleFlags,
    /// Log format on stderr [default: text on a terminal, else json]
    #[arg(long, env = "PGMILL_LOG_FORMAT", value_enum, value_name = "FORMAT",
          help_heading = LOGGING)]
    log_format: Option<LogFormat>,
    /// Log level: error, warn, info or debug, also per module as in worker=debug
    #[arg(long, env = "PGMILL_LOG", value_name = "FILTER", default_value = DEFAULT_LOG,
          help_heading = LOGGING)]
    log: String,
    /// TOML configuration file. Its keys are the names of these flags with _ instead of -; its
    /// tables [run_as.NAME] define profiles
    #[arg(long, env = "PGMILL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print every setting with its source (flag, environment, file or default), then exit
    #[arg(long)]
    pub(crate) print_config: bool,
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

/// The resolved settings.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) database_url: Option<ConnectionSource>,
    pub(crate) task_url: Option<ConnectionSource>,
    pub(crate) readers: u32,
    pub(crate) queues: Option<Vec<String>>,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) orphan_timeout: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) exit_when_idle: Option<Duration>,
    pub(crate) allow_superuser: bool,
    pub(crate) no_scheduler: bool,
    pub(crate) fatal_sqlstates: Vec<String>,
    pub(crate) http: Option<SocketAddr>,
    pub(crate) fleet_metrics_interval: Duration,
    pub(crate) console: Option<Console>,
    pub(crate) log_format: Option<LogFormat>,
    pub(crate) log: String,
    /// Profiles by name.
    pub(crate) run_as: BTreeMap<String, Profile>,
    pub(crate) origins: Vec<Origin>,
}

impl Config {
    /// Resolves every setting. Does not read files with connection strings.
    ///
    /// # Errors
    /// The configuration file cannot be read, has an unknown key or a value of the wrong type; a
    /// setting is out of range or contradicts another one.
    pub(crate) fn resolve(args: Args, matches: &ArgMatches) -> anyhow::Result<Self> {
        let mut file = args.config.as_deref().map(read).transpose()?.unwrap_or_default();
        let mut p = SettingResolver { matches, file: args.config.as_deref(), origins: Vec::new() };
        macro_rules! duration {
            ($name:ident) => {{
                let show = HumanDuration::to_string;
                p.resolve_with_default(stringify!($name), args.$name, file.$name, show).0
            }};
        }
        let list = |names: &Vec<String>| names.join(",");
        let console = p.console(args.console, args.console_flags.0, &mut file)?;
        let mut config = Self {
            database_url: p.url(
                SourceNames::DATABASE,
                (args.database_url, args.database_url_file),
                (file.database_url, file.database_url_file),
            )?,
            task_url: p.url(
                SourceNames::TASK,
                (args.task_url, args.task_url_file),
                (file.task_url, file.task_url_file),
            )?,
            readers: p.resolve_with_default("readers", args.readers, file.readers, u32::to_string),
            queues: p.resolve("queues", args.queues, file.queues, list),
            heartbeat_interval: duration!(heartbeat_interval),
            orphan_timeout: duration!(orphan_timeout),
            poll_interval: duration!(poll_interval),
            shutdown_timeout: duration!(shutdown_timeout),
            exit_when_idle: p
                .resolve(
                    "exit_when_idle",
                    args.exit_when_idle,
                    file.exit_when_idle,
                    HumanDuration::to_string,
                )
                .map(|duration| duration.0),
            allow_superuser: p.resolve_or(
                "allow_superuser",
                args.allow_superuser.then_some(true),
                file.allow_superuser,
                false,
            ),
            no_scheduler: p.resolve_or(
                "no_scheduler",
                args.no_scheduler.then_some(true),
                file.no_scheduler,
                false,
            ),
            fatal_sqlstates: p.resolve_with_default(
                "fatal_sqlstates",
                args.fatal_sqlstates,
                file.fatal_sqlstates,
                list,
            ),
            http: p.resolve("http", args.http, file.http, SocketAddr::to_string),
            fleet_metrics_interval: duration!(fleet_metrics_interval),
            console,
            log_format: p.resolve("log_format", args.log_format, file.log_format, |format| {
                format!("{format:?}").to_lowercase()
            }),
            log: p.resolve_with_default("log", args.log, file.log, String::clone),
            run_as: file.run_as,
            origins: Vec::new(),
        };
        for (name, profile) in &config.run_as {
            let (name, value) = (format!("run_as.{name}"), format!("{} readers", profile.readers));
            p.origins.push(Origin { name, value, origin: p.file_origin() });
        }
        config.origins = p.origins;
        config.check()?;
        Ok(config)
    }

    /// Returns whether the setting was given on the command line.
    pub(crate) fn on_command_line(&self, name: &str) -> bool {
        self.origins.iter().any(|origin| origin.name == name && origin.origin == "flag")
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            (1..=1000).contains(&self.readers),
            "readers is {}; it must be between 1 and 1000",
            self.readers
        );
        ensure!(
            self.heartbeat_interval >= Duration::from_millis(100),
            "heartbeat_interval must be at least 100ms"
        );
        // The same poll finds due tasks and dead workers.
        ensure!(
            (Duration::from_millis(10)..=timing::MAX_POLL_INTERVAL).contains(&self.poll_interval),
            "poll_interval must be between 10ms and {:?}",
            timing::MAX_POLL_INTERVAL
        );
        ensure!(
            self.fleet_metrics_interval >= Duration::from_millis(100),
            "fleet_metrics_interval must be at least 100ms: each count reads the whole live table"
        );
        ensure!(
            self.orphan_timeout >= 3 * self.heartbeat_interval,
            "orphan_timeout ({:?}) must be at least three times heartbeat_interval ({:?}), so that \
             one lost heartbeat does not make a worker look dead",
            self.orphan_timeout,
            self.heartbeat_interval
        );
        for (name, profile) in &self.run_as {
            profile.check(name)?;
        }
        for queue in self.queues.iter().flatten() {
            let fits = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
            if queue.is_empty() || queue.len() > 128 || !queue.chars().all(fits) {
                bail!("invalid queue name \"{queue}\"; use up to 128 letters, digits and _ . : -");
            }
        }
        for code in &self.fatal_sqlstates {
            let fits = |c: char| c.is_ascii_digit() || c.is_ascii_uppercase();
            if code.is_empty() || code.len() > 5 || !code.chars().all(fits) {
                bail!("invalid SQLSTATE \"{code}\"; use up to 5 digits and capitals, as in 42P01");
            }
        }
        Ok(())
    }
}

fn read(path: &Path) -> anyhow::Result<ConfigFile> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("could not read the configuration file {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("in {}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::*;

    fn decide(flags: &[&str]) -> anyhow::Result<Config> {
        let matches = Args::command().try_get_matches_from(flags)?;
        Config::resolve(Args::from_arg_matches(&matches)?, &matches)
    }

    fn with_file<T>(name: &str, text: &str, then: impl FnOnce(&str) -> T) -> T {
        let path = std::env::temp_dir().join(format!("pgmill-{name}-{}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let result = then(path.to_str().unwrap());
        std::fs::remove_file(&path).unwrap();
        result
    }

    #[test]
    fn the_command_line_definition_is_valid() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        with_file("config", "readers = 3\nheartbeat_interval = \"2s\"\n", |file| {
            let config = decide(&["worker", "--config", file, "--readers", "5"]).unwrap();
            assert_eq!((config.readers, config.heartbeat_interval), (5, Duration::from_secs(2)));
            let origin = |name| &config.origins.iter().find(|o| o.name == name).unwrap().origin;
            assert_eq!(origin("readers"), "flag");
            assert_eq!(origin("heartbeat_interval"), &format!("file {file}"));
            assert_eq!(origin("poll_interval"), "default");
        });
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        with_file("unknown", "reders = 3\n", |file| {
            let error = decide(&["worker", "--config", file]).unwrap_err();
            assert!(format!("{error:#}").contains("unknown field `reders`"), "{error:#}");
        });
    }

    #[test]
    fn console_settings_come_from_flags_and_file() {
        assert!(decide(&["worker", "--console-read-only"]).unwrap().console.is_none());
        let text = "console = \"127.0.0.1:1\"\nconsole_base_path = \"/x/\"\nconsole_allow_host = [\"a\"]\n";
        with_file("console", text, |file| {
            let flags = ["worker", "--config", file, "--console-allow-host", "b,c"];
            let console = decide(&flags).unwrap().console.unwrap();
            let WorkerConsoleFlags(flags) = console.flags;
            assert_eq!((console.listen.port(), &*flags.base_path), (1, "/x"));
            assert_eq!((flags.allow_host, flags.read_only), (vec!["b".into(), "c".into()], false));
        });
        let text = "console = \"127.0.0.1:1\"\nconsole_tls_cert = \"c\"\nconsole_tls_key = \"k\"\nconsole_behind_proxy = true\n";
        with_file("console-tls", text, |file| {
            let given = ["worker", "--config", file, "--console-tls-key=l", "--console-tls-cert=d"];
            for (given, cert, key) in [(&given[..3], "c", "k"), (&given[..], "d", "l")] {
                let WorkerConsoleFlags(flags) = decide(given).unwrap().console.unwrap().flags;
                assert_eq!((flags.tls_cert, flags.tls_key), (Some(cert.into()), Some(key.into())));
                assert!(flags.behind_proxy);
            }
        });
        with_file("no-path", "console_base_path = \"x\"\n", |file| {
            assert!(decide(&["worker", "--config", file]).is_err());
        });
    }

    #[test]
    fn help_shows_the_defaults_that_apply() {
        let config = decide(&["worker"]).unwrap();
        assert_eq!(config.fatal_sqlstates, FATAL_CLASSES);
        let help = Args::command().term_width(1000).render_help().to_string();
        for default in [
            config.readers.to_string(),
            format!("{:?}", config.heartbeat_interval),
            format!("{:?}", config.poll_interval),
            FATAL_CLASSES.join(","),
        ] {
            assert!(help.contains(&format!("[default: {default}]")), "{default}: {help}");
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        for flags in [
            ["worker", "--heartbeat-interval=20s"],
            ["worker", "--readers=0"],
            ["worker", "--poll-interval=-1s"],
            ["worker", "--queues=a b"],
            ["worker", "--fleet-metrics-interval=0s"],
            ["worker", "--fatal-sqlstates=42p01"],
            ["worker", "--shutdown-timeout=soon"],
        ] {
            assert!(decide(&flags).is_err(), "{flags:?}");
        }
    }

    #[test]
    fn origins_do_not_contain_secrets() {
        let config = decide(&["worker", "--database-url", "postgres://a:secret@b/c"]).unwrap();
        assert!(config.origins.iter().all(|origin| !origin.value.contains("secret")));
    }
}
