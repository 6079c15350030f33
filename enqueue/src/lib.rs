//! The program `enqueue`: from a command line to tasks in the queue, and to the end of a task.
//!
//! | step | file |
//! |---|---|
//! | the command line | `args`, times and spans in `when` |
//! | where the SQL comes from, and what is refused at once | `source` |
//! | the connection | `session` |
//! | SQL → tasks | `submit` |
//! | the end of a task | `wait` |
//! | jobs → a run, and its end | `run` |
//! | what is shown | `render`, `output` |
//! | why it did not work, and the exit code | `failure` |
//!
//! Invariant: the exit code for an unreachable database means that nothing was submitted.

mod args;
mod failure;
mod output;
mod render;
mod run;
mod session;
mod source;
mod submit;
mod wait;
pub mod when;

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use jiff::tz::TimeZone;
use queue::attempt::Attempt;
use queue::enqueue::{self, Due, Enqueued, NewTask, TaskOptions};
use queue::{Outcome, TaskId, exit};
use serde::Serialize;
use terminal::tell;

use args::{Args, How, Param};
use failure::Failure;
use output::print;
use session::Session;
use source::Source;
use submit::{Batch, Ids};
use wait::Ended;

/// Of a process that SIGINT ended, as a shell reports it.
const INTERRUPTED: u8 = 130;

/// The definition of the command line, for its man page and completions.
#[must_use]
pub fn command() -> clap::Command {
    <Args as clap::CommandFactory>::command()
}

/// The whole program.
pub fn main() -> ExitCode {
    let args = match Args::from_process() {
        Ok(args) => args,
        Err(error) => {
            // --help is one of these, too.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::USAGE));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(run(&args)),
        Err(error) => {
            tell(format_args!("error: cannot start: {error}"));
            return ExitCode::from(exit::FAILURE);
        }
    };
    ended.map_or_else(|failure| report(&failure), ExitCode::from)
}

fn report(failure: &Failure) -> ExitCode {
    tell(format_args!("error: {}", terminal::visible(&failure.to_string())));
    if let Some(detail) = failure.detail() {
        tell(format_args!("detail: {}", terminal::visible(detail)));
    }
    if let Some(hint) = failure.hint() {
        tell(format_args!("hint: {}", terminal::visible(&hint)));
    }
    ExitCode::from(failure.exit_code())
}

/// What all tasks of one command share.
struct Order {
    /// Name and parameters; the statement is still missing.
    pattern: NewTask,
    options: TaskOptions,
    /// The longest statement that this database takes.
    limit_bytes: u64,
}

async fn run(args: &Args) -> Result<u8, Failure> {
    if !args.what.job.is_empty() {
        return run::start(args).await;
    }
    let mut sources = Source::locate(&args.what)?;
    let mut session =
        Session::open(terminal::target(args.given.as_ref())?.with_application_name("enqueue"))
            .await?;
    if args.wait.is_some() {
        wait::check_rights(&session).await?;
    }
    let values = args.what.params.iter().filter_map(|param| match param {
        Param::Next(value) => Some(value.clone()),
        Param::Named(..) => None,
    });
    let params = (!args.what.params.is_empty()).then(|| values.collect());
    let order = Order {
        pattern: NewTask { statement: String::new(), params, name: args.how.name.clone() },
        options: options(&args.how, &session).await?,
        limit_bytes: enqueue::statement_limit(&session.client).await?,
    };
    match sources.pop() {
        Some(source) if sources.is_empty() && !args.what.lines => {
            submit_one(args, &mut session, source, order).await
        }
        last => {
            sources.extend(last);
            submit_many(args, &mut session, sources, &order).await
        }
    }
}

async fn options(how: &How, session: &Session) -> Result<TaskOptions, Failure> {
    let due = match (&how.at, how.r#in) {
        (Some(moment), _) => {
            let now = enqueue::database_now(&session.client).await?;
            let at = moment.resolve(&now.to_zoned(TimeZone::system()));
            Due::At(at.map_err(|error| Failure::usage(format!("--at: {error}")))?)
        }
        (None, Some(span)) => Due::In(span),
        (None, None) => Due::Now,
    };
    Ok(TaskOptions {
        queue: how.queue.clone(),
        priority: how.priority,
        due,
        max_attempts: how.max_attempts,
        retry_interval: how.retry_interval,
        backoff: how.backoff,
        jitter: how.jitter,
        timeout: how.timeout,
        mode: how.mode,
        at_most_once: how.at_most_once,
        explain: how.explain,
        external: how.external,
        group: how.group.clone(),
        concurrency_key: how.concurrency_key.clone(),
        concurrency: how.concurrency,
        run_as: how.run_as.clone(),
    })
}

async fn submit_many(
    args: &Args,
    session: &mut Session,
    sources: Vec<Source>,
    order: &Order,
) -> Result<u8, Failure> {
    let progress = render::bar(sources.iter().map(Source::size_bytes).sum());
    let batch = Batch {
        pattern: order.pattern.clone(),
        options: &order.options,
        by_line: args.what.lines,
        limit_bytes: order.limit_bytes,
        progress: &progress,
    };
    let submitted = submit::many(&mut session.client, sources, &batch).await;
    progress.finish_and_clear();
    let ids = submitted.inspect_err(|failure| {
        if !matches!(failure, Failure::Unsure(_)) {
            tell("no task was submitted");
        }
    })?;
    if ids.count() == 0 {
        tell("no task was submitted: the input holds no SQL");
        return Ok(exit::OK);
    }
    ring(session).await;
    print_ids(&ids, args.json)?;
    Ok(exit::OK)
}

fn print_ids(ids: &Ids, json: bool) -> Result<(), Failure> {
    print(|out| {
        for id in ids.iter() {
            if json {
                writeln!(out, "{}", Answer::submitted(Enqueued { id, created: true }))?;
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
    order: Order,
) -> Result<u8, Failure> {
    let task = NewTask { statement: source.statement(order.limit_bytes)?, ..order.pattern };
    let key = args.how.key.as_deref();
    let enqueued = submit::one(&session.client, &task, &order.options, key).await?;
    drop(task);
    if enqueued.created {
        ring(session).await;
        tell_due(enqueued.id, &order.options);
    } else {
        let key = key.unwrap_or_default();
        tell(format_args!("task {} is live with key \"{key}\", no new task", enqueued.id));
    }
    let Some(patience) = args.wait else {
        print_answer(enqueued, args.json)?;
        return Ok(exit::OK);
    };
    if !args.json {
        print_answer(enqueued, false)?;
    }
    let ended = wait::until_end(session, enqueued.id, patience).await;
    if args.json && !matches!(ended, Ok(Ended::With(_))) {
        print_answer(enqueued, true)?;
    }
    let id = enqueued.id;
    match ended? {
        Ended::With(attempt) => show_end(enqueued, *attempt, args.json),
        Ended::TimedOut(why) => {
            let why = why.map(|why| format!(": {}", terminal::visible(&why))).unwrap_or_default();
            tell(format_args!("task {id} has not ended in time and goes on{why}"));
            Ok(exit::TIMED_OUT)
        }
        Ended::Interrupted => {
            tell(format_args!("task {id} goes on; pgmill task cancel {id} ends it"));
            Ok(INTERRUPTED)
        }
    }
}

/// A lost bell costs the fleet one poll interval: not worth a failure, let alone one that looks as
/// if nothing had been submitted.
async fn ring(session: &Session) {
    drop(enqueue::ring(&session.client).await);
}

/// Which instant `tomorrow 03:00` turned out to be. For people only.
fn tell_due(id: TaskId, options: &TaskOptions) {
    if let Due::At(at) = options.due
        && io::stderr().is_terminal()
    {
        let at = when::local_text(&at.to_zoned(TimeZone::system()));
        tell(format_args!("task {id} is due at {at}"));
    }
}

/// What --json prints.
#[derive(Serialize)]
struct Answer {
    id: TaskId,
    created: bool,
    #[serde(flatten)]
    attempt: Option<Attempt>,
}

impl Answer {
    fn submitted(enqueued: Enqueued) -> Self {
        Self { id: enqueued.id, created: enqueued.created, attempt: None }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

fn print_answer(enqueued: Enqueued, json: bool) -> Result<(), Failure> {
    if json {
        print(|out| writeln!(out, "{}", Answer::submitted(enqueued)))
    } else {
        print(|out| writeln!(out, "{}", enqueued.id))
    }
}

fn show_end(enqueued: Enqueued, attempt: Attempt, json: bool) -> Result<u8, Failure> {
    let succeeded = attempt.outcome == Outcome::Succeeded;
    if json {
        let answer = Answer { attempt: Some(attempt), ..Answer::submitted(enqueued) };
        print(|out| writeln!(out, "{answer}"))?;
    } else {
        for notice in attempt.notices.iter().flat_map(terminal::notices) {
            tell(notice);
        }
        if let Some(rows) = attempt.result.as_ref().and_then(render::rows) {
            print(|out| writeln!(out, "{rows}"))?;
        }
        tell(render::outcome(&attempt));
    }
    Ok(if succeeded { exit::OK } else { exit::TASK_FAILED })
}
