//! Settings: flag > environment > file > default, each with its origin.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use clap::parser::ValueSource;
use clap::{ArgMatches, Parser, ValueEnum};
use console::{ConsoleFlags, WorkerConsoleFlags};
use queue::connect::{ConnectionSource, Layer, SourceNames};
use queue::retry::FATAL_CLASSES;
use serde::Deserialize;

use crate::duration::HumanDuration;
use crate::fleet_metrics;
use crate::login::Profile;
use crate::poll;

/// Runs SQL tasks from the queue.
#[derive(Debug, Parser)]
#[command(name = "worker", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Where the queue is: URI or key=value, as psql takes it; else the PG* variables
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
    /// The file that holds it, in place of --database-url
    #[arg(long, env = "PGMILL_DATABASE_URL_FILE", value_name = "FILE")]
    database_url_file: Option<PathBuf>,
    /// The login that task SQL runs as, best one without rights on the queue [default: the same]
    #[arg(long, env = "PGMILL_TASK_URL", hide_env_values = true, value_name = "URL")]
    task_url: Option<String>,
    /// The file that holds it, in place of --task-url
    #[arg(long, env = "PGMILL_TASK_URL_FILE", value_name = "FILE")]
    task_url_file: Option<PathBuf>,
    /// Tasks to run at once [default: 8]
    #[arg(long, env = "PGMILL_READERS", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    readers: Option<u32>,
    /// Queues to serve, separated by commas [default: every queue]
    #[arg(long, env = "PGMILL_QUEUES", value_name = "NAMES", value_delimiter = ',')]
    queues: Option<Vec<String>>,
    /// Time between two beats [default: 5s]
    #[arg(long, env = "PGMILL_HEARTBEAT_INTERVAL", value_name = "DURATION")]
    heartbeat_interval: Option<HumanDuration>,
    /// A worker that has not been seen to beat for this long is dead [default: 30s]
    #[arg(long, env = "PGMILL_ORPHAN_TIMEOUT", value_name = "DURATION")]
    orphan_timeout: Option<HumanDuration>,
    /// The longest wait before an idle worker looks into the queue again [default: 1s]
    #[arg(long, env = "PGMILL_POLL_INTERVAL", value_name = "DURATION")]
    poll_interval: Option<HumanDuration>,
    /// After SIGTERM, time for running tasks to finish before they are cancelled [default: 30s]
    #[arg(long, env = "PGMILL_SHUTDOWN_TIMEOUT", value_name = "DURATION")]
    shutdown_timeout: Option<HumanDuration>,
    /// End once nothing has been runnable or running for this long [default: never; without a
    /// value: 1s]
    #[arg(long, env = "PGMILL_EXIT_WHEN_IDLE", value_name = "DURATION", num_args = 0..=1,
          default_missing_value = "1s", require_equals = true)]
    exit_when_idle: Option<HumanDuration>,
    /// Run tasks even where their login is superuser
    #[arg(long, env = "PGMILL_ALLOW_SUPERUSER")]
    allow_superuser: bool,
    /// Leave the ticks of schedules to other workers
    #[arg(long, env = "PGMILL_NO_SCHEDULER")]
    no_scheduler: bool,
    /// SQLSTATEs or beginnings of them that are not worth another attempt, separated by commas
    #[arg(long, env = "PGMILL_FATAL_SQLSTATES", value_name = "CODES", value_delimiter = ',')]
    fatal_sqlstates: Option<Vec<String>>,
    /// Serve /metrics, /livez and /readyz here, as 127.0.0.1:9187 [default: off]
    #[arg(long, env = "PGMILL_HTTP", value_name = "ADDR")]
    http: Option<SocketAddr>,
    /// Time between two counts of what /metrics tells of the whole fleet [default: 15s]
    #[arg(long, env = "PGMILL_FLEET_METRICS_INTERVAL", value_name = "DURATION")]
    fleet_metrics_interval: Option<HumanDuration>,
    /// Serve the web console here, as 127.0.0.1:8787; its login has to be a member of mill_viewer
    /// [default: off]
    #[arg(long, env = "PGMILL_CONSOLE", value_name = "ADDR")]
    console: Option<SocketAddr>,
    #[command(flatten)]
    console_flags: WorkerConsoleFlags,
    /// Form of the log on stderr [default: text on a terminal, else json]
    #[arg(long, env = "PGMILL_LOG_FORMAT", value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// What to log: error, warn, info, debug, or per module as worker=debug [default: info]
    #[arg(long, env = "PGMILL_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// Settings in TOML; the keys are the flags with _ for -, and [run_as.NAME] are profiles
    #[arg(long, env = "PGMILL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print every setting with where it comes from, and end
    #[arg(long)]
    pub(crate) print_config: bool,
}

const AFTER_HELP: &str = "\
Examples:
  worker --database-url postgres://mill@db/app --task-url postgres://etl@db/app
  PGSERVICE=app worker --readers 16 --queues etl,reports --http 127.0.0.1:9187
  worker --exit-when-idle=30s          # drain the queue, then end
  worker --config worker.toml --print-config

Signals: SIGTERM or SIGINT stops claiming, lets running tasks finish up to --shutdown-timeout, then cancels them
and gives them back with their attempt. A second signal cancels at once.

Exit codes: 0 ended as asked; 1 failure; 2 wrong usage or configuration; 5 refused (schema version,
missing right); 75 database unreachable at the start.";

/// The same keys in a file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    database_url: Option<String>,
    database_url_file: Option<PathBuf>,
    task_url: Option<String>,
    task_url_file: Option<PathBuf>,
    readers: Option<u32>,
    queues: Option<Vec<String>>,
    heartbeat_interval: Option<HumanDuration>,
    orphan_timeout: Option<HumanDuration>,
    poll_interval: Option<HumanDuration>,
    shutdown_timeout: Option<HumanDuration>,
    exit_when_idle: Option<HumanDuration>,
    allow_superuser: Option<bool>,
    no_scheduler: Option<bool>,
    fatal_sqlstates: Option<Vec<String>>,
    http: Option<SocketAddr>,
    fleet_metrics_interval: Option<HumanDuration>,
    console: Option<SocketAddr>,
    console_read_only: Option<bool>,
    console_token_file: Option<PathBuf>,
    console_tls_cert: Option<PathBuf>,
    console_tls_key: Option<PathBuf>,
    console_behind_proxy: Option<bool>,
    console_base_path: Option<String>,
    console_allow_host: Option<Vec<String>>,
    log_format: Option<LogFormat>,
    log: Option<String>,
    #[serde(default)]
    run_as: BTreeMap<String, Profile>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// Every setting, decided.
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
    /// By name.
    pub(crate) run_as: BTreeMap<String, Profile>,
    pub(crate) origins: Vec<Origin>,
}

/// A console to serve.
#[derive(Debug)]
pub(crate) struct Console {
    pub(crate) listen: SocketAddr,
    pub(crate) flags: WorkerConsoleFlags,
}

/// Where a setting comes from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) name: String,
    /// Empty: not set. A secret is not shown.
    pub(crate) value: String,
    pub(crate) origin: String,
}

/// Picks each setting from the first place that has it, and remembers the place.
struct SettingResolver<'a> {
    matches: &'a ArgMatches,
    file: Option<&'a Path>,
    origins: Vec<Origin>,
}

/// What one place may say of a connection string: itself, and the name of its file.
type UrlSources = (Option<String>, Option<PathBuf>);

impl SettingResolver<'_> {
    /// The file, as an origin.
    fn file_origin(&self) -> String {
        format!("file {}", self.file.unwrap_or(Path::new("")).display())
    }

    /// The place that a value of the command line's definition comes from.
    fn layer(&self, name: &str) -> Layer {
        match self.matches.value_source(name) {
            Some(ValueSource::EnvVariable) => Layer::Environment,
            _ => Layer::Arguments,
        }
    }

    /// A connection string, here or in a file. What counts is remembered, a string without its text.
    fn url(
        &mut self,
        names: SourceNames,
        flag: UrlSources,
        file: UrlSources,
    ) -> anyhow::Result<Option<ConnectionSource>> {
        let (key, file_key) = (names.key, format!("{}_file", names.key));
        let (here, there) = (self.layer(key), self.layer(&file_key));
        let texts = [flag.0.map(|it| (it, here)), file.0.map(|it| (it, Layer::File))];
        let files = [flag.1.map(|it| (it, there)), file.1.map(|it| (it, Layer::File))];
        let chosen = ConnectionSource::choose(
            names,
            texts.into_iter().flatten(),
            files.into_iter().flatten(),
        )?;
        let origin = match chosen.as_ref().map(|(_, layer)| layer) {
            Some(Layer::Arguments) => "flag".to_owned(),
            Some(Layer::Environment) => "environment".to_owned(),
            Some(Layer::File) => self.file_origin(),
            None => "default".to_owned(),
        };
        let given = chosen.map(|(given, _)| given);
        let (name, value) = match &given {
            Some(ConnectionSource::File(path)) => (file_key, path.display().to_string()),
            Some(ConnectionSource::Text(_)) => (key.to_owned(), "(set)".to_owned()),
            None => (key.to_owned(), String::new()),
        };
        self.origins.push(Origin { name, value, origin });
        Ok(given)
    }

    fn resolve<T>(
        &mut self,
        name: &'static str,
        flag: Option<T>,
        file: Option<T>,
        show: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        let origin = match (&flag, &file, self.matches.value_source(name)) {
            (Some(_), _, Some(ValueSource::EnvVariable)) => "environment".to_owned(),
            (Some(_), ..) => "flag".to_owned(),
            (None, Some(_), _) => self.file_origin(),
            (None, None, _) => "default".to_owned(),
        };
        let value = flag.or(file);
        let shown = value.as_ref().map(show).unwrap_or_default();
        self.origins.push(Origin { name: name.to_owned(), value: shown, origin });
        value
    }

    /// The flags of a console have defaults of their own, so that what was given is asked of the
    /// command line.
    fn console(
        &mut self,
        listen: Option<SocketAddr>,
        mut flags: ConsoleFlags,
        file: &mut ConfigFile,
    ) -> anyhow::Result<Option<Console>> {
        let listen = self.resolve("console", listen, file.console, SocketAddr::to_string);
        let read_only = flags.read_only.then_some(true);
        flags.read_only =
            self.resolve_or("console_read_only", read_only, file.console_read_only, false);
        for (name, flag, in_file) in [
            ("console_token_file", &mut flags.token_file, file.console_token_file.take()),
            ("console_tls_cert", &mut flags.tls_cert, file.console_tls_cert.take()),
            ("console_tls_key", &mut flags.tls_key, file.console_tls_key.take()),
        ] {
            *flag = self.resolve(name, flag.take(), in_file, |path| path.display().to_string());
        }
        let behind = flags.behind_proxy.then_some(true);
        flags.behind_proxy =
            self.resolve_or("console_behind_proxy", behind, file.console_behind_proxy, false);
        let base_path = Some(flags.base_path).filter(|path| !path.is_empty());
        let in_file = file.console_base_path.take().map(|path| console::base_path(&path));
        let in_file = in_file.transpose().map_err(|error| anyhow!("console_base_path: {error}"))?;
        flags.base_path = self.resolve_or("console_base_path", base_path, in_file, String::new());
        let names = Some(flags.allow_host).filter(|names| !names.is_empty());
        let in_file = file.console_allow_host.take();
        let shown = |names: &Vec<String>| names.join(",");
        flags.allow_host =
            self.resolve("console_allow_host", names, in_file, shown).unwrap_or_default();
        Ok(listen.map(|listen| Console { listen, flags: WorkerConsoleFlags(flags) }))
    }

    fn resolve_or<T: Display>(
        &mut self,
        name: &'static str,
        flag: Option<T>,
        file: Option<T>,
        default: T,
    ) -> T {
        self.resolve(name, flag, file, T::to_string).unwrap_or_else(|| {
            if let Some(origin) = self.origins.last_mut() {
                origin.value = default.to_string();
            }
            default
        })
    }
}

impl Config {
    /// Decides every setting.
    ///
    /// # Errors
    /// A file that cannot be read, has an unknown key or a value of the wrong kind; settings that
    /// contradict each other. Files with connection strings are not read here.
    pub(crate) fn resolve(args: Args, matches: &ArgMatches) -> anyhow::Result<Self> {
        let mut file = args.config.as_deref().map(read).transpose()?.unwrap_or_default();
        let mut p = SettingResolver { matches, file: args.config.as_deref(), origins: Vec::new() };
        macro_rules! duration {
            ($name:ident, $default:expr) => {
                p.resolve_or(stringify!($name), args.$name, file.$name, $default).0
            };
        }
        let list = |names: &Vec<String>| names.join(",");
        let default_fatal = FATAL_CLASSES.iter().map(|code| (*code).to_owned()).collect::<Vec<_>>();
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
            readers: p.resolve_or("readers", args.readers, file.readers, 8),
            queues: p.resolve("queues", args.queues, file.queues, list),
            heartbeat_interval: duration!(heartbeat_interval, HumanDuration::seconds(5)),
            orphan_timeout: duration!(orphan_timeout, HumanDuration::seconds(30)),
            poll_interval: duration!(poll_interval, HumanDuration(poll::MAX_POLL_INTERVAL)),
            shutdown_timeout: duration!(shutdown_timeout, HumanDuration::seconds(30)),
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
            fatal_sqlstates: p
                .resolve("fatal_sqlstates", args.fatal_sqlstates, file.fatal_sqlstates, list)
                .unwrap_or(default_fatal),
            http: p.resolve("http", args.http, file.http, SocketAddr::to_string),
            fleet_metrics_interval: duration!(
                fleet_metrics_interval,
                HumanDuration(fleet_metrics::DEFAULT_INTERVAL)
            ),
            console,
            log_format: p.resolve("log_format", args.log_format, file.log_format, |format| {
                format!("{format:?}").to_lowercase()
            }),
            log: p.resolve_or("log", args.log, file.log, "info".to_owned()),
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

    /// Whether the setting stands on the command line.
    pub(crate) fn on_command_line(&self, name: &str) -> bool {
        self.origins.iter().any(|origin| origin.name == name && origin.origin == "flag")
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            (1..=1000).contains(&self.readers),
            "readers is {}, it has to be between 1 and 1000",
            self.readers
        );
        ensure!(
            self.heartbeat_interval >= Duration::from_millis(100),
            "heartbeat_interval has to be at least 100ms"
        );
        // The same look finds due tasks and dead workers.
        ensure!(
            (Duration::from_millis(10)..=poll::MAX_POLL_INTERVAL).contains(&self.poll_interval),
            "poll_interval has to be between 10ms and {:?}",
            poll::MAX_POLL_INTERVAL
        );
        ensure!(
            self.fleet_metrics_interval >= Duration::from_millis(100),
            "fleet_metrics_interval has to be at least 100ms: each count reads the whole live table"
        );
        ensure!(
            self.orphan_timeout >= 3 * self.heartbeat_interval,
            "orphan_timeout ({:?}) has to be at least three times heartbeat_interval ({:?}): one lost beat is no \
             death",
            self.orphan_timeout,
            self.heartbeat_interval
        );
        for (name, profile) in &self.run_as {
            profile.check(name)?;
        }
        for queue in self.queues.iter().flatten() {
            let fits = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
            if queue.is_empty() || queue.len() > 128 || !queue.chars().all(fits) {
                bail!("\"{queue}\" is no queue name: letters, digits and _ . : -, up to 128");
            }
        }
        for code in &self.fatal_sqlstates {
            let fits = |c: char| c.is_ascii_digit() || c.is_ascii_uppercase();
            if code.is_empty() || code.len() > 5 || !code.chars().all(fits) {
                bail!("\"{code}\" is no SQLSTATE and no beginning of one");
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
    fn the_command_line_is_sound() {
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
    fn a_console_is_served_as_flags_and_file_say() {
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
    fn no_secret_is_shown() {
        let config = decide(&["worker", "--database-url", "postgres://a:secret@b/c"]).unwrap();
        assert!(config.origins.iter().all(|origin| !origin.value.contains("secret")));
    }
}
