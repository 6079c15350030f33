//! The command line of `enqueue`.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use cli::time::{self, Moment};
use conninfo::{ConnectionSource, Layer, SourceNames};
use queue::{Backoff, Labels, Mode, Priority, StoredOptions, Traceparent, task_defaults};
use serde_json::Value;
use terminal::{label, queue_name, span};

use crate::failure::Failure;

const TASK: &str = "Task";
const TIMING: &str = "Timing";
const RETRIES: &str = "Retries";
const EXECUTION: &str = "Execution";
const CONCURRENCY: &str = "Concurrency";
const LABELS: &str = "Tags and metadata";

const TEMPLATE: &str = "\
{about-with-newline}
Examples:
  enqueue 'REFRESH MATERIALIZED VIEW sales'
  enqueue --wait --json 'SELECT count(*) FROM sales'
  enqueue --file load.sql --queue etl --priority high --max-attempts 5
  enqueue --mode autocommit --at 'tomorrow 03:00' 'VACUUM (ANALYZE) sales'
  enqueue --param 7 --param '\"2026-12-01\"' 'SELECT load($1, $2::date)'
  enqueue --concurrency-key customer-17 'CALL bill(17)'
  enqueue --tag nightly --metadata owner=bi --file load.sql
  enqueue --job daily,sunday --param day=2026-12-01 --wait
  psql -Atc \"SELECT format('ANALYZE %I', relname) FROM pg_class WHERE relkind = 'r'\" |
    enqueue --lines

{usage-heading} {usage}

{all-args}{after-help}
";

const AFTER_HELP: &str = "\
Standard output is one task id per line, or the run id with --job; with --wait the first result
rows follow. Everything else goes to standard error. Several tasks (--lines, several --file) are
submitted in one transaction: if one task is refused, none is submitted.

Exit codes:
    0  submitted; with --wait: submitted and succeeded
    1  failure without a code of its own; also if it is not known whether the task was submitted or the run started
    2  invalid command line, or unreadable file
    3  --wait: the task or the run ended without success
    5  refused: statement, value, limit, missing privilege, or unsupported schema version
   75  database unreachable, nothing was submitted: try again later
  124  --wait=DURATION: timed out, the task continues
  130  --wait: interrupted, the task continues

Without --database-url, --database-url-file and their variables enqueue connects as psql does: with
PGHOST, PGUSER, PGSERVICE, PGPASSFILE and so on.";

/// Submit SQL to a pgmill fleet, and optionally wait for the result.
#[derive(Debug, Parser)]
#[command(name = "enqueue", version, help_template = TEMPLATE, after_help = AFTER_HELP)]
#[command(max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) input: Input,
    /// Wait until the task ends, at most DURATION, and show its outcome, notices and first rows
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true)]
    #[arg(value_parser = time::duration, conflicts_with_all = ["lines"])]
    pub(crate) wait: Option<Option<Duration>>,
    /// Print one JSON object per task; with --wait it has the columns of mill.history
    #[arg(long)]
    pub(crate) json: bool,
    /// Database of the fleet: URL or key=value pairs, as for psql
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "CONNINFO")]
    database_url: Option<String>,
    /// File that contains the connection string, instead of --database-url
    #[arg(long, env = "PGMILL_DATABASE_URL_FILE", value_name = "FILE")]
    database_url_file: Option<PathBuf>,
    /// The connection string or the file that `--database-url` or `--database-url-file` specifies,
    /// and where it was given: on the command line, which every user of the machine can read, or in
    /// the environment.
    #[arg(skip)]
    pub(crate) given: Option<(ConnectionSource, Layer)>,
    #[command(flatten)]
    pub(crate) task: TaskFlags,
    #[command(flatten)]
    labels: LabelFlags,
}

/// A value of a parameter, for a statement or for a run.
#[derive(Clone, Debug)]
pub(crate) enum Param {
    Positional(Value),
    Named(String, Value),
}

impl Param {
    fn named(&self) -> Option<(&str, &Value)> {
        match self {
            Self::Named(name, value) => Some((name, value)),
            Self::Positional(_) => None,
        }
    }
}

/// Options that select what to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Input {
    /// SQL to run; - reads standard input
    #[arg(value_name = "SQL")]
    pub(crate) statement: Option<String>,
    /// Read SQL from FILE, one task per file; may be repeated
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "statement")]
    pub(crate) file: Vec<PathBuf>,
    /// Submit each line of the --file arguments, or of standard input, as one task; skip empty
    /// lines and lines with only comments
    #[arg(long)]
    pub(crate) lines: bool,
    /// Start a run of these jobs, merged into one graph, instead of enqueuing a task
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = label)]
    #[arg(conflicts_with_all = ["statement", "file", "lines"])]
    pub(crate) job: Vec<String>,
    /// With --job: cancel the run with its running tasks after this duration
    #[arg(long, value_name = "DURATION", value_parser = time::duration, requires = "job")]
    pub(crate) run_timeout: Option<Duration>,
    /// Value of the next parameter $1, $2, …, as JSON: 7, '"text"', null; may be repeated. With
    /// --job: NAME=VALUE, where a VALUE that is not JSON is a string
    #[arg(long = "param", value_name = "JSON", value_parser = param)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) params: Vec<Param>,
}

/// Adds the default to a help text.
fn with_default(text: &str, default: impl Display) -> String {
    format!("{text} [default: {default}]")
}

/// Options of a single task. An option that is left out is not sent, so that the schema applies its
/// default.
#[derive(Debug, clap::Args)]
pub(crate) struct TaskFlags {
    #[arg(long, value_name = "NAME", value_parser = queue_name, help_heading = TASK)]
    #[arg(help = with_default("Queue name", task_defaults::QUEUE))]
    pub(crate) queue: Option<String>,
    /// Name of the task, for display and statistics
    #[arg(long, value_parser = label, help_heading = TASK)]
    pub(crate) name: Option<String>,
    /// Unique key: submit nothing if a live task has this key, and print the id of that task
    #[arg(long, value_parser = label, conflicts_with = "lines", help_heading = TASK)]
    pub(crate) key: Option<String>,
    #[arg(help = with_default(
        "Priority", format_args!("priority of the group, or {}", task_defaults::PRIORITY)
    ))]
    #[arg(long, value_parser = enum_value::<Priority>(Priority::ALL.iter().map(|it| it.as_str())))]
    #[arg(help_heading = TASK)]
    pub(crate) priority: Option<Priority>,
    /// Group of the task: sets its default priority, limit within a run and active period
    #[arg(long, value_name = "NAME", value_parser = label, help_heading = TASK)]
    pub(crate) group: Option<String>,
    /// Do not start before TIME: "2026-12-01 03:00" (local), "03:00", "tomorrow 03:00", RFC 3339
    #[arg(long, value_name = "TIME", conflicts_with = "in", help_heading = TIMING)]
    pub(crate) at: Option<Moment>,
    /// Do not start until DURATION has passed: 90s, "1h 30m", "2 days"
    #[arg(long, value_name = "DURATION", value_parser = time::duration)]
    #[arg(allow_hyphen_values = true, help_heading = TIMING)]
    pub(crate) r#in: Option<Duration>,
    /// Maximum duration of an attempt [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = time::positive_duration)]
    #[arg(allow_hyphen_values = true, help_heading = TIMING)]
    pub(crate) timeout: Option<Duration>,
    #[arg(help = with_default("Maximum number of attempts", task_defaults::MAX_ATTEMPTS))]
    #[arg(long, alias = "attempts", value_name = "N", help_heading = RETRIES)]
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub(crate) max_attempts: Option<i32>,
    /// Maximum number of attempts after the first one
    #[arg(long, hide = true, value_name = "N", allow_negative_numbers = true)]
    #[arg(conflicts_with = "max_attempts", value_parser = clap::value_parser!(i32).range(0..10_000))]
    pub(crate) max_retries: Option<i32>,
    #[arg(help = with_default(
        "Wait before the second attempt",
        span(task_defaults::RETRY_INTERVAL.as_secs_f64())
    ))]
    #[arg(long, value_name = "DURATION", value_parser = time::duration)]
    #[arg(allow_hyphen_values = true, help_heading = RETRIES)]
    pub(crate) retry_interval: Option<Duration>,
    #[arg(help = with_default(
        "Growth of the retry interval: fixed, or exponential (doubled after each failed attempt)", task_defaults::BACKOFF
    ))]
    #[arg(long, value_parser = enum_value::<Backoff>(Backoff::ALL.iter().map(|it| it.as_str())))]
    #[arg(help_heading = RETRIES)]
    pub(crate) backoff: Option<Backoff>,
    #[arg(help = with_default(
        "Wait a random part of the interval, so that tasks that failed together are not retried \
         together",
        format_args!("false with fixed backoff, else {}", task_defaults::JITTER)
    ))]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", help_heading = RETRIES)]
    pub(crate) jitter: Option<bool>,
    #[arg(help = with_default(
        "transaction: exactly once; autocommit: at least once, for VACUUM, CREATE INDEX \
         CONCURRENTLY and procedures that commit",
        task_defaults::MODE
    ))]
    #[arg(long, value_parser = enum_value::<Mode>(Mode::ALL.iter().map(|it| it.as_str())))]
    #[arg(help_heading = EXECUTION)]
    pub(crate) mode: Option<Mode>,
    /// Never start the statement a second time; requires --mode autocommit
    #[arg(long, help_heading = EXECUTION)]
    pub(crate) at_most_once: bool,
    /// Run the statement under EXPLAIN (ANALYZE): its effects are kept, and its plan is saved
    /// instead of its rows, for pgmill task show --plan. Requires a single SELECT, INSERT, UPDATE,
    /// DELETE, MERGE, VALUES or WITH statement
    #[arg(long, help_heading = EXECUTION)]
    pub(crate) explain: bool,
    /// Declare that the statement has effects outside the database server: the start of each
    /// attempt is recorded durably
    #[arg(long, help_heading = EXECUTION)]
    pub(crate) external: bool,
    #[command(flatten)]
    pub(crate) stored: StoredOptions,
    /// Profile whose login runs the task [default: the common login of tasks without a profile]
    #[arg(long, value_name = "PROFILE", value_parser = label, help_heading = EXECUTION)]
    pub(crate) run_as: Option<String>,
    /// Target: another database in which the task runs [default: the queue's database]
    #[arg(long, value_name = "TARGET", value_parser = label, help_heading = EXECUTION)]
    #[arg(conflicts_with = "run_as")]
    pub(crate) target: Option<String>,
    /// Concurrency key: tasks with the same key run one at a time, or up to the limit of the key
    #[arg(long, value_name = "KEY", value_parser = label, help_heading = CONCURRENCY)]
    pub(crate) concurrency_key: Option<String>,
    #[arg(help = with_default(
        "Limit of a new concurrency key: maximum number of its tasks that run at once", task_defaults::CONCURRENCY
    ))]
    #[arg(long, value_name = "N", requires = "concurrency_key", help_heading = CONCURRENCY)]
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) concurrency: Option<i32>,
}

/// Tags and metadata of the tasks, or of the run.
#[derive(Debug, clap::Args)]
struct LabelFlags {
    /// Tag of the task or run, to search by; may be repeated
    #[arg(long = "tag", value_name = "TAG", help_heading = LABELS)]
    tags: Vec<String>,
    /// Value to store and show with the task or run; a VALUE that is not JSON is a string; may be
    /// repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = metadata, help_heading = LABELS)]
    metadata: Vec<(String, Value)>,
    /// Trace context of the caller, as in the HTTP header traceparent; the tasks of a run get it, too
    #[arg(long, value_name = "TRACEPARENT", env = "TRACEPARENT", help_heading = LABELS)]
    traceparent: Option<String>,
}

impl TaskFlags {
    /// Returns the maximum number of failed attempts, for which there are three flags.
    pub(crate) fn max_attempts(&self) -> Option<i32> {
        self.max_attempts.or(self.max_retries.map(|retries| retries + 1))
    }
}

impl Args {
    /// Returns the tags and metadata. If a key is repeated, its last value counts.
    pub(crate) fn labels(&self) -> Labels {
        Labels {
            tags: self.labels.tags.clone(),
            metadata: self.labels.metadata.iter().cloned().collect(),
        }
    }

    /// Returns the trace context of the caller. An empty text counts as none.
    ///
    /// # Errors
    /// Returns a usage error if the text is not a trace context.
    pub(crate) fn traceparent(&self) -> Result<Option<Traceparent>, Failure> {
        let text = self.labels.traceparent.as_deref().filter(|text| !text.is_empty());
        let parsed = text.map(str::parse).transpose();
        parsed.map_err(|error: String| Failure::usage(format!("--traceparent: {error}")))
    }

    /// Parses and checks the command line of this process.
    ///
    /// # Errors
    /// Returns the usage error. The texts of `--help` and `--version` are errors as well.
    pub(crate) fn from_process() -> Result<Self, clap::Error> {
        Self::from_matches(&Self::command().try_get_matches()?)
    }

    fn from_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::from_arg_matches(matches)?;
        let layer = |name| match matches.value_source(name) {
            Some(ValueSource::EnvVariable) => Layer::Environment,
            _ => Layer::Arguments,
        };
        let text = args.database_url.take().map(|text| (text, layer("database_url")));
        let file = args.database_url_file.take().map(|file| (file, layer("database_url_file")));
        args.given = ConnectionSource::choose(SourceNames::DATABASE, text, file)
            .map_err(|error| Self::command().error(ErrorKind::ArgumentConflict, error))?;
        if !args.input.job.is_empty() {
            no_task_option(matches)?;
        }
        args.check()?;
        Ok(args)
    }

    /// Checks combinations of arguments.
    fn check(&self) -> Result<(), clap::Error> {
        let wrong = |kind, message: &str| Err(Self::command().error(kind, message));
        let named = self.input.params.iter().filter_map(Param::named).next();
        if !self.input.job.is_empty() {
            return match named.is_none() && !self.input.params.is_empty() {
                true => wrong(ErrorKind::InvalidValue, "with --job, --param takes NAME=VALUE"),
                false => Ok(()),
            };
        }
        if let Some((name, _)) = named {
            let message = format!("--param '{name}=…' is not JSON; NAME=VALUE requires --job");
            return wrong(ErrorKind::InvalidValue, &message);
        }
        if self.input.statement.is_none() && self.input.file.is_empty() && !self.input.lines {
            return wrong(
                ErrorKind::MissingRequiredArgument,
                "nothing to submit; expected SQL, --file FILE, --job NAME, or - for standard input",
            );
        }
        if self.input.lines && self.input.statement.as_deref().is_some_and(|it| it != "-") {
            return wrong(
                ErrorKind::ArgumentConflict,
                "--lines reads standard input or --file, and cannot be used with the argument SQL",
            );
        }
        let many = self.input.file.len() > 1;
        if many && self.task.key.is_some() {
            return wrong(
                ErrorKind::ArgumentConflict,
                "--key requires one task, not several files",
            );
        }
        if many && self.wait.is_some() {
            let message = "--wait requires one task, not several files";
            return wrong(ErrorKind::ArgumentConflict, message);
        }
        if self.task.at_most_once && self.task.mode != Some(Mode::Autocommit) {
            return wrong(
                ErrorKind::MissingRequiredArgument,
                "--at-most-once requires --mode autocommit; in transaction mode the statement and \
                 its completion commit together",
            );
        }
        if self.task.at_most_once && self.task.max_attempts().is_some_and(|attempts| attempts > 1) {
            return wrong(
                ErrorKind::ArgumentConflict,
                "--at-most-once allows one attempt, and cannot be used with --max-attempts",
            );
        }
        Ok(())
    }
}

/// Refuses options of a single task next to `--job`. The error names the option that was given.
fn no_task_option(matches: &ArgMatches) -> Result<(), clap::Error> {
    let task = <TaskFlags as clap::Args>::augment_args(clap::Command::new("enqueue"));
    let given = |arg: &&clap::Arg| {
        matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    let option = task.get_arguments().find(given).and_then(clap::Arg::get_long);
    let Some(option) = option else { return Ok(()) };
    let message = format!("--{option} cannot be used with --job");
    Err(Args::command().error(ErrorKind::ArgumentConflict, message))
}

fn enum_value<T>(words: impl Iterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse::<T>())
}

fn param(text: &str) -> Result<Param, String> {
    let error = match serde_json::from_str(text) {
        Ok(value) => return Ok(Param::Positional(value)),
        Err(error) => error,
    };
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|it| it.is_alphanumeric() || "_.-".contains(it))
    };
    match text.split_once('=') {
        Some((name, value)) if is_name(name) => {
            Ok(Param::Named(name.to_owned(), json_or_string(value)))
        }
        _ => {
            let quoted = Value::from(text);
            Err(format!("not JSON ({error}); a string needs quotes: '{quoted}'"))
        }
    }
}

/// Returns the JSON value, or the text as a string if it is not JSON.
fn json_or_string(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

fn metadata(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), json_or_string(value))),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Args, clap::Error> {
        let arguments = ["enqueue"].iter().chain(arguments);
        Args::from_matches(&Args::command().try_get_matches_from(arguments)?)
    }

    #[test]
    fn the_definition_is_valid() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_parameter_keeps_all_digits_of_a_number() {
        let args = parse(&["--param", "-12345678901234567890.10", "SELECT $1"]).unwrap();
        let Param::Positional(value) = &args.input.params[0] else {
            panic!("{:?}", args.input.params)
        };
        assert_eq!(value.to_string(), "-12345678901234567890.10");
    }

    #[test]
    fn a_run_takes_named_parameters_and_no_option_of_a_task() {
        let args = parse(&["--job", "daily,sunday", "--param", "day=2026-12-01", "--param", "n=7"]);
        let input = args.unwrap().input;
        assert_eq!(input.job, ["daily", "sunday"]);
        let named: Vec<_> = input.params.iter().filter_map(Param::named).collect();
        assert_eq!(named, [("day", &Value::from("2026-12-01")), ("n", &Value::from(7))]);
        for wrong in [
            &["--job", "daily", "SELECT 1"][..],
            &["--job", "daily", "--queue", "etl"],
            &["--job", "daily", "--param", "7"],
            &["--param", "n=7", "SELECT $1"],
            &["--job", ""],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        let conflict = parse(&["--job", "daily", "--queue", "etl"]).unwrap_err().to_string();
        assert!(conflict.contains("--queue cannot be used with --job"), "{conflict}");
    }

    #[test]
    fn an_option_with_an_optional_value_does_not_take_the_statement() {
        let args = parse(&["--wait", "--jitter", "SELECT 1"]).unwrap();
        assert_eq!(args.wait, Some(None));
        assert_eq!(args.task.jitter, Some(true));
        assert_eq!(args.input.statement.as_deref(), Some("SELECT 1"));
        let args = parse(&["--wait=5s", "--jitter=false", "SELECT 1"]).unwrap();
        assert_eq!(args.wait, Some(Some(Duration::from_secs(5))));
        assert_eq!(args.task.jitter, Some(false));
    }

    #[test]
    fn names_follow_the_rules_of_the_schema() {
        let long = "q".repeat(129);
        for queue in ["", "a b", "a/b", "ä", &long] {
            assert!(parse(&["--queue", queue, "x"]).is_err(), "{queue}");
        }
        assert!(parse(&["--queue", "etl.eu-1:high_mem", "x"]).is_ok());
        assert!(parse(&["--key", "", "x"]).is_err());
        assert!(parse(&["--name", &"n".repeat(513), "x"]).is_err());
    }

    #[test]
    fn a_password_in_the_arguments_is_detected() {
        let args = parse(&["--database-url", "postgresql://u:p@h/d", "x"]).unwrap();
        assert!(matches!(args.given, Some((ConnectionSource::Text(_), Layer::Arguments))));
    }
}
