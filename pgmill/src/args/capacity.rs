//! The command line of priorities, groups, limits, and of what is set on a queue.

use std::time::Duration;

use clap::{ArgGroup, Subcommand};
use jiff::civil::Time;
use queue::limit::Rate;
use queue::{Priority, ReservedCapacity};
use terminal::{label, queue_name};

use super::{duration, enum_value};

/// A value, or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrOff<T>(pub(crate) Option<T>);

fn or_off<T>(
    text: &str,
    value: impl FnOnce(&str) -> Result<T, String>,
) -> Result<OrOff<T>, String> {
    if text == "off" { Ok(OrOff(None)) } else { value(text).map(|value| OrOff(Some(value))) }
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["shared_commit", "max_running", "rate"]))]
pub(crate) struct QueueSetArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    pub(crate) name: String,
    /// For how long tasks may be taken into one transaction; off: each commits alone
    #[arg(long, value_name = "DURATION|off", value_parser = budget)]
    pub(crate) shared_commit: Option<OrOff<Duration>>,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What a limit says.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct LimitFlags {
    /// Tasks that run at once in the whole fleet; 0: no task starts; off: no limit
    #[arg(long, value_name = "N|off", value_parser = parse_max_running)]
    pub(crate) max_running: Option<OrOff<i32>>,
    /// How many of its tasks may start in any period: 100/1m, 5/1s
    #[arg(long, value_name = "N/DURATION|off", value_parser = rate)]
    pub(crate) rate: Option<OrOff<Rate>>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LimitVerb {
    /// List limits: queues, concurrency keys, groups within their runs
    #[command(after_help = "Examples:\n  pgmill limit list\n  \
                            pgmill limit list --json | jq '.[] | select(.waiting > 0)'")]
    List,
    /// Change the limit of a concurrency key, for the tasks that are there and those to come
    #[command(after_help = "\
Examples:
  pgmill limit set customer-17 --max-running 4
  pgmill limit set mail-server --rate 100/1m
  pgmill limit set mail-server --rate off

Running tasks go on, also above a limit that was lowered. A queue's limit: pgmill queue set.")]
    Set(LimitArgs),
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["max_running", "rate"]))]
pub(crate) struct LimitArgs {
    /// The concurrency key
    #[arg(value_parser = label)]
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PriorityVerb {
    /// List priorities: weights, waiting and running tasks
    #[command(after_help = "Examples:\n  pgmill priority list")]
    List,
    /// Change weights: of the tasks picked, the share of each while all have work
    #[command(after_help = "\
Examples:
  pgmill priority set low=10 normal=20
  pgmill priority set reserved=40 --dry-run

A weight is a probability and not a rank: nothing starves. With 0 a priority is picked only when no
other has work. Workers see a change within two seconds.")]
    Set(WeightArgs),
    /// Keep a share of the fleet's readers for reserved tasks only
    #[command(after_help = "\
Examples:
  pgmill priority reserve high
  pgmill priority reserve none

none, low, medium, high: 0, 10, 15, 25 percent of all readers, rounded up. They idle when there is no
reserved task; reserved tasks are picked by the other readers too.")]
    Reserve(ReserveArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct WeightArgs {
    /// New weights; those not named stay
    #[arg(value_name = "PRIORITY=WEIGHT", required = true, value_parser = weight)]
    pub(crate) weights: Vec<(Priority, f64)>,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReserveArgs {
    /// How many
    #[arg(value_parser = enum_value::<ReservedCapacity>(ReservedCapacity::ALL.iter().map(|it| it.as_str())))]
    pub(crate) capacity: ReservedCapacity,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupVerb {
    /// List groups
    #[command(after_help = "Examples:\n  pgmill group list")]
    List,
    /// Make a group, or change what is given of one
    #[command(after_help = "\
Examples:
  pgmill group set nightly --description 'Loads of the night' --priority low
  pgmill group set nightly --max-running 4
  pgmill group set nightly --active 22:00-06:00 --zone Europe/Berlin
  pgmill group set nightly --active off
  pgmill group set nightly --max-running off
  pgmill group set nightly --max-running 0       no task starts; running tasks finish

The concurrency holds for each run by itself. Tasks outside any run count as one run.")]
    Set(GroupArgs),
    /// Remove a group that no live task belongs to
    #[command(after_help = "Examples:\n  pgmill group remove nightly")]
    Remove(GroupName),
}

#[derive(Debug, clap::Args)]
pub(crate) struct GroupName {
    /// The group
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GroupArgs {
    /// The group
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// For people
    #[arg(long)]
    pub(crate) description: Option<String>,
    /// Of tasks that name none themselves
    #[arg(long, value_parser = enum_value::<Priority>(Priority::ALL.iter().map(|it| it.as_str())))]
    pub(crate) priority: Option<Priority>,
    /// Tasks of one run at once; 0: no task starts; off: no limit
    #[arg(long, alias = "max-concurrency", value_name = "N|off", allow_negative_numbers = true)]
    #[arg(value_parser = parse_max_running)]
    pub(crate) max_running: Option<OrOff<i32>>,
    /// Times of day between which tasks may start, over midnight if need be; off: at any time
    #[arg(long, value_name = "FROM-TO|off", value_parser = period)]
    pub(crate) active: Option<OrOff<(Time, Time)>>,
    /// Zone of these times
    #[arg(long, value_name = "NAME", default_value = "UTC", requires = "active")]
    pub(crate) zone: String,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

fn budget(text: &str) -> Result<OrOff<Duration>, String> {
    or_off(text, |text| {
        let budget = duration(text)?;
        if (Duration::from_millis(1)..=Duration::from_millis(100)).contains(&budget) {
            return Ok(budget);
        }
        Err("it is not between 1ms and 100ms, nor \"off\"".to_owned())
    })
}

fn parse_max_running(text: &str) -> Result<OrOff<i32>, String> {
    or_off(text, |text| match text.parse() {
        Ok(number) if number >= 0 => Ok(number),
        Ok(_) => Err("0 lets no task start; \"off\" is no limit".to_owned()),
        Err(_) => Err("must be a number from 0, or \"off\"".to_owned()),
    })
}

fn rate(text: &str) -> Result<OrOff<Rate>, String> {
    or_off(text, |text| {
        let (starts, period) =
            text.split_once('/').ok_or("write 100/1m for 100 starts in any minute, or \"off\"")?;
        let starts = starts
            .parse()
            .ok()
            .filter(|starts| (1..=1_000_000).contains(starts))
            .ok_or("the number of starts is not between 1 and 1000000")?;
        let period = duration(period)?;
        if period < Duration::from_secs(1) {
            return Err("the period is shorter than 1s".to_owned());
        }
        Ok(Rate { starts, period })
    })
}

fn weight(text: &str) -> Result<(Priority, f64), String> {
    let (priority, weight) = text.split_once('=').ok_or("write low=10")?;
    let weight: f64 = weight.parse().map_err(|_| format!("\"{weight}\" is not a number"))?;
    if !(0.0..=1_000_000.0).contains(&weight) {
        return Err("a weight is between 0 and 1000000".to_owned());
    }
    Ok((priority.parse()?, weight))
}

fn period(text: &str) -> Result<OrOff<(Time, Time)>, String> {
    or_off(text, |text| {
        let time = |text: &str| text.trim().parse::<Time>().map_err(|_| "write 22:00-06:00");
        let (from, to) = text.split_once('-').ok_or("write 22:00-06:00, or \"off\"")?;
        let (from, to) = (time(from)?, time(to)?);
        if from == to {
            return Err("it has no length; off: at any time".to_owned());
        }
        Ok((from, to))
    })
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
    fn weights_are_numbers_from_zero_on() {
        assert_eq!(weight("low=2.5"), Ok((Priority::Low, 2.5)));
        for wrong in ["low", "low=", "low=x", "low=-1", "low=NaN", "low=inf", "urgent=1"] {
            assert!(weight(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_period_may_go_over_midnight_and_has_a_length() {
        assert!(period("22:00-06:00").is_ok() && period("08:30 - 17:00:00").is_ok());
        for wrong in ["", "22:00", "22-6", "25:00-06:00", "06:00-06:00"] {
            assert!(period(wrong).is_err(), "{wrong}");
        }
    }
}
