//! Finds problems that need attention, oldest first. Pure: facts in, problems out. Each program
//! adds the next step for its users, such as a page or a command.

use jiff::Timestamp;
use queue::RunId;
use queue::doctor::HorizonHolder;
use queue::history::OutcomeCount;
use queue::insight::problems::{FailedRuns, ScheduleProblem, ScheduleProblemKind, StoppedLimit};
use queue::task_queries::Running;
use queue::workers::Worker;
use queue::{LimitKind, Outcome, TaskId};
use serde_json::Value;
use terminal::{counted, value};

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
    /// Duration of the problem, in seconds.
    pub age_seconds: f64,
    /// Description in one sentence.
    pub message: String,
    /// Subject of the problem.
    pub about: ProblemSubject,
}

/// The subject of a problem.
#[derive(Clone, Debug, PartialEq)]
pub enum ProblemSubject {
    /// A queue that is paused.
    Paused(String),
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
}

/// Pending tasks of a queue.
#[derive(Clone, Debug)]
pub struct QueueBacklog<'a> {
    /// Name of the queue.
    pub queue: &'a str,
    /// Whether the queue is paused.
    pub paused: bool,
    /// Number of pending tasks, formatted: `3 pending tasks`.
    pub pending: String,
    /// Wait of the oldest pending task, in seconds.
    pub oldest_seconds: f64,
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
    /// Runs that failed.
    pub runs: &'a [FailedRuns],
    /// Limits that let no task start while tasks wait.
    pub stopped: &'a [StoppedLimit],
    /// Problems of schedules.
    pub schedules: &'a [ScheduleProblem],
    /// Holders of the oldest snapshots.
    pub horizon: &'a [HorizonHolder],
}

/// Returns all problems, oldest first.
#[must_use]
pub fn find_problems(facts: &FleetFacts<'_>) -> Vec<Problem> {
    let (now, workers) = (facts.now, facts.workers);
    let mut problems: Vec<Problem> = facts
        .waiting
        .iter()
        .filter_map(|queue| waiting(queue, workers))
        .chain(facts.failing.iter().filter_map(failing))
        .chain(workers.iter().filter_map(dead_worker))
        .chain(workers.iter().filter_map(failing_worker))
        .chain(facts.running.iter().filter_map(|task| stuck_task(task, now)))
        .chain(facts.finished.iter().filter_map(|finished| failed_outcomes(finished, now)))
        .chain(facts.runs.iter().map(|failed| failed_runs(failed, now)))
        .chain(facts.stopped.iter().map(|it| stopped_limit(it, now)))
        .chain(facts.schedules.iter().map(|it| schedule(it, now)))
        .chain(facts.horizon.iter().filter_map(old_snapshot).take(1))
        .collect();
    problems.sort_by(|a, b| b.age_seconds.total_cmp(&a.age_seconds));
    problems
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

/// Reports pending tasks that no worker will claim.
fn waiting(queue: &QueueBacklog<'_>, workers: &[Worker]) -> Option<Problem> {
    let name = queue.queue;
    let mut serving = workers.iter().filter(|worker| worker.serves(name)).peekable();
    let (why, about) = if queue.paused {
        ("is paused", ProblemSubject::Paused(name.to_owned()))
    } else if serving.peek().is_none() {
        ("has no live worker", ProblemSubject::Unserved(name.to_owned()))
    } else if serving.all(|worker| worker.draining) {
        ("has only draining workers", ProblemSubject::Unserved(name.to_owned()))
    } else {
        return None;
    };
    let message = format!("queue {name} {why}, with {}", queue.pending);
    Some(Problem { age_seconds: queue.oldest_seconds, message, about })
}

fn failing(queue: &QueueFailures<'_>) -> Option<Problem> {
    (queue.failed > 0).then(|| Problem {
        age_seconds: 0.0,
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
    (!worker.alive).then(|| Problem {
        age_seconds: worker.heartbeat_age_seconds,
        message: format!(
            "no heartbeat from worker {}, with {}",
            worker.label(),
            counted(worker.running, "running task")
        ),
        about: ProblemSubject::Worker,
    })
}

/// Reports an operation of a worker that has failed for some time, such as recording the end of a
/// task.
fn failing_worker(worker: &Worker) -> Option<Problem> {
    let age_seconds = worker.error_seconds.filter(|age| *age > LASTING_ERROR_SECONDS)?;
    let error = worker.error.as_deref()?;
    let message = format!("worker {} fails again and again: {error}", worker.label());
    worker.alive.then_some(Problem { age_seconds, message, about: ProblemSubject::Worker })
}

/// Reports a running task that is blocked, or that has not stopped in spite of a cancel request.
fn stuck_task(task: &Running, now: Timestamp) -> Option<Problem> {
    let asked = task.cancel_requested_at.map(|at| age(now, at));
    let what = task.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let who = format!("task {}{what}", task.id);
    let (age_seconds, message) = match asked.filter(|age| *age > CANCEL_OVERDUE_SECONDS) {
        Some(seconds) => (seconds, format!("{who} is still running after a cancel request")),
        None if task.blocked_by.is_empty() => return None,
        None => {
            let blockers = task.blockers.iter().filter_map(Value::as_array).flatten();
            let mut blockers: Vec<String> = blockers.map(describe_blocker).collect();
            if blockers.is_empty() {
                blockers = task.blocked_by.iter().map(|pid| format!("backend {pid}")).collect();
            }
            let message = format!("{who} is blocked by {}", blockers.join("; "));
            (age(now, task.started_at), message)
        }
    };
    Some(Problem { age_seconds, message, about: ProblemSubject::Task(task.id) })
}

fn failed_outcomes(finished: &OutcomeCount, now: Timestamp) -> Option<Problem> {
    let how = match finished.outcome {
        Outcome::Succeeded | Outcome::Cancelled => return None,
        Outcome::Failed => "failed",
        Outcome::TimedOut => "timed out",
        Outcome::Lost => "lost",
        Outcome::Unknown => "ended with an unknown outcome",
    };
    Some(Problem {
        age_seconds: age(now, finished.first_at),
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
    Problem { age_seconds: age(now, failed.at), message, about }
}

fn stopped_limit(limit: &StoppedLimit, now: Timestamp) -> Problem {
    let what = match limit.kind {
        LimitKind::Group => "group",
        LimitKind::Key => "concurrency key",
        LimitKind::Queue => "queue",
    };
    Problem {
        age_seconds: age(now, limit.since),
        message: format!("{what} {} has max_running 0, and tasks wait", limit.name),
        about: ProblemSubject::Limit(limit.kind),
    }
}

fn schedule(problem: &ScheduleProblem, now: Timestamp) -> Problem {
    let (name, message) = (&problem.subject, problem.message.as_deref().unwrap_or_default());
    let message = match problem.kind {
        ScheduleProblemKind::Missed => format!("schedule {name} missed fires: no tick in time"),
        ScheduleProblemKind::Error => format!("schedule {name} does not fire: {message}"),
        ScheduleProblemKind::NewTiming => {
            format!("the new timing of schedule {name} is not in force: {message}")
        }
        ScheduleProblemKind::Overdue => {
            format!("schedule {name} is due, and no worker has processed it")
        }
        ScheduleProblemKind::Declaration => format!(
            "the comment of {name} has an error at {message}; its schedules stay as they were"
        ),
    };
    let about = match problem.kind {
        ScheduleProblemKind::Declaration => ProblemSubject::Declarations,
        _ => ProblemSubject::Schedule(name.clone()),
    };
    Problem { age_seconds: age(now, problem.at), message, about }
}

/// Reports an old snapshot. The snapshots of running tasks are not reported, because they are
/// intended.
fn old_snapshot(holder: &HorizonHolder) -> Option<Problem> {
    let age_seconds = holder.age_seconds.filter(|age| *age > OLD_SNAPSHOT_SECONDS)?;
    let user = holder.user.as_ref().map_or_else(String::new, |user| format!(" of {user}"));
    Some(Problem {
        age_seconds,
        message: format!(
            "{} {}{user} holds an old snapshot: dead rows cannot be removed, and tables grow",
            holder.kind, holder.name
        ),
        about: ProblemSubject::Snapshot,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> Timestamp {
        format!("2026-12-01T{time}Z").parse().unwrap()
    }

    fn facts() -> FleetFacts<'static> {
        FleetFacts {
            now: at("03:00:00"),
            waiting: Vec::new(),
            workers: &[],
            running: &[],
            failing: Vec::new(),
            finished: &[],
            runs: &[],
            stopped: &[],
            schedules: &[],
            horizon: &[],
        }
    }

    fn found(facts: &FleetFacts<'_>) -> Vec<(String, ProblemSubject)> {
        find_problems(facts).into_iter().map(|it| (it.message, it.about)).collect()
    }

    fn failed(runs: i64, in_progress: bool, time: &str) -> FailedRuns {
        let jobs = vec!["nightly".to_owned(), "sunday".to_owned()];
        FailedRuns { jobs, runs, run: RunId(12), in_progress, failed: 1, tasks: 5, at: at(time) }
    }

    #[test]
    fn the_oldest_problem_is_first() {
        let waiting = |queue, paused, oldest_seconds| QueueBacklog {
            queue,
            paused,
            pending: "3 pending tasks".to_owned(),
            oldest_seconds,
        };
        let finished = [OutcomeCount {
            outcome: Outcome::Failed,
            tasks: 1,
            first_at: at("02:58:00"),
            last_at: at("02:59:00"),
            duration_p95_seconds: None,
        }];
        let facts = FleetFacts {
            waiting: vec![waiting("etl", true, 60.0), waiting("mail", false, 600.0)],
            finished: &finished,
            ..facts()
        };
        let unserved = "queue mail has no live worker, with 3 pending tasks".to_owned();
        assert_eq!(
            found(&facts),
            [
                (unserved, ProblemSubject::Unserved("mail".to_owned())),
                (
                    "1 task failed in the last hour".to_owned(),
                    ProblemSubject::Finished(Outcome::Failed)
                ),
                (
                    "queue etl is paused, with 3 pending tasks".to_owned(),
                    ProblemSubject::Paused("etl".to_owned())
                ),
            ]
        );
    }

    #[test]
    fn one_failed_run_several_and_one_in_progress_have_different_messages() {
        let runs = [
            failed(1, false, "02:00:00"),
            failed(3, false, "02:10:00"),
            failed(1, true, "02:20:00"),
        ];
        let facts = FleetFacts { runs: &runs, ..facts() };
        let (one, job) =
            (ProblemSubject::Run(RunId(12)), ProblemSubject::Runs("nightly".to_owned()));
        assert_eq!(
            found(&facts),
            [
                (
                    "run 12 of nightly, sunday has failed, with 1 failed task of 5".to_owned(),
                    one.clone()
                ),
                (
                    "3 runs of nightly, sunday have failed within a day, the latest is run 12"
                        .to_owned(),
                    job
                ),
                (
                    "run 12 of nightly, sunday is in progress, with 1 failed task of 5".to_owned(),
                    one
                ),
            ]
        );
    }

    #[test]
    fn a_blocker_is_described_by_its_task_or_its_session() {
        let task = serde_json::json!({"pid": 7, "task_id": 4, "name": "load", "user": "etl"});
        assert_eq!(describe_blocker(&task), "backend 7: task 4 (load)");
        let session =
            serde_json::json!({"pid": 7, "application": "psql", "user": "ann", "state": "idle"});
        assert_eq!(describe_blocker(&session), "backend 7: psql, user ann, idle");
        assert_eq!(describe_blocker(&serde_json::json!({"pid": 7})), "backend 7");
    }
}
