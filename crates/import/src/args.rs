//! Arguments of `pgmill import`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Subcommand, ValueEnum};
use schedule::Timing;
use terminal::{label, queue_name};

/// Examples and rules of `pgmill import`, for its help.
pub const IMPORT_HELP: &str = "\
Examples:
  pgmill import dbt target/manifest.json --dry-run
  pgmill import pg-cron cron.csv --dry-run
  crontab -l | pgmill import crontab - --zone Europe/Berlin --print

The definitions become jobs and schedules, as if a job file declared them, in one transaction.
Importing a file twice changes nothing, and an import starts nothing. Standard error reports each
definition that is left out, and each setting that has no equal in pgmill, with its line or id.";

const DBT_HELP: &str = "\
Examples:
  dbt compile && pgmill import dbt target/manifest.json --dry-run
  pgmill import dbt target/manifest.json --job shop
  pgmill import dbt target/manifest.json --job orders --select stg_orders+ --exclude tag:slow
  pgmill import dbt target/manifest.json --job shop_models --resource-type model
  pgmill import dbt target/manifest.json --job shop_full --full-refresh
  enqueue --job shop --wait

The manifest is the output of `dbt compile`. Import it again after each change of the project: pgmill
changes only the tasks that differ, and disables the tasks of nodes that are gone. Selectors are
those of dbt: names, +NAME, NAME+, 2+NAME, @NAME, tag:, path:, file:, fqn:, package:, source:,
resource_type:, config.KEY:, test_type:, group:, wildcards, a comma for an intersection. A node that
cannot be carried over is an error, unless it is excluded or --partial is given.";

const PG_CRON_HELP: &str = "\
Examples:
  psql --csv -c 'TABLE cron.job' > cron.csv
  pgmill import pg-cron cron.csv --dry-run
  pgmill import pg-cron cron.csv --run-as etl=etl --prefix cron/
  psql -Atc 'SELECT json_agg(j) FROM cron.job j' | pgmill import pg-cron - --print > jobs/cron.toml

FILE has the rows of cron.job as CSV or JSON. Each row becomes a schedule with a statement.
pg_cron shows a login its own rows only; export as a superuser to get all of them.";

const PG_TIMETABLE_HELP: &str = "\
Examples:
  psql -At -f timetable.sql > timetable.json
  pgmill import pg-timetable timetable.json --zone Europe/Berlin --dry-run
  pgmill import pg-timetable timetable.json --zone Europe/Berlin

FILE is one JSON document with the keys chains, tasks and parameters, whose rows are those of the
tables timetable.chain, timetable.task and timetable.parameter. docs/coming-from/pg_timetable.md has
the query that exports it. Each chain becomes a job whose tasks run one after another, and a schedule.";

const CRONTAB_HELP: &str = "\
Examples:
  crontab -l | pgmill import crontab - --zone Europe/Berlin --dry-run
  pgmill import crontab /etc/cron.d/app --system --zone Europe/Berlin

Imports the lines whose command is psql with -c or -f, and reports all others. CRON_TZ, PGUSER and
PGDATABASE apply to the lines after them, as in cron. Script files of -f are read when the line is
imported, relative to the folder of FILE.";

const D365_HELP: &str = "\
Examples:
  pgmill import d365 batch_jobs.json --dry-run
  pgmill import d365 batch_jobs.json --run-as batch=etl

FILE is a JSON document with batch jobs, their tasks, conditions and recurrence.
docs/coming-from/d365.md describes it. Batch groups become groups, which have to exist:
pgmill group import creates them.";

/// What to import.
#[derive(Debug, Subcommand)]
pub enum Import {
    /// Make a job of a compiled dbt project, or bring the job up to date
    #[command(after_help = DBT_HELP)]
    Dbt(DbtArgs),
    /// A source of definitions that become a job file.
    #[command(flatten)]
    Source(ImportSource),
}

impl Import {
    /// Returns the source if the command only prints a job file, which needs no database.
    #[must_use]
    pub fn prints(&self) -> Option<&ImportSource> {
        match self {
            Self::Source(source) => Some(source).filter(|source| source.options().print),
            Self::Dbt(_) => None,
        }
    }
}

/// A source of definitions that become a job file.
#[derive(Debug, Subcommand)]
pub enum ImportSource {
    /// Import the jobs of pg_cron
    #[command(after_help = PG_CRON_HELP)]
    PgCron(PgCronArgs),
    /// Import the chains of pg_timetable
    #[command(after_help = PG_TIMETABLE_HELP)]
    PgTimetable(PgTimetableArgs),
    /// Import the lines of a crontab that call psql
    #[command(after_help = CRONTAB_HELP)]
    Crontab(CrontabArgs),
    /// Import batch jobs of Dynamics 365 Finance and Operations
    #[command(after_help = D365_HELP)]
    D365(D365Args),
}

impl ImportSource {
    /// The options of all sources.
    #[must_use]
    pub fn options(&self) -> &ImportOptions {
        match self {
            Self::PgCron(args) => &args.options,
            Self::PgTimetable(args) => &args.options,
            Self::Crontab(args) => &args.options,
            Self::D365(args) => &args.options,
        }
    }
}

/// Arguments of all sources that become a job file.
#[derive(Debug, clap::Args)]
pub struct ImportOptions {
    /// File with the definitions; - for standard input
    pub file: PathBuf,
    /// Text before the names of all jobs and schedules
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Profile for the definitions of this user, this database or both; repeatable
    #[arg(long, value_name = "[USER][@DATABASE]=PROFILE")]
    pub(crate) run_as: Vec<RunAs>,
    /// Show what would change, without changing it
    #[arg(long)]
    pub dry_run: bool,
    /// Print the definitions as a job file for pgmill apply, and import nothing; needs no database
    #[arg(long, conflicts_with_all = ["dry_run", "json"])]
    pub(crate) print: bool,
    /// Import nothing if a definition has to be left out
    #[arg(long)]
    pub strict: bool,
}

/// Arguments of `pgmill import pg-cron`.
#[derive(Debug, clap::Args)]
pub struct PgCronArgs {
    #[command(flatten)]
    pub(crate) options: ImportOptions,
    /// Time zone of the schedules: the setting cron.timezone
    #[arg(long, value_name = "ZONE", default_value = "GMT", value_parser = zone)]
    pub(crate) zone: String,
    /// Import only the jobs of this database; required if the file has several
    #[arg(long, value_name = "NAME")]
    pub(crate) database: Option<String>,
    /// Both day of month and day of week have to match: the setting cron.dom_dow_and_logic is on
    #[arg(long)]
    pub(crate) dom_dow_and: bool,
}

/// Arguments of `pgmill import pg-timetable`.
#[derive(Debug, clap::Args)]
pub struct PgTimetableArgs {
    #[command(flatten)]
    pub(crate) options: ImportOptions,
    /// Time zone of the schedules: the setting TimeZone of pg_timetable's login [default: UTC]
    #[arg(long, value_name = "ZONE", value_parser = zone)]
    pub(crate) zone: Option<String>,
}

/// Arguments of `pgmill import crontab`.
#[derive(Debug, clap::Args)]
pub struct CrontabArgs {
    #[command(flatten)]
    pub(crate) options: ImportOptions,
    /// Time zone of the lines that no CRON_TZ applies to: that of cron's machine [default: UTC]
    #[arg(long, value_name = "ZONE", value_parser = zone)]
    pub(crate) zone: Option<String>,
    /// Import only the lines that connect to this database; required if the file has several
    #[arg(long, value_name = "NAME")]
    pub(crate) database: Option<String>,
    /// Each line has a user after the time, as in /etc/crontab and /etc/cron.d
    #[arg(long)]
    pub(crate) system: bool,
}

/// Arguments of `pgmill import d365`.
#[derive(Debug, clap::Args)]
pub struct D365Args {
    #[command(flatten)]
    pub(crate) options: ImportOptions,
    /// Time zone of the batch jobs that have none of their own
    #[arg(long, value_name = "ZONE", default_value = "UTC", value_parser = zone)]
    pub(crate) zone: String,
}

/// A kind of dbt node that has tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResourceType {
    /// Models
    Model,
    /// Seeds: tables from CSV files
    Seed,
    /// Snapshots
    Snapshot,
    /// Data tests
    Test,
}

/// Arguments of `pgmill import dbt`.
#[derive(Debug, clap::Args)]
pub struct DbtArgs {
    /// The file manifest.json that `dbt compile` has written
    pub(crate) manifest: PathBuf,
    /// Name of the job [default: the name of the project]
    #[arg(long, value_name = "NAME", value_parser = label)]
    pub(crate) job: Option<String>,
    /// Nodes to import, as in dbt; without it, all of them
    #[arg(long, short, value_name = "SELECTOR", num_args = 1.., help_heading = "Selection")]
    pub(crate) select: Vec<String>,
    /// Nodes to leave out, as in dbt
    #[arg(long, value_name = "SELECTOR", num_args = 1.., help_heading = "Selection")]
    pub(crate) exclude: Vec<String>,
    /// Import only nodes of these types, for example `model` as `dbt run` does [default: all]
    #[arg(long, value_name = "TYPE", value_delimiter = ',', help_heading = "Selection")]
    pub(crate) resource_type: Vec<ResourceType>,
    /// Import the project without the nodes that cannot be carried over
    #[arg(long, help_heading = "Selection")]
    pub(crate) partial: bool,
    /// Rebuild incremental models and seeds in each run, as `dbt build --full-refresh` does
    #[arg(long)]
    pub(crate) full_refresh: bool,
    /// A manifest of the same project that `dbt compile --full-refresh` has written: its SQL
    /// creates the tables of incremental models that do not exist yet
    #[arg(long, value_name = "FILE", conflicts_with = "full_refresh")]
    pub(crate) full_refresh_manifest: Option<PathBuf>,
    /// Folder of the project, which has the CSV files of seeds [default: the parent of the folder of
    /// the manifest]
    #[arg(long, value_name = "DIR")]
    pub(crate) project_dir: Option<PathBuf>,
    /// Queue of the tasks
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: Option<String>,
    /// Profile of the tasks
    #[arg(long, value_name = "PROFILE", value_parser = label)]
    pub(crate) run_as: Option<String>,
    /// Maximum number of attempts of each task; dbt tries once
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) max_attempts: u16,
    /// Show what would change, without changing it
    #[arg(long)]
    pub dry_run: bool,
}

/// A profile for the definitions of a user, of a database, or of a user in a database.
#[derive(Clone, Debug)]
pub(crate) struct RunAs {
    pub(crate) user: Option<String>,
    pub(crate) database: Option<String>,
    pub(crate) profile: String,
}

impl FromStr for RunAs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            || "expected USER=PROFILE, @DATABASE=PROFILE or USER@DATABASE=PROFILE".to_owned();
        let (origin, profile) = text.rsplit_once('=').ok_or_else(form)?;
        let (user, database) = match origin.rsplit_once('@') {
            Some((user, database)) => (user, Some(database)),
            None => (origin, None),
        };
        if database == Some("") || user.is_empty() && database.is_none() {
            return Err(form());
        }
        Ok(Self {
            user: (!user.is_empty()).then(|| user.to_owned()),
            database: database.map(str::to_owned),
            profile: label(profile).map_err(|reason| format!("profile {reason}"))?,
        })
    }
}

/// Checks the name of a time zone.
fn zone(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_+-".contains(c);
    if text.is_empty() || !text.chars().all(plain) {
        return Err("expected a time zone such as Europe/Berlin".to_owned());
    }
    let timing = Timing::parse(&format!("daily(00:00, zone: {text})"));
    timing.map(|_| text.to_owned()).map_err(|error| match error.hint {
        Some(hint) => format!("{} ({hint})", error.message),
        None => error.message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_for_a_user_or_a_database_or_both() {
        let read = |text: &str| {
            let it = text.parse::<RunAs>()?;
            Ok::<_, String>((it.user, it.database, it.profile))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(read("a=p"), Ok((some("a"), None, "p".to_owned())));
        assert_eq!(read("@d=p"), Ok((None, some("d"), "p".to_owned())));
        assert_eq!(read("a@b@d=p"), Ok((some("a@b"), some("d"), "p".to_owned())));
        assert_eq!(read("a=b=p"), Ok((some("a=b"), None, "p".to_owned())));
        for wrong in ["", "a", "=p", "@=p", "a@=p", "a="] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_zone_is_checked() {
        assert!(zone("Europe/Berlin").is_ok() && zone("GMT").is_ok());
        for wrong in ["", "Europe/Berlinn", "UTC, days: mon", "x)"] {
            assert!(zone(wrong).is_err(), "{wrong}");
        }
    }
}
