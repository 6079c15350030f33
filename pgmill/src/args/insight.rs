//! The command line of what history adds up to.

use std::time::Duration;

use super::{duration, limit};

pub(crate) const FAILURES_HELP: &str = "\
Examples:
  pgmill failures
  pgmill failures --since 2h --json
  pgmill task retry --sqlstate 23505 --message 'duplicate key value violates unique constraint \"…\"'

Messages are shown without what differs from one time to the next: names and values in quotes,
numbers, dates. Attempts are counted, also those after which the task was tried again; the last
10,000 at most.";

pub(crate) const DURATIONS_HELP: &str = "\
Examples:
  pgmill durations
  pgmill durations --queue etl --json

Of each queue and name the last 500 attempts of seven days at most. Median to last are of those that
succeeded; the trend is the median of the last 20 of them over that of the 200 before.";

pub(crate) const AUDIT_HELP: &str = "\
Examples:
  pgmill audit
  pgmill audit --subject 'task 4711'
  pgmill audit --login ann --since '2 days' --json

The functions of the schema write it themselves, so acts from psql are in it, and what was rolled
back is not. The login is what the database knows; who a program says that it acts for, is shown in
parentheses.";

#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// Done to this: 'task 42', 'queue etl', 'run 12', 'schedule nightly', …
    #[arg(long)]
    pub(crate) subject: Option<String>,
    /// By this login, or on behalf of this person
    #[arg(long, value_name = "NAME")]
    pub(crate) login: Option<String>,
    /// Such acts: cancel, retry, pause, set_rate, … as the functions of schema mill are called
    #[arg(long)]
    pub(crate) action: Option<String>,
    /// At most this long ago: 90s, "1h 30m", "2 days"
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit())]
    pub(crate) limit: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FailuresArgs {
    /// That ended at most this long ago: 90s, "1h 30m", "2 days" [default: 1 day]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) since: Option<Duration>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DurationsArgs {
    /// Of this queue
    #[arg(long)]
    pub(crate) queue: Option<String>,
}
