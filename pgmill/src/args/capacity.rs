//! Arguments of `pgmill priority`, `group`, `limit` and `queue set`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Subcommand};
use jiff::civil::Time;
use queue::limit::Rate;
use queue::operate::QueueConditions;
use queue::{Priority, ReservedCapacity};
use terminal::{label, queue_name};

use super::value::{DryRun, ObjectName, duration, one_of};

/// The value of an option that also accepts `off` or another word for no value; `None` is this word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrOff<T>(pub(crate) Option<T>);

/// Returns a parser of a value or `off`.
pub(super) fn or_off<T, E: Into<String>>(
    parse: impl Fn(&str) -> Result<T, E> + Clone,
) -> impl Fn(&str) -> Result<OrOff<T>, String> + Clone {
    or_word("off", parse)
}

/// Returns a parser of a value or the word for no value.
pub(super) fn or_word<T, E: Into<String>>(
    word: &'static str,
    parse: impl Fn(&str) -> Result<T, E> + Clone,
) -> impl Fn(&str) -> Result<OrOff<T>, String> + Clone {
    move |text| match text == word {
        true => Ok(OrOff(None)),
        false => parse(text).map(|value| OrOff(Some(value))).map_err(Into::into),
    }
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["shared_commit", "max_running", "rate", "store_params", "store_output",
        "max_replication_lag", "max_snapshot_age", "max_active_sessions"]))]
pub(crate) struct QueueSetArgs {
    /// Queue name
    #[arg(value_parser = queue_name)]
    pub(crate) name: String,
    /// Run several short tasks in one transaction (a shared commit), for about this long; off:
    /// commit each task alone
    #[arg(long, value_name = "DURATION|off", value_parser = or_off(budget))]
    pub(crate) shared_commit: Option<OrOff<Duration>>,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
    #[command(flatten)]
    pub(crate) conditions: ConditionFlags,
    /// Whether params of tasks that are enqueued from now on are stored after their end
    #[arg(long, value_name = "BOOL")]
    pub(crate) store_params: Option<bool>,
    /// Whether notices, result and plan of these tasks are stored
    #[arg(long, value_name = "BOOL")]
    pub(crate) store_output: Option<bool>,
    /// Accept a queue that has no tasks, settings or workers yet
    #[arg(long)]
    pub(crate) create: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

/// Options that set a limit.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct LimitFlags {
    /// Maximum number of tasks that run at once in the whole fleet; 0: start none; off: no limit
    #[arg(long, value_name = "N|off", value_parser = parse_max_running)]
    pub(crate) max_running: Option<OrOff<i32>>,
    /// Maximum number of tasks that start within any period of the given length, for example 100/1m
    /// or 5/1s; off: no maximum
    #[arg(long, value_name = "N/DURATION|off", value_parser = rate)]
    pub(crate) rate: Option<OrOff<Rate>>,
}

/// Conditions under which workers claim from a queue, or tasks of a target.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ConditionFlags {
    /// Claim nothing while a standby is further behind, from 5s to 1h; off: no such condition
    #[arg(long, value_name = "DURATION|off", value_parser = or_off(duration))]
    pub(crate) max_replication_lag: Option<OrOff<Duration>>,
    /// Claim nothing while a transaction has held its snapshot for longer; off: no such condition
    #[arg(long, value_name = "DURATION|off", value_parser = or_off(duration))]
    pub(crate) max_snapshot_age: Option<OrOff<Duration>>,
    /// Claim nothing while more sessions of the server are active; off: no such condition
    #[arg(long, value_name = "N|off", value_parser = parse_max_running)]
    pub(crate) max_active_sessions: Option<OrOff<i32>>,
}

impl ConditionFlags {
    /// Returns `was` with the given conditions; `None` if none is given.
    pub(crate) fn merged(self, was: QueueConditions) -> Option<QueueConditions> {
        let seconds = |given: OrOff<Duration>| given.0.map(|age| age.as_secs_f64());
        let lag = self.max_replication_lag.map(seconds);
        let age = self.max_snapshot_age.map(seconds);
        let sessions = self.max_active_sessions.map(|given| given.0);
        (lag.is_some() || age.is_some() || sessions.is_some()).then(|| QueueConditions {
            max_replication_lag_seconds: lag.unwrap_or(was.max_replication_lag_seconds),
            max_snapshot_age_seconds: age.unwrap_or(was.max_snapshot_age_seconds),
            max_active_sessions: sessions.unwrap_or(was.max_active_sessions),
        })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum LimitVerb {
    /// List limits of queues, of concurrency keys, and of groups within runs
    List,
    /// Change the limit of a concurrency key, for its existing and its future tasks
    Set(LimitArgs),
    /// Remove the limit of a concurrency key that no live task has
    #[command(mut_arg("name", |it| it.help("Concurrency key").value_name("KEY")))]
    Remove(ObjectName),
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["max_running", "rate"]))]
pub(crate) struct LimitArgs {
    /// Concurrency key
    #[arg(value_parser = label)]
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
    /// Accept a key that no task has had yet
    #[arg(long)]
    pub(crate) create: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PriorityVerb {
    /// List priorities with their weights and the numbers of their pending and running tasks
    List,
    /// Change the weights of priorities: while all have pending tasks, each priority gets claims in
    /// proportion to its weight
    Set(WeightArgs),
    /// Reserve a share of the readers for tasks that have the priority `reserved`
    Reserve(ReserveArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct WeightArgs {
    /// New weights; priorities that are not named keep their weights
    #[arg(value_name = "PRIORITY=WEIGHT", required = true, value_parser = weight)]
    pub(crate) weights: Vec<(Priority, f64)>,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReserveArgs {
    /// Share of the readers to reserve: none, or 10, 15 or 25 percent
    #[arg(value_parser = one_of(ReservedCapacity::ALL))]
    pub(crate) capacity: ReservedCapacity,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupVerb {
    /// List groups
    List,
    /// Create a group, or change the given settings of an existing one
    Set(GroupArgs),
    /// Set the group of new tasks that are given no group
    #[command(mut_arg("name", |it| it.help("Group name; off: no default group").value_name("GROUP|off")))]
    Default(ObjectName),
    /// Create or change the groups of a CSV file, all or none
    Import(GroupImportArgs),
    /// Remove a group that has no live tasks
    #[command(mut_arg("name", |it| it.help("Group name")))]
    Remove(ObjectName),
}

#[derive(Debug, clap::Args)]
pub(crate) struct GroupImportArgs {
    /// CSV file, in UTF-8
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GroupArgs {
    /// Group name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Free-text description
    #[arg(long)]
    pub(crate) description: Option<String>,
    /// Default priority of the group's tasks; a task's own priority overrides it
    #[arg(long, value_parser = one_of(Priority::ALL))]
    pub(crate) priority: Option<Priority>,
    /// Maximum number of the group's tasks that run at once within one run of a job; 0: start none;
    /// off: no limit
    #[arg(long, alias = "max-concurrency", value_name = "N|off", allow_negative_numbers = true)]
    #[arg(value_parser = parse_max_running)]
    pub(crate) max_running: Option<OrOff<i32>>,
    /// Active period: tasks of the group start only between these times of day. The period may span
    /// midnight; off: tasks may start at any time
    #[arg(long, value_name = "FROM-TO|off", value_parser = parse_period)]
    pub(crate) active: Option<OrOff<(Time, Time)>>,
    /// Time zone of the active period
    #[arg(long, value_name = "NAME", default_value = "UTC", requires = "active")]
    pub(crate) zone: String,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

fn budget(text: &str) -> Result<Duration, String> {
    let budget = duration(text)?;
    let allowed = Duration::from_millis(1)..=Duration::from_millis(100);
    let wrong = || "expected a duration from 1ms to 100ms, or \"off\"".to_owned();
    allowed.contains(&budget).then_some(budget).ok_or_else(wrong)
}

pub(crate) fn parse_max_running(text: &str) -> Result<OrOff<i32>, String> {
    or_off(|text: &str| match text.parse() {
        Ok(number) if number >= 0 => Ok(number),
        Ok(_) => Err("0 starts no task; \"off\" removes the limit"),
        Err(_) => Err("expected a number >= 0, or \"off\""),
    })(text)
}

pub(super) fn rate(text: &str) -> Result<OrOff<Rate>, String> {
    or_off(|text: &str| {
        let (starts, period) =
            text.split_once('/').ok_or("expected N/DURATION such as 100/1m, or \"off\"")?;
        let starts = starts
            .parse()
            .ok()
            .filter(|starts| (1..=1_000_000).contains(starts))
            .ok_or("the number of starts must be from 1 to 1000000")?;
        let period = duration(period)?;
        if period < Duration::from_secs(1) {
            return Err("the period must be at least 1s".to_owned());
        }
        Ok(Rate { starts, period })
    })(text)
}

fn weight(text: &str) -> Result<(Priority, f64), String> {
    let (priority, weight) =
        text.split_once('=').ok_or("expected PRIORITY=WEIGHT such as low=10")?;
    let weight: f64 = weight.parse().map_err(|_| format!("\"{weight}\" is not a number"))?;
    if !(0.0..=1_000_000.0).contains(&weight) {
        return Err("a weight must be from 0 to 1000000".to_owned());
    }
    Ok((priority.parse()?, weight))
}

pub(crate) fn parse_period(text: &str) -> Result<OrOff<(Time, Time)>, String> {
    or_off(|text: &str| {
        const FORM: &str = "expected FROM-TO such as 22:00-06:00, or \"off\"";
        let time = |text: &str| text.trim().parse::<Time>().map_err(|_| FORM);
        let (from, to) = text.split_once('-').ok_or(FORM)?;
        let (from, to) = (time(from)?, time(to)?);
        if from == to {
            return Err("an active period must not be empty; \"off\" allows any time".to_owned());
        }
        Ok((from, to))
    })(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_of_starts_in_a_period() {
        let wanted = Rate { starts: 100, period: Duration::from_secs(60) };
        assert_eq!(rate("100/1m"), Ok(OrOff(Some(wanted))));
        assert_eq!(rate("off"), Ok(OrOff(None)));
        for wrong in ["", "100", "0/1s", "-1/1s", "5/10ms", "5/month", "x/1s", "1000001/1s"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn weights_are_numbers_of_at_least_zero() {
        assert_eq!(weight("low=2.5"), Ok((Priority::Low, 2.5)));
        for wrong in ["low", "low=", "low=x", "low=-1", "low=NaN", "low=inf", "urgent=1"] {
            assert!(weight(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_period_may_span_midnight_and_is_not_empty() {
        assert!(parse_period("22:00-06:00").is_ok() && parse_period("08:30 - 17:00:00").is_ok());
        for wrong in ["", "22:00", "22-6", "25:00-06:00", "06:00-06:00"] {
            assert!(parse_period(wrong).is_err(), "{wrong}");
        }
    }
}
