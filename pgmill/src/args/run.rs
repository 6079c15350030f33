//! Arguments of `pgmill run`.

use std::path::PathBuf;

use clap::Subcommand;
use queue::RunId;
use queue::run::RunState;
use terminal::label;

use super::job::GraphFormat;
use super::value::{DryRun, FILTERS, Period, limit, one_of, run_id};

#[derive(Debug, Subcommand)]
pub(crate) enum RunVerb {
    /// List runs, newest first
    List(RunList),
    /// Show one run: its tasks with their states, and its critical path
    Show(RunShow),
    /// Cancel runs: no more tasks start; running tasks finish, or are cancelled with --kill
    Cancel(RunCancel),
    /// Retry a failed or cancelled task of a run, and the tasks that did not run because
    /// of it; a run that has ended is then in progress again
    Retry(TaskOfRun),
    /// Approve a task that waits for approval: it enters its queue
    Approve(TaskOfRun),
    /// Reject a task that waits for approval: it is cancelled
    Reject(RunReject),
    /// Run those tasks of an ended run that did not succeed again
    Restart(RunRestart),
    /// Run tasks of a run again, whatever their outcome was: all, or some and the tasks after them
    Rerun(RunRerun),
    /// Show the graph of a run with the state of each task
    Graph(RunGraph),
    /// Write the results of an ended run for other tools: as run_results.json of dbt
    Results(RunResults),
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunList {
    /// Show only runs in this state
    #[arg(long, value_parser = one_of(RunState::ALL), help_heading = FILTERS)]
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
    #[command(flatten)]
    pub(crate) period: Period,
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
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TaskOfRun {
    /// Run id
    #[arg(value_parser = run_id)]
    pub(crate) run: RunId,
    /// Task name
    #[arg(value_parser = label)]
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunReject {
    #[command(flatten)]
    pub(crate) of: TaskOfRun,
    /// Reason, shown as the message of the task
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
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
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
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
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
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
