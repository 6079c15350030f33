//! The program `pgmill`: the operator's command line for inspecting and operating a fleet.
//!
//! | module | contents |
//! |---|---|
//! | `args` | command line, help, examples |
//! | `completion` | scripts for shell completion, and the names that they offer |
//! | `tasks` | `pgmill task`, `why` |
//! | `runs` | `pgmill run` |
//! | `jobs` | `pgmill job`, `apply` and the files it reads, `dependency`, `lineage` |
//! | `schedules` | `pgmill schedule` |
//! | `imports` | `pgmill import`: jobs and schedules from other systems, which the crate `import` converts |
//! | `fleet` | `pgmill status`, `top`, `pause`, `resume`, `console`, `worker`, `health`, `queue`, `priority`, `limit`, `group` |
//! | `notifications` | `pgmill subscription`, `notification` |
//! | `history` | `pgmill history`, `failures`, `durations`, `audit` |
//! | `database` | `pgmill init`, `doctor`, `profile`, `target` |
//! | `session` | connection of a command, its wait for a lock, `pgmill context`, and commands on several databases |
//! | `output` | tables, documents, graphs, colours, times and sizes |
//!
//! Invariant: this crate contains no SQL on the schema; every such statement is in the crates `queue`
//! and `schedule`.
//!
//! Invariant: with `--dry-run` nothing is written.

mod args;
mod completion;
mod database;
mod fleet;
mod history;
mod imports;
mod jobs;
mod notifications;
mod output;
mod runs;
mod schedules;
mod session;
mod tasks;

use std::process::ExitCode;

use args::{Args, Command, CompleteArgs, Global, TargetVerb};
use cli::{Exit, Failure, exit};
pub use completion::script as completion_script;
pub use jobs::job_file::first_error as job_file_error;

use output::Output;
use session::lock_wait::LockWaitMonitor;
use session::{Session, all_contexts, contexts};

/// Returns the definition of the command line, for its man pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    args::command()
}

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    cli::main(|| {
        if let Some(args) = CompleteArgs::from_process() {
            let names = cli::one_thread()?.block_on(completion::run(&args?));
            return cli::print(|out| write!(out, "{names}"))
                .map(|()| exit::OK)
                .map_err(Failure::from);
        }
        let args = Args::from_process()?;
        cli::one_thread()?.block_on(run(&args.command, &args.global))
    })
}

async fn run(command: &Command, global: &Global) -> Exit {
    let out = Output::new(global);
    if global.all_contexts && !matches!(command, Command::Console(_)) {
        return on_all_contexts(command, global, &out).await;
    }
    let session = match command {
        // Health, Context and Completions need no database.
        Command::Health(args) => return fleet::health::run(&out, args).await,
        Command::Completions { shell } => return out.text(completion::script(*shell).trim_end()),
        Command::Context(verb) => {
            return contexts::run(global.contexts_file.as_deref(), &out, verb);
        }
        Command::Import(import) if let Some(source) = import.prints() => {
            return imports::print(&out, source);
        }
        // The console opens its own connections.
        Command::Console(args) => return fleet::console::run(global, args).await,
        _ if command.role() == Some("mill_viewer") => Session::open_reading(global).await?,
        _ => Session::open(global).await?,
    };
    let mut session = match command {
        // These also handle a database without the schema.
        Command::Init(_) | Command::Doctor | Command::Target(TargetVerb::Init(_)) => session,
        _ => session.checked().await?,
    };
    let done = match command {
        // `init` handles lock waits itself, `top` never waits for locks.
        Command::Init(args) => database::init::run(&session, &out, args.is_set()).await,
        Command::Top(args) => return fleet::top::run(session, global, &out, args).await,
        _ => {
            LockWaitMonitor::with(&session)
                .await?
                .run(on_session(command, &mut session, &out))
                .await
        }
    };
    match done {
        Err(failure) => Err(session.explained(failure, command.role()).await),
        done => done,
    }
}

/// Runs a command that only reads on the databases of all contexts.
///
/// # Errors
/// Refuses other commands, so that nobody changes all databases without meaning to.
async fn on_all_contexts(command: &Command, global: &Global, out: &Output) -> Exit {
    if !command.only_reads() {
        return Err(Failure::usage("this command does not run with --all-contexts")
            .hint("Name one database with --context; pgmill context list shows the names."));
    }
    let on_context = async |session: Session, out: &Output| {
        // Doctor also handles a database without the schema.
        let mut session = match command {
            Command::Doctor => session,
            _ => session.checked().await?,
        };
        match on_session(command, &mut session, out).await {
            Err(failure) => Err(session.explained(failure, command.role()).await),
            done => done,
        }
    };
    all_contexts::run(global, out, on_context).await
}

/// Runs a command that needs one session and no terminal.
async fn on_session(command: &Command, session: &mut Session, out: &Output) -> Exit {
    let client = &mut session.client;
    match command {
        Command::Task(verb) => tasks::run(client, out, verb).await,
        Command::Why { task } => tasks::why::run(client, out, task).await,
        Command::Run(verb) => runs::run(client, out, verb).await,
        Command::Schedule(verb) => schedules::run(client, out, verb).await,
        Command::Job(verb) => jobs::run(client, out, verb).await,
        Command::Apply(args) => jobs::apply::run(client, out, args).await,
        Command::Import(import) => imports::run(client, out, import).await,
        Command::Dependency(verb) => jobs::dependencies::run(client, out, verb).await,
        Command::Lineage(args) => jobs::lineage::run(client, out, args).await,
        Command::Status => fleet::status::run(client, out).await,
        Command::Pause(args) => fleet::pause::pause(client, out, args).await,
        Command::Resume(args) => fleet::pause::resume(client, out, args).await,
        Command::Worker(verb) => fleet::workers::run(client, out, verb).await,
        Command::Queue(verb) => fleet::queues::run(client, out, verb).await,
        Command::Priority(verb) => fleet::capacity::run_priority(client, out, verb).await,
        Command::Limit(verb) => fleet::capacity::run_limit(client, out, verb).await,
        Command::Group(verb) => fleet::groups::run(client, out, verb).await,
        Command::Subscription(verb) => notifications::run_subscription(client, out, verb).await,
        Command::Notification(verb) => notifications::run_notification(client, out, verb).await,
        Command::History(args) => history::attempts::run(client, out, args).await,
        Command::Failures(args) => history::failures::run(client, out, args).await,
        Command::Durations(args) => history::durations::run(client, out, args).await,
        Command::Audit(args) => history::audit::run(client, out, args).await,
        Command::Profile(verb) => database::profiles::run(client, out, verb).await,
        Command::Target(verb) => database::targets::run(client, out, verb).await,
        Command::Doctor => database::doctor::run(session, out).await,
        Command::Init(_)
        | Command::Top(_)
        | Command::Health(_)
        | Command::Console(_)
        | Command::Context(_)
        | Command::Completions { .. } => Ok(exit::OK),
    }
}
