//! The program `enqueue`: submits tasks and runs from the command line, and waits for their result.
//!
//! | step | file |
//! |---|---|
//! | command line | `args`; times and durations in the crate `cli` |
//! | sources of SQL, and checks before the connection | `source` |
//! | connection | `session` |
//! | SQL → tasks | `submit` |
//! | waiting for a task | `wait` |
//! | jobs → a run, waiting for the run | `run` |
//! | output | `render`, `output` |
//! | errors and exit codes | `failure` |
//!
//! Invariant: if the exit code says that the database is unreachable, nothing was submitted.

mod args;
mod failure;
mod output;
mod render;
mod run;
mod session;
mod source;
mod submit;
mod wait;

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use cli::exit;
use jiff::tz::TimeZone;
use queue::attempt::Attempt;
use queue::enqueue::{self, Due, Enqueued, NewTask, TaskOptions};
use queue::{Outcome, StoredOptions, TaskId};
use serde::Serialize;
use terminal::print_stderr;

use args::{Args, Param};
use failure::Failure;
use output::print;
use session::Session;
use source::Source;
use submit::{Batch, Ids};
use wait::WaitResult;

/// Returns the definition of the command line, for its man page and completions.
#[must_use]
pub fn command() -> clap::Command {
    <Args as clap::CommandFactory>::command()
}

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    cli::main(|| {
        let args = Args::from_process()?;
        Ok::<_, cli::Failure>(cli::one_thread()?.block_on(run(&args))?)
    })
}

/// What all tasks of one command have in common.
struct TaskTemplate {
    /// Name and parameters, without a statement.
    pattern: NewTask,
    options: TaskOptions,
    /// Maximum size of a statement that this database accepts, in bytes.
    limit_bytes: u64,
}

async fn run(args: &Args) -> Result<u8, Failure> {
    let sources = if args.input.job.is_empty() { Source::locate(&args.input)? } else { Vec::new() };
    let mut session = Session::open(
        terminal::connection_target(args.given.as_ref())?.with_application_name("enqueue"),
    )
    .await?;
    let done = match args.input.job[..] {
        [] => submit(args, &mut session, sources).await,
        _ => run::start(args, &mut session).await,
    };
    match done {
        Err(failure) => Err(session.explained(failure).await),
        done => done,
    }
}

async fn submit(
    args: &Args,
    session: &mut Session,
    mut sources: Vec<Source>,
) -> Result<u8, Failure> {
    if args.wait.is_some() {
        wait::check_rights(session).await?;
    }
    let values = args.input.params.iter().filter_map(|param| match param {
        Param::Positional(value) => Some(value.clone()),
        Param::Named(..) => None,
    });
    let params = (!args.input.params.is_empty()).then(|| values.collect());
    let template = TaskTemplate {
        pattern: NewTask { statement: String::new(), params, name: args.task.name.clone() },
        options: options(args, session).await?,
        limit_bytes: enqueue::statement_limit(&session.client).await?,
    };
    match sources.pop() {
        Some(source) if sources.is_empty() && !args.input.lines => {
            submit_one(args, session, source, template).await
        }
        last => {
            sources.extend(last);
            submit_many(args, session, sources, &template).await
        }
    }
}

async fn options(args: &Args, session: &Session) -> Result<TaskOptions, Failure> {
    let flags = &args.task;
    let due = match (&flags.at, flags.r#in) {
        (Some(moment), _) => {
            let now = enqueue::database_now(&session.client).await?;
            let at = moment.resolve(&now.to_zoned(TimeZone::system()));
            Due::At(at.map_err(|error| Failure::usage(format!("--at: {error}")))?)
        }
        (None, Some(span)) => Due::In(span),
        (None, None) => Due::Now,
    };
    Ok(TaskOptions {
        queue: flags.queue.clone(),
        priority: flags.priority,
        due,
        max_attempts: flags.max_attempts(),
        retry_interval: flags.retry_interval,
        backoff: flags.backoff,
        jitter: flags.jitter,
        timeout: flags.timeout,
        mode: flags.mode,
        at_most_once: flags.at_most_once,
        explain: flags.explain,
        external: flags.external,
        group: flags.group.clone(),
        concurrency_key: flags.concurrency_key.clone(),
        concurrency: flags.concurrency,
        run_as: flags.run_as.clone(),
        target: flags.target.clone(),
        stored: StoredOptions {
            labels: args.labels(),
            traceparent: args.traceparent()?,
            ..flags.stored.clone()
        },
    })
}

async fn submit_many(
    args: &Args,
    session: &mut Session,
    sources: Vec<Source>,
    template: &TaskTemplate,
) -> Result<u8, Failure> {
    let progress = render::bar(sources.iter().map(Source::size_bytes).sum());
    let batch = Batch {
        pattern: template.pattern.clone(),
        options: &template.options,
        by_line: args.input.lines,
        limit_bytes: template.limit_bytes,
        progress: &progress,
    };
    let submitted = submit::many(&mut session.client, sources, &batch).await;
    progress.finish_and_clear();
    let ids = submitted.inspect_err(|failure| {
        if !matches!(failure, Failure::InDoubt(_)) {
            print_stderr("no task was submitted");
        }
    })?;
    if ids.count() == 0 {
        print_stderr("no task was submitted: the input holds no SQL");
        return Ok(exit::OK);
    }
    print_ids(&ids, args.json)?;
    Ok(exit::OK)
}

fn print_ids(ids: &Ids, json: bool) -> Result<(), Failure> {
    print(|out| {
        for id in ids.iter() {
            if json {
                writeln!(out, "{}", JsonOutput::submitted(Enqueued { id, created: true }))?;
            } else {
                writeln!(out, "{id}")?;
            }
        }
        Ok(())
    })
}

async fn submit_one(
    args: &Args,
    session: &mut Session,
    source: Source,
    template: TaskTemplate,
) -> Result<u8, Failure> {
    let task = NewTask { statement: source.statement(template.limit_bytes)?, ..template.pattern };
    let key = args.task.key.as_deref();
    let enqueued = submit::one(&mut session.client, &task, &template.options, key).await?;
    drop(task);
    if enqueued.created {
        print_due_time(enqueued.id, &template.options);
    } else {
        let key = key.unwrap_or_default();
        print_stderr(format_args!(
            "no task was submitted: task {} with key \"{key}\" is live",
            enqueued.id
        ));
    }
    let Some(timeout) = args.wait else {
        print_enqueued(enqueued, args.json)?;
        return Ok(exit::OK);
    };
    if !args.json {
        print_enqueued(enqueued, false)?;
    }
    let ended = wait::until_end(session, enqueued.id, timeout).await;
    if args.json && !matches!(ended, Ok(WaitResult::Finished(_))) {
        print_enqueued(enqueued, true)?;
    }
    let id = enqueued.id;
    match ended? {
        WaitResult::Finished(attempt) => show_end(enqueued, *attempt, args.json),
        WaitResult::TimedOut(why) => {
            let why = why.map(|why| format!(": {}", terminal::visible(&why))).unwrap_or_default();
            print_stderr(format_args!("timed out, task {id} continues{why}"));
            Ok(exit::TIMED_OUT)
        }
        WaitResult::Interrupted => {
            print_stderr(format_args!(
                "interrupted, task {id} continues; to cancel it: pgmill task cancel {id}"
            ));
            Ok(exit::INTERRUPTED)
        }
    }
}

/// Prints the due time of a task that was submitted with `--at`, if the output is a terminal.
fn print_due_time(id: TaskId, options: &TaskOptions) {
    if let Due::At(at) = options.due
        && io::stderr().is_terminal()
    {
        let at = cli::time::local_text(&at.to_zoned(TimeZone::system()));
        print_stderr(format_args!("task {id} is due at {at}"));
    }
}

/// The output of `--json`.
#[derive(Serialize)]
struct JsonOutput {
    id: TaskId,
    created: bool,
    #[serde(flatten)]
    attempt: Option<Attempt>,
}

impl JsonOutput {
    fn submitted(enqueued: Enqueued) -> Self {
        Self { id: enqueued.id, created: enqueued.created, attempt: None }
    }
}

impl fmt::Display for JsonOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut document = serde_json::to_value(self).map_err(|_| fmt::Error)?;
        // The task has its id already.
        document.as_object_mut().map(|fields| fields.remove("task_id"));
        write!(f, "{document}")
    }
}

fn print_enqueued(enqueued: Enqueued, json: bool) -> Result<(), Failure> {
    if json {
        print(|out| writeln!(out, "{}", JsonOutput::submitted(enqueued)))
    } else {
        print(|out| writeln!(out, "{}", enqueued.id))
    }
}

fn show_end(enqueued: Enqueued, attempt: Attempt, json: bool) -> Result<u8, Failure> {
    let succeeded = attempt.outcome == Outcome::Succeeded;
    if json {
        let answer = JsonOutput { attempt: Some(attempt), ..JsonOutput::submitted(enqueued) };
        print(|out| writeln!(out, "{answer}"))?;
    } else {
        for notice in attempt.notices.iter().flat_map(terminal::notices) {
            print_stderr(notice);
        }
        if let Some(rows) = attempt.result.as_ref().and_then(render::rows) {
            print(|out| writeln!(out, "{rows}"))?;
        }
        print_stderr(render::outcome(&attempt));
    }
    Ok(if succeeded { exit::OK } else { exit::TASK_FAILED })
}
