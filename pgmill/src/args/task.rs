//! Arguments of `pgmill task`.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Subcommand};
use cli::Failure;
use cli::time::Moment;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use queue::change::TaskChanges;
use queue::{Outcome, Priority, RunId, State, TaskId};
use serde_json::Value;
use terminal::{label, queue_name};

use super::capacity::{OrOff, or_off};
use super::value::{
    DryRun, FILTERS, TaskMatch, duration, limit, one_of, run_id, since_help, task_id,
};

#[derive(Debug, Subcommand)]
pub(crate) enum TaskVerb {
    /// List live tasks, those that run or start next first; or finished tasks, newest first
    List(TaskList),
    /// Show one task: its options, state, attempts, errors, notices and the first rows of its result
    Show {
        /// Task id
        #[arg(value_parser = task_id, allow_negative_numbers = true)]
        id: TaskId,
        /// Show the latest saved plan of a task enqueued with --explain
        #[arg(long)]
        plan: bool,
    },
    /// Cancel tasks: waiting tasks end at once, running tasks are stopped by their workers
    Cancel(CancelArgs),
    /// Run finished tasks again, with the same id and their full number of attempts; tasks that
    /// wait for a later time become due now
    Retry(RetryArgs),
    /// Change tasks that wait: their priority, queue, due time, parameters and other options
    Set(SetArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TaskList {
    /// Show only live tasks in this state, or finished tasks with this outcome
    #[arg(long, value_parser = states_and_outcomes(), help_heading = FILTERS)]
    state: Option<String>,
    /// Show only finished tasks with this outcome
    #[arg(long, value_parser = one_of(Outcome::ALL), conflicts_with = "state", help_heading = FILTERS)]
    pub(crate) outcome: Option<Outcome>,
    /// Show finished tasks of any outcome instead of live tasks
    #[arg(long, conflicts_with = "state", help_heading = FILTERS)]
    pub(crate) finished: bool,
    #[command(flatten)]
    pub(crate) tasks: TaskMatch,
    /// Show only tasks whose SQL contains this text, in upper or lower case
    #[arg(long, value_name = "TEXT", help_heading = FILTERS)]
    pub(crate) sql: Option<String>,
    /// Show only finished tasks whose error message contains this text, in upper or lower case
    #[arg(long, value_name = "TEXT", help_heading = FILTERS)]
    pub(crate) error: Option<String>,
    /// Show only tasks of this run
    #[arg(long, value_name = "RUN", value_parser = run_id, help_heading = FILTERS)]
    pub(crate) run: Option<RunId>,
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = FILTERS)]
    #[arg(help = since_help("Show only tasks that were enqueued, or have finished, in the last <DURATION>",
        " for finished tasks, without --run"))]
    pub(crate) since: Option<Duration>,
    /// Order of live tasks: what runs or starts next first, or the newest id first
    #[arg(long, value_enum, default_value_t = TaskListOrder::Next)]
    #[arg(conflicts_with_all = ["outcome", "finished", "error", "sql"])]
    pub(crate) order: TaskListOrder,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit())]
    pub(crate) limit: i64,
}

/// Accepts the words of states and of outcomes, none of which is both.
fn states_and_outcomes() -> PossibleValuesParser {
    let states = State::ALL.iter().map(|state| state.as_str());
    PossibleValuesParser::new(states.chain(Outcome::ALL.iter().map(|outcome| outcome.as_str())))
}

/// Values of `--order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TaskListOrder {
    Next,
    Newest,
}

impl TaskList {
    /// The state of live tasks; `None` for all of them.
    pub(crate) fn live_state(&self) -> Option<State> {
        self.state.as_ref()?.parse().ok()
    }

    /// The outcome of finished tasks; `None` for all of them.
    pub(crate) fn final_outcome(&self) -> Option<Outcome> {
        let state = self.state.as_ref();
        state.and_then(|word| word.parse().ok()).or(self.outcome)
    }

    /// Whether the list shows finished tasks.
    pub(crate) fn shows_finished(&self) -> bool {
        self.finished || self.final_outcome().is_some() || self.error.is_some()
    }
}

/// Options of actions on many tasks.
#[derive(Debug, clap::Args)]
pub(crate) struct BulkFlags {
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true)
    .args(["ids", "state", "queue", "name", "tag", "since"]))]
pub(crate) struct CancelArgs {
    /// Task ids
    #[arg(value_name = "ID", value_parser = task_id, allow_negative_numbers = true)]
    #[arg(conflicts_with_all = ["state", "queue", "name", "tag", "since"])]
    pub(crate) ids: Vec<TaskId>,
    /// Cancel tasks in this state
    #[arg(long, value_parser = one_of(State::ALL), help_heading = FILTERS)]
    pub(crate) state: Option<State>,
    #[command(flatten)]
    pub(crate) tasks: TaskMatch,
    /// Cancel tasks that were enqueued in the last DURATION: 90s, "1h 30m", "2 days"
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = FILTERS)]
    pub(crate) since: Option<Duration>,
    #[command(flatten)]
    pub(crate) flags: BulkFlags,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true)
    .args(["ids", "state", "from_queue", "name", "tag"]))]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["priority", "front",
    "queue", "at", "wait", "now", "params", "max_attempts", "timeout", "group"]))]
pub(crate) struct SetArgs {
    /// Task ids
    #[arg(value_name = "ID", value_parser = task_id, allow_negative_numbers = true)]
    #[arg(conflicts_with_all = ["state", "from_queue", "name", "tag"])]
    pub(crate) ids: Vec<TaskId>,
    /// New priority
    #[arg(long, value_parser = one_of(Priority::ALL))]
    priority: Option<Priority>,
    /// Start the tasks earlier than others of their queue: the same as --priority critical
    #[arg(long, conflicts_with = "priority")]
    front: bool,
    /// New queue
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    queue: Option<String>,
    /// New due time: "2026-12-01 03:00", "03:00", "tomorrow 03:00" or RFC 3339
    #[arg(long, value_name = "TIME", conflicts_with_all = ["wait", "now"])]
    at: Option<Moment>,
    /// New due time, from now
    #[arg(long = "in", value_name = "DURATION", value_parser = duration, conflicts_with = "now")]
    wait: Option<Duration>,
    /// Make the tasks due now
    #[arg(long)]
    now: bool,
    /// New values of $1, $2, … as a JSON array; off: none
    #[arg(long, value_name = "JSON|off", value_parser = or_off(params))]
    params: Option<OrOff<Vec<Value>>>,
    /// New maximum number of failed attempts; the first attempt counts too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=10_000))]
    max_attempts: Option<i32>,
    /// New maximum run time of an attempt; off: none
    #[arg(long, value_name = "DURATION|off", value_parser = or_off(duration))]
    timeout: Option<OrOff<Duration>>,
    /// New group; off: none
    #[arg(long, value_name = "GROUP|off", value_parser = or_off(label))]
    group: Option<OrOff<String>>,
    /// Change tasks in this state
    #[arg(long, value_parser = one_of(&WAITING), help_heading = FILTERS)]
    pub(crate) state: Option<State>,
    /// Change tasks of this queue
    #[arg(long, value_name = "QUEUE", help_heading = FILTERS)]
    pub(crate) from_queue: Option<String>,
    /// Change tasks whose name matches: * stands for any characters, ? for a single one
    #[arg(long, value_name = "PATTERN", help_heading = FILTERS)]
    pub(crate) name: Option<String>,
    /// Change tasks with this tag
    #[arg(long, value_name = "TAG", help_heading = FILTERS)]
    pub(crate) tag: Option<String>,
    #[command(flatten)]
    pub(crate) flags: BulkFlags,
}

/// The states of tasks that `task set` changes.
pub(crate) const WAITING: [State; 3] = [State::Scheduled, State::Blocked, State::Pending];

impl SetArgs {
    /// Returns the changes. `now` is the time of the database clock.
    ///
    /// # Errors
    /// Fails for a time in the past or outside the range of the calendar.
    pub(crate) fn changes(&self, now: Timestamp) -> Result<TaskChanges, Failure> {
        let local = now.to_zoned(TimeZone::system());
        let wrong = |error| Failure::usage(format!("--at: {error}"));
        let at = self.at.as_ref().map(|at| at.resolve(&local).map_err(wrong)).transpose()?;
        let later = self.wait.map(|wait| now.saturating_add(wait)).transpose();
        let later = later.map_err(|error| Failure::usage(format!("--in: {error}")))?;
        Ok(TaskChanges {
            priority: self.priority.or(self.front.then_some(Priority::Critical)),
            queue: self.queue.clone(),
            due_at: at.or(later).map(Some).or(self.now.then_some(None)),
            params: self.params.clone().map(|it| it.0),
            max_attempts: self.max_attempts,
            timeout: self.timeout.map(|it| it.0),
            group: self.group.clone().map(|it| it.0),
        })
    }
}

fn params(text: &str) -> Result<Vec<Value>, &'static str> {
    serde_json::from_str(text).map_err(|_| "expected a JSON array, or \"off\"")
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true)
    .args(["ids", "outcome", "sqlstate"]))]
pub(crate) struct RetryArgs {
    /// Task ids
    #[arg(value_name = "ID", value_parser = task_id, allow_negative_numbers = true)]
    #[arg(conflicts_with_all = ["outcome", "sqlstate", "queue", "name", "tag", "since"])]
    pub(crate) ids: Vec<TaskId>,
    /// Retry finished tasks with this outcome
    #[arg(long, value_parser = one_of(Outcome::ALL), help_heading = FILTERS)]
    pub(crate) outcome: Option<Outcome>,
    /// Retry finished tasks whose final attempt ended with this SQLSTATE; without --outcome, only
    /// failed tasks
    #[arg(long, value_name = "CODE", help_heading = FILTERS)]
    pub(crate) sqlstate: Option<String>,
    /// Retry only tasks with exactly this message, copied from the output of pgmill failures
    #[arg(long, value_name = "TEXT", requires = "sqlstate", help_heading = FILTERS)]
    pub(crate) message: Option<String>,
    #[command(flatten)]
    pub(crate) tasks: TaskMatch,
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = FILTERS)]
    #[arg(help = since_help("Retry only tasks that ended in the last <DURATION>", ""))]
    pub(crate) since: Option<Duration>,
    #[command(flatten)]
    pub(crate) flags: BulkFlags,
}
