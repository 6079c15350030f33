//! Arguments of `pgmill subscription` and `pgmill notification`.

use std::time::Duration;

use clap::{ArgGroup, Subcommand};
use queue::limit::Rate;
use queue::subscription::NotifyEvent;
use terminal::label;

use super::capacity::{OrOff, rate};
use super::value::{DryRun, FILTERS, ObjectName, duration, limit, one_of};

#[derive(Debug, Subcommand)]
pub(crate) enum SubscriptionVerb {
    /// List subscriptions with the state of their delivery
    List,
    /// Show the settings of a subscription and the state of its delivery
    Show {
        /// Subscription name
        #[arg(value_parser = label)]
        name: String,
    },
    /// Create a subscription, or change the given settings of an existing one
    Set(Box<SubscriptionSet>),
    /// Remove a subscription and its undelivered notifications
    #[command(mut_arg("name", |it| it.help("Subscription name")))]
    Remove(ObjectName),
    /// Enable a subscription
    #[command(mut_arg("name", |it| it.help("Subscription name")))]
    Enable(ObjectName),
    /// Disable a subscription: its events are not recorded, and nothing is sent
    #[command(mut_arg("name", |it| it.help("Subscription name")))]
    Disable(ObjectName),
    /// Send a test message to a subscription
    #[command(mut_arg("name", |it| it.help("Subscription name")))]
    Test(ObjectName),
}

#[derive(Debug, Subcommand)]
pub(crate) enum NotificationVerb {
    /// List notifications, newest first: pending, dead, and those sent within the last day
    List(NotificationList),
    /// Send dead notifications again, and end the wait after failures
    Retry(NotificationRetry),
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("receiver").args(["destination", "channel", "statement"]))]
pub(crate) struct SubscriptionSet {
    /// Subscription name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Events to report, separated by commas
    #[arg(long, value_name = "EVENTS", value_delimiter = ',', value_parser = one_of(&events()))]
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
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
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
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

fn events() -> Vec<NotifyEvent> {
    NotifyEvent::ALL.iter().copied().filter(|event| *event != NotifyEvent::Test).collect()
}
