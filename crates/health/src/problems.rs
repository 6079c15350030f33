//! Finds problems that need attention, most severe first.
//!
//! | problems | file |
//! |---|---|
//! | order of all problems; those of workers, tasks, runs, schedules, subscriptions and targets | this file |
//! | queues that are paused or lack readers; limits that tasks wait for | `backlog` |
//! | logins with readers that cannot open a session | `logins` |
//! | interruptions by the server; tasks suspected of crashing the server | `server` |
//! | three severities, and the severity of failures by their share | `severity` |
//!
//! Pure: facts in, problems out. Each program adds the next step for its users, such as a page or a
//! command.

mod backlog;
mod logins;
mod server;
mod severity;

use jiff::Timestamp;
use queue::RunId;
use queue::doctor::HorizonHolder;
use queue::history::OutcomeCount;
use queue::insight::problems::{
    FailedRuns, FailingSubscription, HeldTarget, LateRun, NeededApproval, ProblemSources,
    RestoredTarget, ScheduleProblem, ScheduleProblemKind, SlowRun, SlowTask,
};
use queue::maintenance::MaintenanceWindow;
use queue::task_queries::Running;
use queue::workers::Worker;
use queue::{LimitKind, Outcome, TaskId};
use serde_json::Value;
use terminal::{counted, span, value};

pub use backlog::{QueueBacklog, describe_limit, queue_blockers};
pub use logins::unconnected_logins;
pub use severity::Severity;

/// Age in seconds at which a cancel request is overdue. A worker handles a request with its next
/// heartbeat at the latest, which is much earlier.
const CANCEL_OVERDUE_SECONDS: f64 = 60.0;

/// Age in seconds at which a snapshot counts as old. It then has kept dead rows of a busy queue for
/// long enough to matter.
const OLD_SNAPSHOT_SECONDS: f64 = 15.0 * 60.0;

/// Age in seconds at which an error of a worker's own operations counts as lasting. Errors of a
/// short outage are reported once or twice.
const LASTING_ERROR_SECONDS: f64 = 15.0;

/// A problem that needs attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// How serious the problem is.
    pub severity: Severity,
    /// Duration of the problem, in seconds.
    pub age_seconds: f64,
    /// Description in one sentence.
    pub message: String,
    /// Subject of the problem.
    pub about: ProblemSubject,
}

impl Problem {
    fn critical(age_seconds: f64, message: String, about: ProblemSubject) -> Self {
        Self { severity: Severity::Critical, age_seconds, message, about }
    }

    fn warning(age_seconds: f64, message: String, about: ProblemSubject) -> Self {
        Self { severity: Severity::Warning, age_seconds, message, about }
    }

    fn info(age_seconds: f64, message: String, about: ProblemSubject) -> Self {
        Self { severity: Severity::Info, age_seconds, message, about }
    }
}

/// The subject of a problem.
#[derive(Clone, Debug, PartialEq)]
pub enum ProblemSubject {
    /// The whole fleet, while it is paused.
    FleetPause,
    /// A queue of which a condition does not hold.
    HeldBack(String),
    /// A queue that is paused.
    Paused(String),
    /// A queue with a backlog, although a reader is idle.
    Backlog(String),
    /// A queue with a backlog, because all readers that serve the queue are busy.
    BusyReaders(String),
    /// A queue that no worker claims from.
    Unserved(String),
    /// A queue whose attempts fail.
    QueueFailures(String),
    /// Tasks with this outcome.
    Finished(Outcome),
    /// A worker.
    Worker,
    /// A running task.
    Task(TaskId),
    /// A run.
    Run(RunId),
    /// Several runs of this job.
    Runs(String),
    /// A limit of this kind.
    Limit(LimitKind),
    /// A schedule.
    Schedule(String),
    /// Comments that declare schedules.
    Declarations,
    /// An old snapshot.
    Snapshot,
    /// A subscription to events.
    Subscription(String),
    /// Another database in which tasks run.
    Target(String),
    /// A target that is held back.
    HeldTarget(String),
    /// Attempts that the server interrupted.
    Interruptions,
}

/// Attempts of a queue that failed in the last hour.
#[derive(Clone, Debug)]
pub struct QueueFailures<'a> {
    /// Name of the queue.
    pub queue: &'a str,
    /// Number of failed attempts.
    pub failed: i64,
    /// Number of succeeded attempts.
    pub succeeded: i64,
    /// Minute of the first failure.
    pub failing_since: Option<Timestamp>,
}

/// The input of [`find_problems`]. A program provides failures either by queue or by outcome.
#[derive(Clone, Debug)]
pub struct FleetFacts<'a> {
    /// Time of the database clock.
    pub now: Timestamp,
    /// Queues with pending tasks.
    pub waiting: Vec<QueueBacklog<'a>>,
    /// Every worker.
    pub workers: &'a [Worker],
    /// Every running task.
    pub running: &'a [Running],
    /// Queues with attempts that failed.
    pub failing: Vec<QueueFailures<'a>>,
    /// Outcomes of the tasks that ended in the last hour.
    pub finished: &'a [OutcomeCount],
    /// Failed runs, limits, slow tasks and more.
    pub sources: &'a ProblemSources,
}

/// Returns all problems, most severe first, and oldest first within a severity. A pause of the whole
/// fleet precedes all others, because it explains why nothing starts, and takes the place of the
/// backlogs that it causes.
#[must_use]
pub fn find_problems(facts: &FleetFacts<'_>) -> Vec<Problem> {
    let (now, workers, sources) = (facts.now, facts.workers, facts.sources);
    let pause = sources.pause();
    let backlog_wait = if pause.is_some() { f64::INFINITY } else { sources.backlog_wait_seconds };
    let mut problems: Vec<Problem> = facts
        .waiting
        .iter()
        .filter_map(|queue| backlog::queue(queue, workers, backlog_wait))
        .filter(|problem| !backlog::is_caused_by_limit(problem, facts))
        .chain(facts.failing.iter().filter_map(|queue| failing(queue, now)))
        .chain(workers.iter().filter_map(dead_worker))
        .chain(workers.iter().filter_map(failing_worker))
        .chain(unconnected_logins(workers))
        .chain(facts.running.iter().filter_map(|task| stuck_task(task, now)))
        .chain(facts.finished.iter().filter_map(|it| failed_outcomes(it, facts)))
        .chain(sources.slow_tasks.iter().map(slow_task))
        .chain(sources.runs.iter().map(|failed| failed_runs(failed, now)))
        .chain(sources.late_runs.iter().map(late_run))
        .chain(sources.slow_runs.iter().filter(|slow| !is_late(slow, sources)).map(slow_run))
        .chain(sources.approvals.iter().map(|it| approval(it, now)))
        .chain(sources.limits.iter().filter_map(|it| backlog::limit(it, now, backlog_wait)))
        .chain(sources.schedules.iter().map(|it| schedule(it, now)))
        .chain(sources.subscriptions.iter().map(|it| subscription(it, now)))
        .chain(sources.restored_targets.iter().map(|it| restored_target(it, now)))
        .chain(sources.held_targets.iter().map(held_target))
        .chain(server::interruptions(&sources.server, now))
        .chain(server::suspects(&sources.server, now))
        .chain(sources.horizon.iter().filter_map(old_snapshot).take(1))
        .collect();
    problems
        .sort_by(|a, b| a.severity.cmp(&b.severity).then(b.age_seconds.total_cmp(&a.age_seconds)));
    problems.splice(0..0, pause.map(|pause| fleet_pause(pause, now)));
    problems
}

fn fleet_pause(pause: &MaintenanceWindow, now: Timestamp) -> Problem {
    let end = pause.ends_at.map_or_else(
        || "until it is resumed".to_owned(),
        |end| format!("for another {}", span(end.duration_since(now).as_secs_f64())),
    );
    let reason = pause.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let message = format!("the fleet is paused {end}, by {}{reason}", pause.created_by);
    Problem::info(age(now, pause.starts_at), message, ProblemSubject::FleetPause)
}

/// Describes a blocking backend by its task, or else by its application, user and state.
#[must_use]
pub fn describe_blocker(blocker: &Value) -> String {
    let text = |key: &str| blocker.get(key).map(value).filter(|text| !text.is_empty());
    let backend = format!("backend {}", text("pid").unwrap_or_default());
    let what: Vec<String> = match text("task_id") {
        Some(task) => {
            let name = text("name").map(|name| format!(" ({name})")).unwrap_or_default();
            vec![format!("task {task}{name}")]
        }
        None => {
            let user = text("user").map(|user| format!("user {user}"));
            [text("application"), user, text("state")].into_iter().flatten().collect()
        }
    };
    if what.is_empty() { backend } else { format!("{backend}: {}", what.join(", ")) }
}

fn age(now: Timestamp, at: Timestamp) -> f64 {
    now.duration_since(at).as_secs_f64().max(0.0)
}

fn failing(queue: &QueueFailures<'_>, now: Timestamp) -> Option<Problem> {
    (queue.failed > 0).then(|| Problem {
        severity: Severity::of_failures(queue.failed, queue.succeeded),
        age_seconds: queue.failing_since.map_or(0.0, |since| age(now, since)),
        message: format!(
            "queue {}: {} failed in the last hour, {} succeeded",
            queue.queue,
            counted(queue.failed, "attempt"),
            queue.succeeded
        ),
        about: ProblemSubject::QueueFailures(queue.queue.to_owned()),
    })
}

fn dead_worker(worker: &Worker) -> Option<Problem> {
    let tasks = counted(worker.running, "running task");
    let message = format!("no heartbeat from worker {}, with {tasks}", worker.label());
    let age_seconds = worker.heartbeat_age_seconds;
    (!worker.alive).then(|| Problem::warning(age_seconds, message, ProblemSubject::Worker))
}

/// Reports an operation of a worker that has failed for some time, such as recording the end of a
/// task.
pub(crate) fn failing_worker(worker: &Worker) -> Option<Problem> {
    let age_seconds = worker.error_seconds.filter(|age| *age > LASTING_ERROR_SECONDS)?;
    let error = worker.error.as_deref()?;
    let message = format!("worker {} fails again and again: {error}", worker.label());
    worker.alive.then(|| Problem::critical(age_seconds, message, ProblemSubject::Worker))
}

/// Reports a running task that is blocked, or that has not stopped in spite of a cancel request.
fn stuck_task(task: &Running, now: Timestamp) -> Option<Problem> {
    let asked = task.cancel_requested_at.map(|at| age(now, at));
    let what = task.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let who = format!("task {}{what}", task.id);
    let about = ProblemSubject::Task(task.id);
    if let Some(seconds) = asked.filter(|age| *age > CANCEL_OVERDUE_SECONDS) {
        let message = format!("{who} is still running after a cancel request");
        return Some(Problem::critical(seconds, message, about));
    }
    let pids = Some(&task.blocked_by).filter(|pids| !pids.is_empty())?;
    let blockers = task.blockers.iter().filter_map(Value::as_array).flatten();
    let mut blockers: Vec<String> = blockers.map(describe_blocker).collect();
    if blockers.is_empty() {
        blockers = pids.iter().map(|pid| format!("backend {pid}")).collect();
    }
    let message = format!("{who} is blocked by {}", blockers.join("; "));
    Some(Problem::warning(age(now, task.started_at), message, about))
}

fn failed_outcomes(finished: &OutcomeCount, facts: &FleetFacts<'_>) -> Option<Problem> {
    let succeeded = facts.finished.iter().filter(|it| it.outcome == Outcome::Succeeded);
    let of_failures = Severity::of_failures(finished.tasks, succeeded.map(|it| it.tasks).sum());
    let (severity, how) = match finished.outcome {
        Outcome::Succeeded | Outcome::Cancelled | Outcome::Interrupted => return None,
        Outcome::Failed => (of_failures, "failed"),
        Outcome::TimedOut => (of_failures, "timed out"),
        Outcome::Lost => (Severity::Critical, "lost"),
        Outcome::Unknown => (Severity::Critical, "ended with an unknown outcome"),
    };
    Some(Problem {
        severity,
        age_seconds: age(facts.now, finished.first_at),
        message: format!("{} {how} in the last hour", counted(finished.tasks, "task")),
        about: ProblemSubject::Finished(finished.outcome),
    })
}

fn failed_runs(failed: &FailedRuns, now: Timestamp) -> Problem {
    let (run, whose) = (failed.run, failed.jobs.join(", "));
    let tasks = format!("{} of {}", counted(failed.failed, "failed task"), failed.tasks);
    let (message, about) = if failed.in_progress {
        (format!("run {run} of {whose} is in progress, with {tasks}"), ProblemSubject::Run(run))
    } else if failed.runs > 1 {
        let runs = counted(failed.runs, "run");
        let message =
            format!("{runs} of {whose} have failed within a day, the latest is run {run}");
        (message, ProblemSubject::Runs(failed.jobs.first().cloned().unwrap_or_default()))
    } else {
        (format!("run {run} of {whose} has failed, with {tasks}"), ProblemSubject::Run(run))
    };
    Problem::info(age(now, failed.at), message, about)
}

fn slow_task(task: &SlowTask) -> Problem {
    let how = slower(task.expected_seconds, task.p95_seconds);
    let message = format!("task {} ({}) {how}", task.id, task.name);
    Problem::warning(task.duration_seconds, message, ProblemSubject::Task(task.id))
}

fn slow_run(run: &SlowRun) -> Problem {
    let how = slower(run.expected_seconds, run.p95_seconds);
    let message = format!("run {} of {} {how}", run.id, run.jobs.join(", "));
    Problem::warning(run.duration_seconds, message, ProblemSubject::Run(run.id))
}

/// Describes a duration that exceeds the declared one, or else the usual one.
fn slower(expected_seconds: Option<f64>, p95_seconds: Option<f64>) -> String {
    match expected_seconds {
        Some(seconds) => format!("is slower than expected: {} are declared", span(seconds)),
        None => {
            let usual = span(p95_seconds.unwrap_or_default());
            format!("takes much longer than usual: p95 is {usual}")
        }
    }
}

/// Returns whether a late run is reported already.
fn is_late(run: &SlowRun, sources: &ProblemSources) -> bool {
    sources.late_runs.iter().any(|late| late.id == run.id)
}

/// Returns the schedule of a run, or else its jobs.
fn whose(schedule: Option<&str>, jobs: &[String]) -> String {
    schedule.map_or_else(|| jobs.join(", "), |name| format!("schedule {name}"))
}

fn approval(needed: &NeededApproval, now: Timestamp) -> Problem {
    let NeededApproval { run_id, task, .. } = needed;
    let whose = whose(needed.schedule.as_deref(), &needed.jobs);
    let note = needed.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
    let message = format!("task {task} of run {run_id} of {whose} waits for approval{note}");
    Problem::info(age(now, needed.since), message, ProblemSubject::Run(*run_id))
}

fn late_run(run: &LateRun) -> Problem {
    let whose = whose(run.schedule.as_deref(), &run.jobs);
    let late = span(run.late_seconds);
    let message = format!("run {} of {whose} is late: it missed its deadline {late} ago", run.id);
    Problem::warning(run.late_seconds, message, ProblemSubject::Run(run.id))
}

fn schedule(problem: &ScheduleProblem, now: Timestamp) -> Problem {
    let (name, message) = (&problem.subject, problem.message.as_deref().unwrap_or_default());
    let message = match problem.kind {
        ScheduleProblemKind::Missed => format!("schedule {name} missed fires: no tick in time"),
        // Without a message, the caller may not read it.
        ScheduleProblemKind::Error if message.is_empty() => {
            format!("schedule {name} does not fire")
        }
        ScheduleProblemKind::Error => format!("schedule {name} does not fire: {message}"),
        ScheduleProblemKind::NewTiming => {
            format!("the new timing of schedule {name} is not in force: {message}")
        }
        ScheduleProblemKind::Overdue => {
            format!("schedule {name} is due, and no worker has processed it")
        }
        ScheduleProblemKind::Late => {
            format!("a fire of schedule {name} is late: it waits for the run in progress")
        }
        ScheduleProblemKind::Declaration => format!(
            "the comment of {name} has an error at {message}; its schedules stay as they were"
        ),
    };
    let (age_seconds, about) = (age(now, problem.at), ProblemSubject::Schedule(name.clone()));
    match problem.kind {
        ScheduleProblemKind::Missed | ScheduleProblemKind::Overdue => {
            Problem::critical(age_seconds, message, about)
        }
        ScheduleProblemKind::Declaration => {
            Problem::warning(age_seconds, message, ProblemSubject::Declarations)
        }
        _ => Problem::warning(age_seconds, message, about),
    }
}

fn subscription(failing: &FailingSubscription, now: Timestamp) -> Problem {
    let name = &failing.name;
    let message = match (&failing.destination, &failing.last_error) {
        (Some(destination), _) if failing.unserved == Some(true) => {
            format!("no live worker has the destination {destination} of subscription {name}")
        }
        (_, Some(error)) => {
            format!("notifications of subscription {name} are not delivered: {error}")
        }
        (_, None) => format!(
            "{} of subscription {name} could not be delivered",
            counted(failing.dead, "notification")
        ),
    };
    Problem::warning(age(now, failing.at), message, ProblemSubject::Subscription(name.clone()))
}

fn restored_target(target: &RestoredTarget, now: Timestamp) -> Problem {
    let name = &target.name;
    let message = format!(
        "target {name} was restored to an earlier time: effects of tasks that have succeeded may be \
         missing"
    );
    Problem::critical(age(now, target.at), message, ProblemSubject::Target(name.clone()))
}

fn held_target(target: &HeldTarget) -> Problem {
    let HeldTarget { name, reason } = target;
    let message = format!("target {name} is held back: {reason}");
    Problem::info(0.0, message, ProblemSubject::HeldTarget(name.clone()))
}

/// Reports an old snapshot. The snapshots of running tasks are not reported, because they are
/// intended.
fn old_snapshot(holder: &HorizonHolder) -> Option<Problem> {
    let age_seconds = holder.age_seconds.filter(|age| *age > OLD_SNAPSHOT_SECONDS)?;
    let user = holder.user.as_ref().map_or_else(String::new, |user| format!(" of {user}"));
    let message = format!(
        "{} {}{user} holds an old snapshot: dead rows cannot be removed, and tables grow",
        holder.kind, holder.name
    );
    Some(Problem::warning(age_seconds, message, ProblemSubject::Snapshot))
}

#[cfg(test)]
pub(crate) mod tests;
