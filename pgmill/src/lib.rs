//! The program `pgmill`: the operator's command line for inspecting and operating a fleet.
//!
//! | room | contents |
//! |---|---|
//! | `args` | command line, help and examples |
//! | `tasks` | `pgmill task`, `why` |
//! | `runs` | `pgmill run` |
//! | `jobs` | `pgmill job`, `apply` and the files it reads, `dependency`, `lineage` |
//! | `schedules` | `pgmill schedule` |
//! | `fleet` | `pgmill status`, `top`, `console`, `worker`, `health`, `queue`, `priority`, `limit`, `group` |
//! | `history` | `pgmill history`, `failures`, `durations`, `audit` |
//! | `database` | `pgmill init`, `doctor`, `profile` |
//! | `completions` | `pgmill completions` |
//! | `session`, `lock_wait` | connection of a command, and its wait for a lock |
//! | `output` | tables, documents, graphs, colours, times and sizes |
//! | `failure` | errors and exit codes |
//!
//! Invariant: this crate contains no SQL; every statement is in the crates `queue` and `schedule`.
//!
//! Invariant: with `--dry-run` nothing is written.

mod args;
mod completions;
mod database;
mod failure;
mod fleet;
mod history;
mod jobs;
mod lock_wait;
mod output;
mod runs;
mod schedules;
mod session;
mod tasks;

use std::process::ExitCode;

use ::queue::exit;
use args::{
    Args, Command, Global, GroupVerb, LimitVerb, PriorityVerb, ProfileVerb, QueueVerb, TaskVerb,
    WorkerVerb,
};
pub use jobs::job_file::first_error as job_file_error;

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
        Command::Health(args) => return fleet::health::run(&out, args).await,
        Command::Completions(args) => return completions::run(&out, args),
        // The console opens its own connections.
        Command::Console(args) => return fleet::console::run(global, args).await,
        // These two also handle a database without the schema.
        Command::Init(_) | Command::Doctor => Session::open(global).await?,
        _ => Session::open_checked(global).await?,
    };
    let user = session.user().to_owned();
    let done = match command {
        // `init` handles lock waits itself, `top` never waits for locks.
        Command::Init(args) => database::init::run(&session, &out, args.dry_run).await,
        Command::Top(args) => return fleet::top::run(session, global, &out, args).await,
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
        Command::Status => fleet::status::run(&session.client, out).await,
        Command::Task(TaskVerb::List(args)) => tasks::list::list(&session.client, out, args).await,
        Command::Task(TaskVerb::Show { id, plan: true }) => {
            tasks::plan::run(&session.client, out, *id).await
        }
        Command::Task(TaskVerb::Show { id, .. }) => {
            tasks::show::run(&session.client, out, *id).await
        }
        Command::Task(TaskVerb::Cancel(args)) => {
            tasks::actions::cancel(&session.client, out, args).await
        }
        Command::Task(TaskVerb::Retry(args)) => {
            tasks::actions::retry(&session.client, out, args).await
        }
        Command::Queue(QueueVerb::List) => fleet::queues::list(&session.client, out).await,
        Command::Queue(QueueVerb::Pause(args)) => {
            fleet::queues::pause(&session.client, out, args).await
        }
        Command::Queue(QueueVerb::Set(args)) => {
            fleet::queues::set(&session.client, out, args).await
        }
        Command::Queue(QueueVerb::Resume(args)) => {
            fleet::queues::resume(&session.client, out, args).await
        }
        Command::Priority(PriorityVerb::List) => {
            fleet::capacity::list_priorities(&session.client, out).await
        }
        Command::Priority(PriorityVerb::Set(args)) => {
            fleet::capacity::set_weights(&session.client, out, args).await
        }
        Command::Priority(PriorityVerb::Reserve(args)) => {
            fleet::capacity::set_reserved_capacity(&session.client, out, args).await
        }
        Command::Profile(ProfileVerb::List) => database::profiles::list(&session.client, out).await,
        Command::Profile(ProfileVerb::Set(args)) => {
            database::profiles::set(&mut session.client, out, args).await
        }
        Command::Profile(ProfileVerb::Remove(args)) => {
            database::profiles::remove(&mut session.client, out, args).await
        }
        Command::Group(GroupVerb::List) => fleet::groups::list(&session.client, out).await,
        Command::Group(GroupVerb::Set(args)) => {
            fleet::groups::set(&mut session.client, out, args).await
        }
        Command::Group(GroupVerb::Remove(args)) => {
            fleet::groups::remove(&mut session.client, out, args).await
        }
        Command::Limit(LimitVerb::List) => fleet::capacity::list_limits(&session.client, out).await,
        Command::Limit(LimitVerb::Set(args)) => {
            fleet::capacity::set_limit(&session.client, out, args).await
        }
        Command::Run(verb) => runs::run(&mut session.client, out, verb).await,
        Command::Schedule(verb) => schedules::run(&mut session.client, out, verb).await,
        Command::Apply(args) => jobs::apply::run(&mut session.client, out, args).await,
        Command::Job(verb) => jobs::run(&mut session.client, out, verb).await,
        Command::Dependency(verb) => jobs::dependencies::run(&mut session.client, out, verb).await,
        Command::Lineage(args) => jobs::lineage::run(&session.client, out, args).await,
        Command::Worker(WorkerVerb::List) => fleet::workers::list(&session.client, out).await,
        Command::Worker(WorkerVerb::Drain(args)) => {
            fleet::workers::drain(&session.client, out, args).await
        }
        Command::History(args) => history::attempts::run(&session.client, out, args).await,
        Command::Audit(args) => history::audit::run(&session.client, out, args).await,
        Command::Failures(args) => history::failures::run(&session.client, out, args).await,
        Command::Durations(args) => history::durations::run(&session.client, out, args).await,
        Command::Why { task } => tasks::show::why(&mut session.client, out, task).await,
        Command::Doctor => database::doctor::run(session, out).await,
        Command::Init(_)
        | Command::Top(_)
        | Command::Health(_)
        | Command::Console(_)
        | Command::Completions(_) => Ok(exit::OK),
    }
}
