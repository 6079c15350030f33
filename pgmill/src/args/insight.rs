//! Arguments of `pgmill history`, `failures`, `durations` and `audit`.

use std::time::Duration;

use queue::{Outcome, RunId, TaskId};

use super::value::{
    FILTERS, Period, TaskMatch, duration, limit, one_of, run_id, since_help, task_id,
};

#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Show only attempts of this task
    #[arg(long, value_name = "ID", value_parser = task_id, allow_negative_numbers = true)]
    #[arg(help_heading = FILTERS)]
    pub(crate) task: Option<TaskId>,
    #[command(flatten)]
    pub(crate) tasks: TaskMatch,
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
    #[arg(long, value_parser = one_of(Outcome::ALL), help_heading = FILTERS)]
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
    #[command(flatten)]
    pub(crate) period: Period,
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
