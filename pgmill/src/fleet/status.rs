//! `pgmill status`: an overview on one screen, most severe problem first.

use std::time::Duration;

use cli::Exit;
use conninfo::Client;
use health::problems::{self, FleetFacts, ProblemSubject, QueueBacklog, Severity};
use jiff::Timestamp;
use queue::QueueError;
use queue::history::{self, OutcomeCount};
use queue::insight::problems::{ProblemSources, WaitingLimit, problem_sources};
use queue::queue_status::{self, QueueStatus};
use queue::task_queries::{self, Running};
use queue::workers::Worker;
use queue::{LimitKind, Outcome};
use serde::Serialize;
use serde_json::json;
use terminal::visible;

use crate::fleet::{pause, queues, workers};
use crate::output::format::{counted, outcome_tone, span};
use crate::output::{Output, Row, Tone};

/// Period in which outcomes are counted.
pub(crate) const LAST: Duration = Duration::from_secs(60 * 60);

/// A problem that needs attention.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Problem {
    pub(crate) severity: Severity,
    /// Duration of the problem.
    pub(crate) age_seconds: f64,
    pub(crate) message: String,
    /// A command that shows details or fixes the problem.
    next: String,
}

/// The data of the screen.
pub(crate) struct FleetStatus {
    pub(crate) now: Timestamp,
    pub(crate) queues: Vec<QueueStatus>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) running: Vec<Running>,
    /// Outcomes within [`LAST`].
    pub(crate) finished: Vec<OutcomeCount>,
    pub(crate) sources: ProblemSources,
}

impl FleetStatus {
    /// Queries everything except `finished`, whose query takes longest.
    pub(crate) async fn query(
        client: &Client,
        finished: Vec<OutcomeCount>,
    ) -> Result<Self, QueueError> {
        Ok(Self {
            now: task_queries::now(client).await?,
            queues: queue_status::queues(client).await?,
            workers: queue::workers::workers(client).await?,
            running: task_queries::running(client, None).await?,
            finished,
            sources: problem_sources(client).await?,
        })
    }
}

/// Prints the screen. The exit code does not depend on the problems, unlike the exit code of
/// `pgmill doctor`.
pub(crate) async fn run(client: &Client, out: &Output) -> Exit {
    let status = FleetStatus::query(client, history::outcomes(client, LAST).await?).await?;
    let mut problems = problems(&status);
    for problem in &mut problems {
        problem.next = out.in_context(&problem.next);
    }
    if out.is_merged() && !out.json {
        out.counts(summary(&status, &problems))?;
        return out.print_table(problems.iter().map(problem_row).collect());
    }
    let document = json!({
        "problems": problems, "queues": status.queues, "workers": status.workers,
        "finished_last_hour": status.finished, "limits": status.sources.limits,
        "maintenance_windows": status.sources.windows,
    });
    out.shown(&document, || screen(out, &status, &problems))
}

/// Returns the numbers of one of several databases.
fn summary(status: &FleetStatus, problems: &[Problem]) -> Vec<(&'static str, i64)> {
    let problems = |severity| counted_as(problems.iter().filter(|it| it.severity == severity));
    let finished = |is_counted: fn(Outcome) -> bool| {
        status.finished.iter().filter(|it| is_counted(it.outcome)).map(|it| it.tasks).sum()
    };
    let Readers { workers, readers, busy } = Readers::count(&status.workers);
    vec![
        ("critical", problems(Severity::Critical)),
        ("warning", problems(Severity::Warning)),
        ("info", problems(Severity::Info)),
        ("pending", status.queues.iter().map(|it| it.pending).sum()),
        ("running", status.queues.iter().map(|it| it.running).sum()),
        ("workers", workers),
        ("readers", readers),
        ("busy", busy),
        ("succeeded, 1 h", finished(|outcome| outcome == Outcome::Succeeded)),
        ("other outcomes, 1 h", finished(|outcome| outcome != Outcome::Succeeded)),
    ]
}

fn counted_as(items: impl Iterator) -> i64 {
    i64::try_from(items.count()).unwrap_or(i64::MAX)
}

/// Returns the problems, most severe first, each with a command for the next step.
pub(crate) fn problems(status: &FleetStatus) -> Vec<Problem> {
    let found = problems::find_problems(&FleetFacts {
        now: status.now,
        waiting: status.queues.iter().filter_map(waiting).collect(),
        workers: &status.workers,
        running: &status.running,
        failing: Vec::new(),
        finished: &status.finished,
        sources: &status.sources,
    });
    let with_hint = |it: problems::Problem| Problem {
        severity: it.severity,
        age_seconds: it.age_seconds,
        message: it.message,
        next: next(&it.about),
    };
    found.into_iter().map(with_hint).collect()
}

fn waiting(status: &QueueStatus) -> Option<QueueBacklog<'_>> {
    Some(QueueBacklog {
        queue: &status.queue,
        paused: status.paused,
        held_back: status.held_back.as_deref(),
        pending: counted(status.pending, "pending task"),
        oldest_seconds: status.oldest_pending_seconds?,
    })
}

/// Returns a command that shows details or fixes the problem.
fn next(about: &ProblemSubject) -> String {
    match about {
        ProblemSubject::FleetPause => "pgmill resume".to_owned(),
        ProblemSubject::HeldBack(_) => "pgmill queue list".to_owned(),
        ProblemSubject::Paused(queue) => format!("pgmill queue resume {queue}"),
        ProblemSubject::Backlog(queue) => {
            format!("pgmill task list --queue {queue} --state running")
        }
        // The readers may be busy with tasks of other queues.
        ProblemSubject::BusyReaders(_) => "pgmill task list --state running".to_owned(),
        ProblemSubject::Unserved(_) | ProblemSubject::Worker => "pgmill worker list".to_owned(),
        ProblemSubject::QueueFailures(_) => "pgmill failures".to_owned(),
        ProblemSubject::Finished(Outcome::Failed) => "pgmill failures --since 1h".to_owned(),
        ProblemSubject::Finished(outcome) => {
            format!("pgmill task list --outcome {outcome} --since 1h")
        }
        ProblemSubject::Task(id) => format!("pgmill task show {id}"),
        ProblemSubject::Run(run) => format!("pgmill run show {run}"),
        ProblemSubject::Runs(_) => "pgmill run list --state failed".to_owned(),
        ProblemSubject::Limit(LimitKind::Group) => "pgmill group list".to_owned(),
        ProblemSubject::Limit(_) => "pgmill limit list".to_owned(),
        ProblemSubject::Schedule(name) => format!("pgmill schedule log {name}"),
        ProblemSubject::Declarations => "pgmill schedule sync --dry-run".to_owned(),
        ProblemSubject::Snapshot => "pgmill doctor".to_owned(),
        ProblemSubject::Subscription(name) => format!("pgmill subscription show {name}"),
        ProblemSubject::Interruptions => "pgmill task list --outcome interrupted".to_owned(),
        ProblemSubject::HeldTarget(_) => "pgmill target list".to_owned(),
        ProblemSubject::Target(name) => format!("pgmill target check {name}"),
    }
}

/// Returns the tone of a severity.
pub(crate) fn severity_tone(severity: Severity) -> Tone {
    match severity {
        Severity::Critical => Tone::Error,
        Severity::Warning => Tone::Warning,
        Severity::Info => Tone::Plain,
    }
}

fn problem_row(problem: &Problem) -> Row {
    Row::of("severity", problem.severity)
        .tone(severity_tone(problem.severity))
        .text("since", span(problem.age_seconds))
        .text("problem", &problem.message)
        .text("next", &problem.next)
}

fn screen(out: &Output, status: &FleetStatus, problems: &[Problem]) -> String {
    let mut parts = Vec::new();
    if problems.is_empty() {
        parts.push(out.paint("no problems", Tone::Success));
    } else {
        parts.push(out.table(problems.iter().map(problem_row).collect()));
    }
    let planned = status.sources.windows.iter().filter(|window| !window.is_active);
    parts.extend(planned.map(|it| format!("pause planned {}", pause::period(it, status.now))));
    parts.push(if status.queues.is_empty() {
        "no live tasks".to_owned()
    } else {
        out.table(status.queues.iter().map(queues::row).collect())
    });
    parts.push(if status.workers.is_empty() {
        "no workers registered".to_owned()
    } else {
        let table = out.table(status.workers.iter().map(workers::row).collect());
        format!("{}\n\n{table}", fleet(&status.workers))
    });
    if !status.sources.limits.is_empty() {
        parts.push(waiting_limits(out, &status.sources.limits, status.now));
    }
    parts.push(finished(out, &status.finished));
    parts.join("\n\n")
}

/// Lists the limits for which tasks wait.
fn waiting_limits(out: &Output, limits: &[WaitingLimit], now: Timestamp) -> String {
    let row = |limit: &WaitingLimit| {
        let since = now.duration_since(limit.since).as_secs_f64();
        let more = if limit.more { "+" } else { "" };
        Row::of("limit", problems::describe_limit(limit, now))
            .text("waiting", format!("{}{more}", limit.tasks))
            .text("longest", span(since))
    };
    out.table(limits.iter().map(row).collect())
}

/// Counts the live workers and their busy readers.
pub(crate) fn fleet(workers: &[Worker]) -> String {
    let Readers { workers, readers, busy } = Readers::count(workers);
    format!("{} alive, {busy} of {} busy", counted(workers, "worker"), counted(readers, "reader"))
}

/// Numbers of live workers, and of their readers.
struct Readers {
    workers: i64,
    readers: i64,
    busy: i64,
}

impl Readers {
    fn count(workers: &[Worker]) -> Self {
        let alive = || workers.iter().filter(|worker| worker.alive);
        Self {
            workers: counted_as(alive()),
            readers: alive().map(|worker| i64::from(worker.readers)).sum(),
            busy: alive().map(|worker| worker.running.min(worker.readers.into())).sum(),
        }
    }
}

/// Formats the task outcomes of the last hour.
pub(crate) fn finished(out: &Output, finished: &[OutcomeCount]) -> String {
    if finished.is_empty() {
        return "no tasks finished in the last hour".to_owned();
    }
    let counts: Vec<String> = finished
        .iter()
        .map(|finished| {
            let word =
                out.paint(&visible(finished.outcome.as_str()), outcome_tone(finished.outcome));
            let p95 =
                finished.duration_p95_seconds.map(|seconds| format!(" (p95 {})", span(seconds)));
            format!("{} {word}{}", finished.tasks, p95.unwrap_or_default())
        })
        .collect();
    format!("finished in the last hour: {}", counts.join(", "))
}
