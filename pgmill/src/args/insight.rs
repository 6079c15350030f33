//! Arguments of `pgmill history`, `failures`, `durations` and `audit`.

use std::time::Duration;

use queue::{Outcome, TaskId};

use super::value::{FILTERS, duration, enum_value, limit, since_help, task_id};

pub(crate) const FAILURES_HELP: &str = "\
Examples:
  pgmill failures
  pgmill failures --since 2h --json
  pgmill task retry --sqlstate 23505 --message 'duplicate key value violates unique constraint \"…\"'

Messages are shown without the parts that differ between attempts: quoted names and values, numbers,
dates. Every failed attempt counts, including attempts that were followed by a retry; at most the
last 10,000 are read.";

pub(crate) const DURATIONS_HELP: &str = "\
Examples:
  pgmill durations
  pgmill durations --queue etl --json

For each queue and name at most the last 500 attempts of the last seven days are read. Median,
percentile, mean and last are those of succeeded attempts; the trend is the median of the last 20
divided by the median of the 200 before.";

pub(crate) const AUDIT_HELP: &str = "\
Examples:
  pgmill audit
  pgmill audit --subject 'task 4711'
  pgmill audit --login ann --since '2 days' --json

The functions of the schema write the audit log, so it includes actions from psql and excludes
actions that were rolled back. The login is the session user of the database; the person on whose
behalf a program acts is shown in parentheses.";

#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Attempts of this task only
    #[arg(long, value_name = "ID", value_parser = task_id, allow_negative_numbers = true)]
    #[arg(help_heading = FILTERS)]
    pub(crate) task: Option<TaskId>,
    /// Attempts of this queue only
    #[arg(long, help_heading = FILTERS)]
    pub(crate) queue: Option<String>,
    /// Attempts of tasks with a matching name only: * matches any characters, ? a single one
    #[arg(long, value_name = "PATTERN", help_heading = FILTERS)]
    pub(crate) name: Option<String>,
    /// Attempts with this outcome only
    #[arg(long, value_parser = enum_value::<Outcome>(Outcome::ALL.iter().map(|it| it.as_str())))]
    #[arg(help_heading = FILTERS)]
    pub(crate) outcome: Option<Outcome>,
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = FILTERS)]
    #[arg(help = since_help("Attempts that ended within this duration only", " without --task"))]
    pub(crate) since: Option<Duration>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit())]
    pub(crate) limit: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// Actions on this subject only: 'task 42', 'queue etl', 'run 12', 'schedule nightly', …
    #[arg(long, help_heading = FILTERS)]
    pub(crate) subject: Option<String>,
    /// Actions by this login or on behalf of this person only
    #[arg(long, value_name = "NAME", help_heading = FILTERS)]
    pub(crate) login: Option<String>,
    /// Actions of this kind only, named as the functions of schema mill: cancel, retry, pause, …
    #[arg(long, help_heading = FILTERS)]
    pub(crate) action: Option<String>,
    /// Actions within this duration only: 90s, "1h 30m", "2 days"
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = FILTERS)]
    pub(crate) since: Option<Duration>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit())]
    pub(crate) limit: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FailuresArgs {
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    #[arg(help = since_help("Attempts that ended within this duration only", ""))]
    pub(crate) since: Option<Duration>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DurationsArgs {
    /// Tasks of this queue only
    #[arg(long)]
    pub(crate) queue: Option<String>,
}
