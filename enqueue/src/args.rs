//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use queue::connect::{ConnectionSource, Layer, SourceNames};
use queue::{Backoff, Mode, Priority};
use serde_json::Value;
use terminal::{label, queue_name};

use crate::time_args::{self, Moment};

const TEMPLATE: &str = "\
{about-with-newline}
Examples:
  enqueue 'REFRESH MATERIALIZED VIEW sales'
  enqueue --wait --json 'SELECT count(*) FROM sales'
  enqueue --file load.sql --queue etl --priority high --max-attempts 5
  enqueue --mode autocommit --at 'tomorrow 03:00' 'VACUUM (ANALYZE) sales'
  enqueue --param 7 --param '\"2026-12-01\"' 'SELECT load($1, $2::date)'
  enqueue --concurrency-key customer-17 'CALL bill(17)'
  enqueue --job daily,sunday --param day=2026-12-01 --wait
  psql -Atc \"SELECT format('ANALYZE %I', relname) FROM pg_class WHERE relkind = 'r'\" |
    enqueue --lines

{usage-heading} {usage}

{all-args}{after-help}
";

const AFTER_HELP: &str = "\
Standard output carries the task's id, one per line and task; with --wait the first rows follow.
With --job it carries the run's id.
Everything else goes to standard error. Several tasks (--lines, several --file) are submitted in one
transaction: if one of them is refused, none is submitted.

Exit codes:
    0  submitted; with --wait: and it succeeded
    1  something failed that has no code of its own, also: it is not known whether it was submitted
    2  the command line is wrong, or a file cannot be read
    3  --wait: the task or the run ended, and did not succeed
    5  refused: a statement, a value, a limit, a missing right, an unknown schema version
   75  the database cannot be reached, nothing was submitted: try again later
  124  --wait=DURATION: the time ran out, the task goes on
  130  --wait: interrupted, the task goes on

Without --database-url, DATABASE_URL and the like the connection is what psql would use: PGHOST,
PGUSER, PGSERVICE, PGPASSFILE and so on.";

/// Submits SQL to a pgmill fleet, and waits for it if asked.
#[derive(Debug, Parser)]
#[command(name = "enqueue", version, help_template = TEMPLATE, after_help = AFTER_HELP)]
#[command(max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) input: Input,
    /// Wait until the task has ended, at most DURATION, and show its outcome, notices and first rows
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true)]
    #[arg(value_parser = time_args::duration, conflicts_with_all = ["lines"])]
    pub(crate) wait: Option<Option<Duration>>,
    /// Print one JSON object for each task; with --wait it has the fields of mill.history
    #[arg(long)]
    pub(crate) json: bool,
    /// Where the fleet's database is: URL or key=value pairs, as for psql
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "CONNINFO")]
    database_url: Option<String>,
    /// The file that holds it, in place of --database-url
    #[arg(long, env = "PGMILL_DATABASE_URL_FILE", value_name = "FILE")]
    database_url_file: Option<PathBuf>,
    /// What counts of these two; in arguments every user of the machine can read it.
    #[arg(skip)]
    pub(crate) given: Option<(ConnectionSource, Layer)>,
    // Last: its heading holds for every argument behind it.
    #[command(flatten)]
    pub(crate) task: TaskFlags,
}

/// A value for a statement, or for a run.
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

/// What to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Input {
    /// The SQL to run; - reads it from standard input
    #[arg(value_name = "SQL")]
    pub(crate) statement: Option<String>,
    /// Read the SQL from FILE, one task for each file; may be repeated
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "statement")]
    pub(crate) file: Vec<PathBuf>,
    /// One task for each line of standard input or of the files; lines without SQL are skipped
    #[arg(long)]
    pub(crate) lines: bool,
    /// Start a run of these jobs, merged into one
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = label)]
    #[arg(conflicts_with_all = ["statement", "file", "lines", "TaskFlags"])]
    pub(crate) job: Vec<String>,
    /// Value of the next of $1, $2, …, in JSON: 7, '"text"', null; with --job NAME=VALUE, a parameter
    /// of the run, as JSON or as it is; may be repeated
    #[arg(long = "param", value_name = "JSON", value_parser = param)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) params: Vec<Param>,
}

/// How to run it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "How the task is run")]
pub(crate) struct TaskFlags {
    /// The queue [default: default]
    #[arg(long, value_name = "NAME", value_parser = queue_name)]
    pub(crate) queue: Option<String>,
    /// What people call the task
    #[arg(long, value_parser = label)]
    pub(crate) name: Option<String>,
    /// Submit nothing if a live task has this key; the id printed is then that task's
    #[arg(long, value_parser = label, conflicts_with = "lines")]
    pub(crate) key: Option<String>,
    /// How urgent it is [default: its group's, or else normal]
    #[arg(long, value_parser = enum_value::<Priority>(Priority::ALL.iter().map(|it| it.as_str())))]
    pub(crate) priority: Option<Priority>,
    /// Run it at TIME: "2026-12-01 03:00" (local), "03:00", "tomorrow 03:00", RFC 3339
    #[arg(long, value_name = "TIME", conflicts_with = "in")]
    pub(crate) at: Option<Moment>,
    /// Run it after DURATION: 90s, "1h 30m", "2 days"
    #[arg(long, value_name = "DURATION", value_parser = time_args::duration)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) r#in: Option<Duration>,
    /// Attempts that may fail, in all [default: 3]
    #[arg(long, alias = "attempts", value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub(crate) max_attempts: Option<i32>,
    /// The same, without the first attempt
    #[arg(long, hide = true, value_name = "N", allow_negative_numbers = true)]
    #[arg(conflicts_with = "max_attempts", value_parser = clap::value_parser!(i32).range(0..10_000))]
    pub(crate) max_retries: Option<i32>,
    /// Wait before the second attempt [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = time_args::duration)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) retry_interval: Option<Duration>,
    /// How the wait grows with each failure: not at all, or twofold [default: exponential]
    #[arg(long, value_parser = enum_value::<Backoff>(Backoff::ALL.iter().map(|it| it.as_str())))]
    pub(crate) backoff: Option<Backoff>,
    /// Wait a random part of it, so that tasks that failed together do not come back together
    /// [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    pub(crate) jitter: Option<bool>,
    /// The longest an attempt may run [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = time_args::positive_duration)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// transaction: exactly once; autocommit: at least once, for VACUUM, CREATE INDEX CONCURRENTLY
    /// and procedures that commit [default: transaction]
    #[arg(long, value_parser = enum_value::<Mode>(Mode::ALL.iter().map(|it| it.as_str())))]
    pub(crate) mode: Option<Mode>,
    /// Never start the statement twice; needs --mode autocommit
    #[arg(long)]
    pub(crate) at_most_once: bool,
    /// Run it as EXPLAIN (ANALYZE): it has its effects, and its plan is kept in place of its rows, for
    /// pgmill task show --plan. One SELECT, INSERT, UPDATE, DELETE, MERGE, VALUES or WITH
    #[arg(long)]
    pub(crate) explain: bool,
    /// It has effects outside of the database server: record durably that it starts
    #[arg(long)]
    pub(crate) external: bool,
    /// The group it belongs to: default priority, concurrency, active period
    #[arg(long, value_name = "NAME", value_parser = label)]
    pub(crate) group: Option<String>,
    /// Tasks with the same key run one at a time, or as many as --concurrency says
    #[arg(long, value_name = "KEY", value_parser = label)]
    pub(crate) concurrency_key: Option<String>,
    /// How many with that key at once, if it has no limit yet [default: 1]
    #[arg(long, value_name = "N", requires = "concurrency_key")]
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) concurrency: Option<i32>,
    /// The profile whose login it runs as, if you may [default: the login of all tasks]
    #[arg(long, value_name = "PROFILE", value_parser = label)]
    pub(crate) run_as: Option<String>,
}

impl TaskFlags {
    /// Returns the number of attempts in all, by whichever flag it was given.
    pub(crate) fn max_attempts(&self) -> Option<i32> {
        self.max_attempts.or(self.max_retries.map(|retries| retries + 1))
    }
}

impl Args {
    /// The process's command line, checked.
    ///
    /// # Errors
    /// What is wrong with it; also --help and --version.
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
        args.check()?;
        Ok(args)
    }

    /// What no single argument shows.
    fn check(&self) -> Result<(), clap::Error> {
        let wrong = |kind, message: &str| Err(Self::command().error(kind, message));
        let named = self.input.params.iter().filter_map(Param::named).next();
        if !self.input.job.is_empty() {
            return match named.is_none() && !self.input.params.is_empty() {
                true => wrong(ErrorKind::InvalidValue, "--param of a run is written NAME=VALUE"),
                false => Ok(()),
            };
        }
        if let Some((name, _)) = named {
            let message = format!("--param '{name}=…' is not JSON; NAME=VALUE goes with --job");
            return wrong(ErrorKind::InvalidValue, &message);
        }
        if self.input.statement.is_none() && self.input.file.is_empty() && !self.input.lines {
            return wrong(
                ErrorKind::MissingRequiredArgument,
                "nothing to submit: give it SQL, --file FILE, --job NAME, or - for standard input",
            );
        }
        if self.input.lines && self.input.statement.as_deref().is_some_and(|it| it != "-") {
            return wrong(
                ErrorKind::ArgumentConflict,
                "--lines reads standard input or --file, not the argument SQL",
            );
        }
        let many = self.input.file.len() > 1;
        if many && self.task.key.is_some() {
            return wrong(ErrorKind::ArgumentConflict, "--key is for one task, not several files");
        }
        if many && self.wait.is_some() {
            return wrong(ErrorKind::ArgumentConflict, "--wait is for one task, not several files");
        }
        if self.task.at_most_once && self.task.mode != Some(Mode::Autocommit) {
            return wrong(
                ErrorKind::MissingRequiredArgument,
                "--at-most-once needs --mode autocommit: in a transaction the statement and its \
                 completion commit together anyway",
            );
        }
        if self.task.at_most_once && self.task.max_attempts().is_some_and(|attempts| attempts > 1) {
            return wrong(
                ErrorKind::ArgumentConflict,
                "--at-most-once runs once: leave --max-attempts out",
            );
        }
        Ok(())
    }
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
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            Ok(Param::Named(name.to_owned(), value))
        }
        _ => {
            let quoted = Value::from(text);
            Err(format!("it is not JSON ({error}); a string is written in quotes: '{quoted}'"))
        }
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
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn numbers_pass_through_a_parameter_digit_by_digit() {
        let args = parse(&["--param", "-12345678901234567890.10", "SELECT $1"]).unwrap();
        let Param::Positional(value) = &args.input.params[0] else {
            panic!("{:?}", args.input.params)
        };
        assert_eq!(value.to_string(), "-12345678901234567890.10");
    }

    #[test]
    fn a_run_takes_named_parameters_and_nothing_of_a_single_task() {
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
    }

    #[test]
    fn an_option_without_its_value_does_not_take_the_statement() {
        let args = parse(&["--wait", "--jitter", "SELECT 1"]).unwrap();
        assert_eq!(args.wait, Some(None));
        assert_eq!(args.task.jitter, Some(true));
        assert_eq!(args.input.statement.as_deref(), Some("SELECT 1"));
        let args = parse(&["--wait=5s", "--jitter=false", "SELECT 1"]).unwrap();
        assert_eq!(args.wait, Some(Some(Duration::from_secs(5))));
        assert_eq!(args.task.jitter, Some(false));
    }

    #[test]
    fn names_are_those_that_the_schema_takes() {
        let long = "q".repeat(129);
        for queue in ["", "a b", "a/b", "ä", &long] {
            assert!(parse(&["--queue", queue, "x"]).is_err(), "{queue}");
        }
        assert!(parse(&["--queue", "etl.eu-1:high_mem", "x"]).is_ok());
        assert!(parse(&["--key", "", "x"]).is_err());
        assert!(parse(&["--name", &"n".repeat(513), "x"]).is_err());
    }

    #[test]
    fn a_password_in_the_arguments_is_noticed() {
        let args = parse(&["--database-url", "postgresql://u:p@h/d", "x"]).unwrap();
        assert!(matches!(args.given, Some((ConnectionSource::Text(_), Layer::Arguments))));
    }
}
