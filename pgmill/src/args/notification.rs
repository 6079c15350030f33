//! Arguments of `pgmill subscription` and `pgmill notification`.

use std::time::Duration;

use clap::{ArgGroup, Subcommand};
use queue::limit::Rate;
use queue::subscription::NotifyEvent;
use terminal::label;

use super::capacity::{OrOff, rate};
use super::value::{FILTERS, duration, enum_value, limit};

#[derive(Debug, Subcommand)]
pub(crate) enum SubscriptionVerb {
    /// List subscriptions with the state of their delivery
    #[command(after_help = "Examples:\n  pgmill subscription list\n  \
                            pgmill subscription list --json | jq '.[] | select(.failures > 0)'")]
    List,
    /// Show the settings of a subscription and the state of its delivery
    #[command(after_help = "Examples:\n  pgmill subscription show ops")]
    Show {
        /// Subscription name
        #[arg(value_parser = label)]
        name: String,
    },
    /// Create a subscription, or change the given settings of an existing one
    #[command(after_help = "\
Examples:
  pgmill subscription set ops --events task_failed,run_failed,run_recovered --destination slack
  pgmill subscription set loads --events task_failed --queue etl --channel etl_failures
  pgmill subscription set undo --events run_failed --job nightly --statement 'CALL app.undo($1)'
  pgmill subscription set backlog --events queue_backlog --min-age 10m --destination pager
  pgmill subscription set ops --rate 30/5m
  pgmill subscription set ops --clear queue

A destination is a table [destinations.NAME] in the configuration of the workers. A statement runs
as a task, whose parameter $1 is the message as jsonb. If several filters are given, all of them
have to match. If more events are due than --rate allows, one message summarizes them.")]
    Set(Box<SubscriptionSet>),
    /// Remove a subscription and its undelivered notifications
    #[command(after_help = "Examples:\n  pgmill subscription remove ops")]
    Remove(SubscriptionName),
    /// Enable a subscription
    #[command(after_help = "Examples:\n  pgmill subscription enable ops")]
    Enable(SubscriptionName),
    /// Disable a subscription: its events are not recorded, and nothing is sent
    #[command(after_help = "Examples:\n  pgmill subscription disable ops")]
    Disable(SubscriptionName),
    /// Send a test message to a subscription
    #[command(after_help = "Examples:\n  pgmill subscription test ops\n\n\
                            Whether the message arrived: pgmill notification list --subscription ops")]
    Test(SubscriptionName),
}

#[derive(Debug, Subcommand)]
pub(crate) enum NotificationVerb {
    /// List notifications, newest first: pending, dead, and those sent within the last day
    #[command(after_help = "Examples:\n  pgmill notification list --state dead\n  \
                            pgmill notification list --subscription ops --limit 5")]
    List(NotificationList),
    /// Send dead notifications again, and end the wait after failures
    #[command(after_help = "Examples:\n  pgmill notification retry\n  \
                            pgmill notification retry --subscription ops\n  \
                            pgmill notification retry 17 18")]
    Retry(NotificationRetry),
}

impl SubscriptionVerb {
    /// The role that the command needs.
    pub(super) fn role(&self) -> &'static str {
        match self {
            Self::List | Self::Show { .. } => "mill_viewer",
            _ => "mill_operator",
        }
    }
}

impl NotificationVerb {
    /// The role that the command needs.
    pub(super) fn role(&self) -> &'static str {
        match self {
            Self::List(_) => "mill_viewer",
            Self::Retry(_) => "mill_operator",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct SubscriptionName {
    /// Subscription name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("receiver").args(["destination", "channel", "statement"]))]
pub(crate) struct SubscriptionSet {
    /// Subscription name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Events to report, separated by commas
    #[arg(long, value_name = "EVENTS", value_delimiter = ',',
          value_parser = enum_value::<NotifyEvent>(events()))]
    pub(crate) events: Option<Vec<NotifyEvent>>,
    /// Destination in the configuration of the workers
    #[arg(long, value_parser = label)]
    pub(crate) destination: Option<String>,
    /// Channel to NOTIFY
    #[arg(long, value_parser = label)]
    pub(crate) channel: Option<String>,
    /// Statement to run as a task for each message
    #[arg(long, value_name = "SQL")]
    pub(crate) statement: Option<String>,
    /// Queue of this task
    #[arg(long, value_name = "QUEUE", value_parser = label)]
    pub(crate) task_queue: Option<String>,
    /// Profile of this task
    #[arg(long, value_name = "PROFILE", value_parser = label)]
    pub(crate) run_as: Option<String>,
    /// Only events of this queue
    #[arg(long, value_parser = label, help_heading = FILTERS)]
    pub(crate) queue: Option<String>,
    /// Only events of this job
    #[arg(long, value_parser = label, help_heading = FILTERS)]
    pub(crate) job: Option<String>,
    /// Only events of this schedule
    #[arg(long, value_parser = label, help_heading = FILTERS)]
    pub(crate) schedule: Option<String>,
    /// Only events of tasks and runs with this tag
    #[arg(long, value_parser = label, help_heading = FILTERS)]
    pub(crate) tag: Option<String>,
    /// Only events of tasks with this name
    #[arg(long, value_name = "NAME", value_parser = label, help_heading = FILTERS)]
    pub(crate) task: Option<String>,
    /// Number of pending tasks from which a queue has a backlog, for the event `queue_backlog`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=100_000))]
    pub(crate) min_pending: Option<i32>,
    /// Wait of the oldest pending task from which a queue has a backlog
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) min_age: Option<Duration>,
    /// Maximum number of messages per period [default: 10/1m for destinations, else off]
    #[arg(long, value_name = "N/DURATION|off", value_parser = rate)]
    pub(crate) rate: Option<OrOff<Rate>>,
    /// Free-text description
    #[arg(long)]
    pub(crate) description: Option<String>,
    /// Settings to remove, separated by commas
    #[arg(long, value_name = "SETTINGS", value_delimiter = ',',
          value_parser = ["queue", "job", "schedule", "tag", "task", "min_pending", "min_age",
                          "task_queue", "run_as", "description"])]
    pub(crate) clear: Vec<String>,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NotificationList {
    /// Only notifications of this subscription
    #[arg(long, value_parser = label, help_heading = FILTERS)]
    pub(crate) subscription: Option<String>,
    /// Only notifications in this state
    #[arg(long, value_parser = ["pending", "sent", "dead"], help_heading = FILTERS)]
    pub(crate) state: Option<String>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit())]
    pub(crate) limit: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NotificationRetry {
    /// Ids of dead notifications [default: all]
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<i64>,
    /// Only notifications of this subscription
    #[arg(long, value_parser = label, help_heading = FILTERS)]
    pub(crate) subscription: Option<String>,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

fn events() -> impl Iterator<Item = &'static str> {
    NotifyEvent::ALL.iter().filter(|event| **event != NotifyEvent::Test).map(|it| it.as_str())
}
