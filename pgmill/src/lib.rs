//! The program `pgmill`: the operator's command line for inspecting and operating a fleet.
//!
//! | step | file |
//! |---|---|
//! | command line, help and examples | `args` |
//! | connection | `session` |
//! | one subcommand each | `init`, `status`, `top`, `task_list`, `task_show`, `task_plan`, `task_actions`, `queues`, `capacity`, `groups`, `worker`, `history`, `failures`, `durations`, `audit`, `runs`, `run_actions`, `schedules`, `schedule_log`, `schedule_actions`, `jobs`, `dependencies`, `lineage`, `console`, `health`, `doctor` |
//! | jobs from files | `apply`, its difference `apply_plan`; files `source`, `job_file` |
//! | merged jobs and their order | `merge`, `topology`; Mermaid and DOT: `graph_format` |
//! | shell completion | `completions` |
//! | tables, documents, colours | `output`; times and sizes: `format` |
//! | errors and exit codes | `failure` |
//!
//! Invariant: this crate contains no SQL; every statement is in the crates `queue` and `schedule`.
//!
//! Invariant: with `--dry-run` nothing is written.

mod apply;
mod apply_plan;
mod args;
mod audit;
mod capacity;
mod completions;
mod console;
mod dependencies;
mod doctor;
mod durations;
mod failure;
mod failures;
mod format;
mod graph_format;
mod groups;
mod health;
mod history;
mod init;
mod job_file;
mod jobs;
mod lineage;
mod lock_wait;
mod merge;
mod output;
mod profiles;
mod queues;
mod run_actions;
mod runs;
mod schedule_actions;
mod schedule_log;
mod schedules;
mod session;
mod source;
mod status;
mod task_actions;
mod task_list;
mod task_plan;
mod task_show;
mod top;
mod topology;
mod worker;

use std::process::ExitCode;

use ::queue::exit;
use args::{
    Args, Command, Global, GroupVerb, LimitVerb, PriorityVerb, ProfileVerb, QueueVerb, TaskVerb,
    WorkerVerb,
};
pub use job_file::first_error as job_file_error;

use failure::Failure;
use lock_wait::LockWaitMonitor;
use output::Output;
use session::Session;

/// Returns the definition of the command line, for its man pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    <Args as clap::CommandFactory>::command()
}

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    let args = match Args::from_process() {
        Ok(args) => args,
        Err(error) => {
            // Also the texts of --help and --version.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::USAGE));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(run(&args.command, &args.global)),
        Err(error) => Err(Failure::from(error)),
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(failure) => ExitCode::from(failure.report()),
    }
}

async fn run(command: &Command, global: &Global) -> Result<u8, Failure> {
    let out = Output::new(global);
    let mut session = match command {
        // These two need no database.
        Command::Health(args) => return health::run(&out, args).await,
        Command::Completions(args) => return completions::run(&out, args),
        // The console opens its own connections.
        Command::Console(args) => return console::run(global, args).await,
        // These two also handle a database without the schema.
        Command::Init(_) | Command::Doctor => Session::open(global).await?,
        _ => Session::open_checked(global).await?,
    };
    let user = session.user().to_owned();
    let done = match command {
        // `init` handles lock waits itself, `top` never waits for locks.
        Command::Init(args) => init::run(&session, &out, args.dry_run).await,
        Command::Top(args) => return top::run(session, global, &out, args).await,
        _ => {
            LockWaitMonitor::with(&session)
                .await?
                .run(on_session(command, &mut session, &out))
                .await
        }
    };
    done.map_err(|failure| failure.with_missing_role(command.role(), &user))
}

/// Runs a command that ends with its statements.
async fn on_session(command: &Command, session: &mut Session, out: &Output) -> Result<u8, Failure> {
    match command {
        Command::Status => status::run(&session.client, out).await,
        Command::Task(TaskVerb::List(args)) => task_list::list(&session.client, out, args).await,
        Command::Task(TaskVerb::Show { id, plan: true }) => {
            task_plan::run(&session.client, out, *id).await
        }
        Command::Task(TaskVerb::Show { id, .. }) => task_show::run(&session.client, out, *id).await,
        Command::Task(TaskVerb::Cancel(args)) => {
            task_actions::cancel(&session.client, out, args).await
        }
        Command::Task(TaskVerb::Retry(args)) => {
            task_actions::retry(&session.client, out, args).await
        }
        Command::Queue(QueueVerb::List) => queues::list(&session.client, out).await,
        Command::Queue(QueueVerb::Pause(args)) => queues::pause(&session.client, out, args).await,
        Command::Queue(QueueVerb::Set(args)) => queues::set(&session.client, out, args).await,
        Command::Queue(QueueVerb::Resume(args)) => queues::resume(&session.client, out, args).await,
        Command::Priority(PriorityVerb::List) => {
            capacity::list_priorities(&session.client, out).await
        }
        Command::Priority(PriorityVerb::Set(args)) => {
            capacity::set_weights(&session.client, out, args).await
        }
        Command::Priority(PriorityVerb::Reserve(args)) => {
            capacity::set_reserved_capacity(&session.client, out, args).await
        }
        Command::Profile(ProfileVerb::List) => profiles::list(&session.client, out).await,
        Command::Profile(ProfileVerb::Set(args)) => {
            profiles::set(&mut session.client, out, args).await
        }
        Command::Profile(ProfileVerb::Remove(args)) => {
            profiles::remove(&mut session.client, out, args).await
        }
        Command::Group(GroupVerb::List) => groups::list(&session.client, out).await,
        Command::Group(GroupVerb::Set(args)) => groups::set(&mut session.client, out, args).await,
        Command::Group(GroupVerb::Remove(args)) => {
            groups::remove(&mut session.client, out, args).await
        }
        Command::Limit(LimitVerb::List) => capacity::list_limits(&session.client, out).await,
        Command::Limit(LimitVerb::Set(args)) => {
            capacity::set_limit(&session.client, out, args).await
        }
        Command::Run(verb) => runs::run(&mut session.client, out, verb).await,
        Command::Schedule(verb) => schedules::run(&mut session.client, out, verb).await,
        Command::Apply(args) => apply::run(&mut session.client, out, args).await,
        Command::Job(verb) => jobs::run(&mut session.client, out, verb).await,
        Command::Dependency(verb) => dependencies::run(&mut session.client, out, verb).await,
        Command::Lineage(args) => lineage::run(&session.client, out, args).await,
        Command::Worker(WorkerVerb::List) => worker::list(&session.client, out).await,
        Command::Worker(WorkerVerb::Drain(args)) => worker::drain(&session.client, out, args).await,
        Command::History(args) => history::run(&session.client, out, args).await,
        Command::Audit(args) => audit::run(&session.client, out, args).await,
        Command::Failures(args) => failures::run(&session.client, out, args).await,
        Command::Durations(args) => durations::run(&session.client, out, args).await,
        Command::Why { task } => task_show::why(&mut session.client, out, task).await,
        Command::Doctor => doctor::run(session, out).await,
        Command::Init(_)
        | Command::Top(_)
        | Command::Health(_)
        | Command::Console(_)
        | Command::Completions(_) => Ok(exit::OK),
    }
}
