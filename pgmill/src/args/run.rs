//! Arguments of `pgmill run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use cli::time::PeriodBound;
use queue::RunId;
use queue::run::RunState;
use terminal::label;

use super::job::GraphFormat;
use super::value::{FILTERS, duration, enum_value, limit, run_id};

#[derive(Debug, Subcommand)]
pub(crate) enum RunVerb {
    /// List runs, newest first
    #[command(after_help = "\
Examples:
  pgmill run list
  pgmill run list --state failed --since '2 days'
  pgmill run list --job daily
  pgmill run list --late
  pgmill run list --slow
  pgmill run list --schedule nightly --from yesterday
  pgmill run list --json | jq '.[] | select(.count.failed > 0) | .id'")]
    List(RunList),
    /// Show one run: its tasks with their states, and its critical path
    #[command(after_help = "\
Examples:
  pgmill run show 12
  pgmill run show 12 --watch
  pgmill run show 12 --json | jq '.tasks[] | select(.state == \"running\")'

The critical path is the chain of dependent tasks with the greatest sum of durations: to shorten the
run, shorten one of these tasks. Without --all the table shows at most 50 tasks: running and failed
tasks first, succeeded tasks last.")]
    Show(RunShow),
    /// Cancel runs: no more tasks start; running tasks finish, or are cancelled with --kill
    #[command(after_help = "\
Examples:
  pgmill run cancel 12
  pgmill run cancel 12 --kill
  pgmill run cancel --all --dry-run")]
    Cancel(RunCancel),
    /// Retry a failed or cancelled task of a run, and the tasks that did not run because
    /// of it; a run that has ended is then in progress again
    #[command(after_help = "Examples:\n  pgmill run retry 12 raw_orders")]
    Retry(TaskOfRun),
    /// Approve a task that waits for approval: it enters its queue
    #[command(after_help = "\
Examples:
  pgmill status                          what waits for approval, and for how long
  pgmill run approve 12 publish
  pgmill run approve 12 publish --dry-run")]
    Approve(TaskOfRun),
    /// Reject a task that waits for approval: it is cancelled
    #[command(after_help = "\
Examples:
  pgmill run reject 12 publish --reason 'the figures of Tuesday are missing'

The tasks after it follow their edges, as after any cancelled task.")]
    Reject(RunReject),
    /// Run those tasks of an ended run that did not succeed again
    #[command(after_help = "\
Examples:
  pgmill run restart 12                  failed tasks, and tasks that never ran
  pgmill run restart 12 --failed         failed tasks, and tasks that could not run because of them
  pgmill run restart 12 --never-run      only tasks that never ran
  pgmill run restart 12 --downstream     failed tasks, and all tasks downstream of them
  pgmill run restart 12 --force          even if the run was cancelled

The run keeps its id; each task keeps its id and its attempts. Tasks that were cancelled while they
were running count as failed.")]
    Restart(RunRestart),
    /// Run tasks of a run again, whatever their outcome was: all, or some and the tasks after them
    #[command(after_help = "\
Examples:
  pgmill run rerun 12                        all tasks
  pgmill run rerun 12 raw_orders             this task, and all tasks after it
  pgmill run rerun 12 raw_orders --only      only this task
  pgmill run rerun 12 raw_orders --dry-run

The run keeps its id, and each task keeps its id and its attempts.")]
    Rerun(RunRerun),
    /// Show the graph of a run with the state of each task
    #[command(after_help = "\
Examples:
  pgmill run graph 12
  pgmill run graph 12 --format mermaid
  pgmill run graph 12 --format dot > run.dot && dot -Tsvg run.dot > run.svg")]
    Graph(RunGraph),
    /// Write the results of an ended run for other tools: as run_results.json of dbt
    #[command(after_help = "\
Examples:
  pgmill run results 12 --dbt target/run_results.json
  dbt ls --select result:error --state target

The run must be one of a job that `pgmill import dbt` has made.")]
    Results(RunResults),
}

impl RunVerb {
    /// The role to grant to a login that lacks the privilege for this command.
    pub(crate) fn role(&self) -> &'static str {
        match self {
            Self::List(_) | Self::Show(_) | Self::Graph(_) | Self::Results(_) => "mill_viewer",
            Self::Cancel(_)
            | Self::Retry(_)
            | Self::Approve(_)
            | Self::Reject(_)
            | Self::Restart(_)
            | Self::Rerun(_) => "mill_operator",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunList {
    /// Show only runs in this state
    #[arg(long, value_parser = enum_value::<RunState>(RunState::ALL.iter().map(|it| it.as_str())))]
    #[arg(help_heading = FILTERS)]
    pub(crate) state: Option<RunState>,
    /// Show only runs of this job, alone or together with other jobs
    #[arg(long, value_name = "NAME", value_parser = label, help_heading = FILTERS)]
    pub(crate) job: Option<String>,
    /// Show only runs that this schedule fired
    #[arg(long, value_name = "NAME", value_parser = label, help_heading = FILTERS)]
    pub(crate) schedule: Option<String>,
    /// Show only runs of this backfill
    #[arg(long, value_name = "BACKFILL", help_heading = FILTERS)]
    pub(crate) backfill: Option<i64>,
    /// Show only runs with this tag
    #[arg(long, value_name = "TAG", help_heading = FILTERS)]
    pub(crate) tag: Option<String>,
    /// Show only runs that started in the last DURATION: 90s, "1h 30m", "2 days"
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = FILTERS)]
    #[arg(conflicts_with = "from")]
    pub(crate) since: Option<Duration>,
    /// Show only runs that started at this time or later: yesterday, 2026-11-21, "2026-11-21 03:00"
    /// (local), RFC 3339
    #[arg(long, value_name = "TIME", help_heading = FILTERS)]
    pub(crate) from: Option<PeriodBound>,
    /// Show only runs that started at this time or earlier
    #[arg(long, value_name = "TIME", help_heading = FILTERS)]
    pub(crate) to: Option<PeriodBound>,
    /// Show only runs that have missed their deadline, in progress or ended
    #[arg(long, help_heading = FILTERS)]
    pub(crate) late: bool,
    /// Show only runs in progress that take longer than expected, or much longer than usual
    #[arg(long, help_heading = FILTERS)]
    pub(crate) slow: bool,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = limit())]
    pub(crate) limit: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunShow {
    /// Run id
    #[arg(value_parser = run_id)]
    pub(crate) run: RunId,
    /// Follow the run until it ends; exit code 3 if it does not succeed
    #[arg(long)]
    pub(crate) watch: bool,
    /// Show every task
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunResults {
    /// Run id
    #[arg(value_parser = run_id)]
    pub(crate) run: RunId,
    /// File to write, in the format of dbt's run_results.json, version v6
    #[arg(long, value_name = "FILE")]
    pub(crate) dbt: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunCancel {
    /// Run ids
    #[arg(value_name = "RUN", value_parser = run_id, required_unless_present = "all")]
    pub(crate) runs: Vec<RunId>,
    /// Cancel every run in progress
    #[arg(long, conflicts_with = "runs")]
    pub(crate) all: bool,
    /// Cancel running tasks as well
    #[arg(long)]
    pub(crate) kill: bool,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TaskOfRun {
    /// Run id
    #[arg(value_parser = run_id)]
    pub(crate) run: RunId,
    /// Task name
    #[arg(value_parser = label)]
    pub(crate) task: String,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunReject {
    /// Run id
    #[arg(value_parser = run_id)]
    pub(crate) run: RunId,
    /// Task name
    #[arg(value_parser = label)]
    pub(crate) task: String,
    /// Reason, shown as the message of the task
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").args(["failed", "never_run", "downstream"]))]
pub(crate) struct RunRestart {
    /// Run id
    #[arg(value_parser = run_id)]
    pub(crate) run: RunId,
    /// Run only the failed tasks, and the tasks that could not run because of them
    #[arg(long, help_heading = "Selection")]
    pub(crate) failed: bool,
    /// Run only the tasks that never ran
    #[arg(long, help_heading = "Selection")]
    pub(crate) never_run: bool,
    /// Run the failed tasks, and all tasks downstream of them
    #[arg(long, help_heading = "Selection")]
    pub(crate) downstream: bool,
    /// Restart even if the run was cancelled
    #[arg(long)]
    pub(crate) force: bool,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunRerun {
    /// Run id
    #[arg(value_parser = run_id)]
    pub(crate) run: RunId,
    /// Task names [default: all tasks]
    #[arg(value_name = "TASK", value_parser = label)]
    pub(crate) tasks: Vec<String>,
    /// Leave out the tasks after the given ones
    #[arg(long, requires = "tasks")]
    pub(crate) only: bool,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunGraph {
    /// Run id
    #[arg(value_parser = run_id)]
    pub(crate) run: RunId,
    /// Output format
    #[arg(long, value_enum, default_value_t = GraphFormat::Text)]
    pub(crate) format: GraphFormat,
}
