//! Arguments of `pgmill history`, `failures`, `durations` and `audit`.

use std::time::Duration;

use cli::time::PeriodBound;
use queue::{Outcome, RunId, TaskId};

use super::value::{FILTERS, duration, enum_value, limit, run_id, since_help, task_id};

pub(crate) const FAILURES_HELP: &str = "\
Examples:
  pgmill failures
  pgmill failures --since 2h --json
  pgmill task retry --sqlstate 23505 --message 'duplicate key value violates unique constraint \"…\"'

Messages are shown without the parts that differ between attempts: quoted names and values, numbers,
dates. Every failed attempt counts, including attempts that were followed by a retry. pgmill reads
at most the last 10,000 failed attempts.";

pub(crate) const DURATIONS_HELP: &str = "\
Examples:
  pgmill durations
  pgmill durations --queue etl --json

For each queue and task name pgmill reads the attempts of the last seven days, at most 500. Median,
percentile, mean and last include only succeeded attempts. The trend is the median of the last 20
attempts divided by the median of the 200 attempts before them.";

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
    /// Show only attempts of this task
    #[arg(long, value_name = "ID", value_parser = task_id, allow_negative_numbers = true)]
    #[arg(help_heading = FILTERS)]
    pub(crate) task: Option<TaskId>,
    /// Show only attempts of tasks in this queue
    #[arg(long, help_heading = FILTERS)]
    pub(crate) queue: Option<String>,
    /// Show only attempts of tasks whose name matches: * stands for any characters, ? for a single
    /// one
    #[arg(long, value_name = "PATTERN", help_heading = FILTERS)]
    pub(crate) name: Option<String>,
    /// Show only attempts of tasks with this tag
    #[arg(long, value_name = "TAG", help_heading = FILTERS)]
    pub(crate) tag: Option<String>,
    /// Show only attempts whose SQL contains this text, in upper or lower case
    #[arg(long, value_name = "TEXT", help_heading = FILTERS)]
    pub(crate) sql: Option<String>,
    /// Show only attempts whose error message contains this text, in upper or lower case
    #[arg(long, value_name = "TEXT", help_heading = FILTERS)]
    pub(crate) error: Option<String>,
    /// Show only attempts of this run
    #[arg(long, value_name = "RUN", value_parser = run_id, help_heading = FILTERS)]
    pub(crate) run: Option<RunId>,
    /// Show only attempts with this outcome
    #[arg(long, value_parser = enum_value::<Outcome>(Outcome::ALL.iter().map(|it| it.as_str())))]
    #[arg(help_heading = FILTERS)]
    pub(crate) outcome: Option<Outcome>,
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = FILTERS)]
    #[arg(help = since_help("Show only attempts that ended in the last <DURATION>", " without --task and --run"))]
    pub(crate) since: Option<Duration>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit())]
    pub(crate) limit: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// Show only actions on this subject: 'task 42', 'queue etl', 'run 12', 'schedule nightly', …
    #[arg(long, help_heading = FILTERS)]
    pub(crate) subject: Option<String>,
    /// Show only actions by this login, or on behalf of this person
    #[arg(long, value_name = "NAME", help_heading = FILTERS)]
    pub(crate) login: Option<String>,
    /// Show only actions of this kind (the name of the function in schema mill): cancel, retry,
    /// pause, …
    #[arg(long, help_heading = FILTERS)]
    pub(crate) action: Option<String>,
    /// Show only actions in the last DURATION: 90s, "1h 30m", "2 days"
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "from")]
    #[arg(help_heading = FILTERS)]
    pub(crate) since: Option<Duration>,
    /// Show only actions at this time or later: yesterday, 2026-11-21, "2026-11-21 03:00" (local),
    /// RFC 3339
    #[arg(long, value_name = "TIME", help_heading = FILTERS)]
    pub(crate) from: Option<PeriodBound>,
    /// Show only actions at this time or earlier
    #[arg(long, value_name = "TIME", help_heading = FILTERS)]
    pub(crate) to: Option<PeriodBound>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit())]
    pub(crate) limit: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FailuresArgs {
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    #[arg(help = since_help("Show only attempts that ended in the last <DURATION>", ""))]
    pub(crate) since: Option<Duration>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DurationsArgs {
    /// Show only tasks of this queue
    #[arg(long)]
    pub(crate) queue: Option<String>,
}
