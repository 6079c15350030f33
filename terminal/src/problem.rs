//! What somebody should look at, the oldest first. Pure: facts in, problems out. Where to go on from
//! there (a screen, a command) says each program itself.

use jiff::Timestamp;
use queue::doctor::Holder;
use queue::history::OutcomeCount;
use queue::insight::trouble::{FailedRuns, Missed};
use queue::roster::Worker;
use queue::run::RunId;
use queue::show::Running;
use queue::{Outcome, TaskId};
use serde_json::Value;

use crate::attempt::value;
use crate::words::counted;

/// A worker sees a request to cancel at its next beat at the latest; this is longer than that.
const CANCEL_PATIENCE_SECONDS: f64 = 60.0;

/// A snapshot this old keeps dead rows of a busy queue from being removed for long enough to matter.
const OLD_SNAPSHOT_SECONDS: f64 = 15.0 * 60.0;

/// Something that somebody should look at.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// How long it has lasted.
    pub age_seconds: f64,
    /// What is wrong, in one sentence.
    pub message: String,
    /// With what.
    pub about: About,
}

/// What a problem is with.
#[derive(Clone, Debug, PartialEq)]
pub enum About {
    /// A queue that is paused.
    Paused(String),
    /// A queue that no worker claims from.
    Unserved(String),
    /// A queue whose attempts fail.
    Failing(String),
    /// Tasks that ended so.
    Ended(Outcome),
    /// A worker.
    Worker,
    /// A task that runs.
    Task(TaskId),
    /// A run.
    Run(RunId),
    /// More than one run of this job.
    Runs(String),
    /// A schedule.
    Schedule(String),
    /// An old snapshot.
    Snapshot,
}

/// Pending tasks of a queue.
#[derive(Clone, Debug)]
pub struct Waiting<'a> {
    /// Which.
    pub queue: &'a str,
    /// Nothing of it is claimed.
    pub paused: bool,
    /// In words: `3 pending tasks`.
    pub pending: String,
    /// Since when the first of them waits.
    pub oldest_seconds: f64,
}

/// Attempts of a queue that failed in the last hour.
#[derive(Clone, Debug)]
pub struct Failing<'a> {
    /// Which.
    pub queue: &'a str,
    /// So many.
    pub failed: i64,
    /// Beside so many that did not.
    pub succeeded: i64,
}

/// What problems are seen in. Failures are known by queue or by outcome.
#[derive(Clone, Debug)]
pub struct Evidence<'a> {
    /// By the database's clock.
    pub now: Timestamp,
    /// Queues with pending tasks.
    pub waiting: Vec<Waiting<'a>>,
    /// Every worker.
    pub workers: &'a [Worker],
    /// Every task that runs.
    pub running: &'a [Running],
    /// Queues with attempts that failed.
    pub failing: Vec<Failing<'a>>,
    /// How tasks ended in the last hour.
    pub ended: &'a [OutcomeCount],
    /// Runs that failed.
    pub runs: &'a [FailedRuns],
    /// Schedules that nobody ticked in time.
    pub missed: &'a [Missed],
    /// Who keeps dead rows.
    pub horizon: &'a [Holder],
}

/// All of them, the oldest first.
#[must_use]
pub fn problems(evidence: &Evidence<'_>) -> Vec<Problem> {
    let (now, workers) = (evidence.now, evidence.workers);
    let mut problems: Vec<Problem> = evidence
        .waiting
        .iter()
        .filter_map(|queue| waiting(queue, workers))
        .chain(evidence.failing.iter().filter_map(failing))
        .chain(workers.iter().filter_map(silent))
        .chain(evidence.running.iter().filter_map(|task| stuck(task, now)))
        .chain(evidence.ended.iter().filter_map(|ended| ended_badly(ended, now)))
        .chain(evidence.runs.iter().map(|failed| failed_runs(failed, now)))
        .chain(evidence.missed.iter().map(|missed| missed_fires(missed, now)))
        .chain(evidence.horizon.iter().filter_map(old_snapshot).take(1))
        .collect();
    problems.sort_by(|a, b| b.age_seconds.total_cmp(&a.age_seconds));
    problems
}

/// A backend that holds what a task waits for, by what it runs.
#[must_use]
pub fn who_blocks(blocker: &Value) -> String {
    let text = |key: &str| blocker.get(key).map(value).filter(|text| !text.is_empty());
    let backend = format!("backend {}", text("pid").unwrap_or_default());
    let what: Vec<String> = match text("task") {
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

/// Tasks that nobody is going to claim.
fn waiting(queue: &Waiting<'_>, workers: &[Worker]) -> Option<Problem> {
    let name = queue.queue;
    let mut serving = workers.iter().filter(|worker| worker.serves(name)).peekable();
    let (why, about) = if queue.paused {
        ("is paused", About::Paused(name.to_owned()))
    } else if serving.peek().is_none() {
        ("is served by no live worker", About::Unserved(name.to_owned()))
    } else if serving.all(|worker| worker.draining) {
        ("is served by draining workers only", About::Unserved(name.to_owned()))
    } else {
        return None;
    };
    let message = format!("queue {name} {why}, with {}", queue.pending);
    Some(Problem { age_seconds: queue.oldest_seconds, message, about })
}

fn failing(queue: &Failing<'_>) -> Option<Problem> {
    (queue.failed > 0).then(|| Problem {
        age_seconds: 0.0,
        message: format!(
            "queue {}: {} failed in the last hour, {} succeeded",
            queue.queue,
            counted(queue.failed, "attempt"),
            queue.succeeded
        ),
        about: About::Failing(queue.queue.to_owned()),
    })
}

fn silent(worker: &Worker) -> Option<Problem> {
    (!worker.alive).then(|| Problem {
        age_seconds: worker.beat_age_seconds,
        message: format!(
            "worker {} gives no sign of life, with {}",
            worker.place(),
            counted(worker.running, "running task")
        ),
        about: About::Worker,
    })
}

/// A running task that cannot go on, or does not want to end.
fn stuck(task: &Running, now: Timestamp) -> Option<Problem> {
    let asked = task.cancel_requested_at.map(|at| age(now, at));
    let what = task.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let who = format!("task {}{what}", task.id);
    let (age_seconds, message) = match asked.filter(|age| *age > CANCEL_PATIENCE_SECONDS) {
        Some(seconds) => (seconds, format!("{who} still runs after somebody cancelled it")),
        None if task.blocked_by.is_empty() => return None,
        None => {
            let blockers = task.blockers.iter().filter_map(Value::as_array).flatten();
            let mut blockers: Vec<String> = blockers.map(who_blocks).collect();
            if blockers.is_empty() {
                blockers = task.blocked_by.iter().map(|pid| format!("backend {pid}")).collect();
            }
            let message = format!("{who} is blocked by {}", blockers.join("; "));
            (age(now, task.started_at), message)
        }
    };
    Some(Problem { age_seconds, message, about: About::Task(task.id) })
}

fn ended_badly(ended: &OutcomeCount, now: Timestamp) -> Option<Problem> {
    let how = match ended.outcome {
        Outcome::Succeeded | Outcome::Cancelled => return None,
        Outcome::Failed => "failed",
        Outcome::TimedOut => "ran into their timeout",
        Outcome::Lost => "were lost with their workers",
        Outcome::Unknown => "ended unseen, and wait for a decision",
    };
    Some(Problem {
        age_seconds: age(now, ended.last_at),
        message: format!("{} {how} in the last hour", counted(ended.tasks, "task")),
        about: About::Ended(ended.outcome),
    })
}

fn failed_runs(failed: &FailedRuns, now: Timestamp) -> Problem {
    let (run, whose) = (failed.run, failed.jobs.join(", "));
    let tasks = format!("{} of {}", counted(failed.failed, "failed task"), failed.tasks);
    let (message, about) = if failed.goes_on {
        (format!("run {run} of {whose} goes on, with {tasks}"), About::Run(run))
    } else if failed.runs > 1 {
        let runs = counted(failed.runs, "run");
        let message = format!("{runs} of {whose} have failed within a day, the last is run {run}");
        (message, About::Runs(failed.jobs.first().cloned().unwrap_or_default()))
    } else {
        (format!("run {run} of {whose} has failed, with {tasks}"), About::Run(run))
    };
    Problem { age_seconds: age(now, failed.at), message, about }
}

fn missed_fires(missed: &Missed, now: Timestamp) -> Problem {
    Problem {
        age_seconds: age(now, missed.last_at),
        message: format!("schedule {} missed fires: nobody ticked in time", missed.schedule),
        about: About::Schedule(missed.schedule.clone()),
    }
}

/// Tasks that run are such holders, too, and meant to be.
fn old_snapshot(holder: &Holder) -> Option<Problem> {
    let age_seconds = holder.age_seconds.filter(|age| *age > OLD_SNAPSHOT_SECONDS)?;
    let user = holder.user.as_ref().map_or_else(String::new, |user| format!(" of {user}"));
    Some(Problem {
        age_seconds,
        message: format!(
            "{} {}{user} holds an old snapshot: dead rows stay, and tables grow",
            holder.kind, holder.name
        ),
        about: About::Snapshot,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> Timestamp {
        format!("2026-12-01T{time}Z").parse().unwrap()
    }

    fn evidence() -> Evidence<'static> {
        Evidence {
            now: at("03:00:00"),
            waiting: Vec::new(),
            workers: &[],
            running: &[],
            failing: Vec::new(),
            ended: &[],
            runs: &[],
            missed: &[],
            horizon: &[],
        }
    }

    fn told(evidence: &Evidence<'_>) -> Vec<(String, About)> {
        problems(evidence).into_iter().map(|it| (it.message, it.about)).collect()
    }

    fn failed(runs: i64, goes_on: bool, time: &str) -> FailedRuns {
        let jobs = vec!["nightly".to_owned(), "sunday".to_owned()];
        FailedRuns { jobs, runs, run: RunId(12), goes_on, failed: 1, tasks: 5, at: at(time) }
    }

    #[test]
    fn the_oldest_problem_stands_first() {
        let waiting = |queue, paused, oldest_seconds| Waiting {
            queue,
            paused,
            pending: "3 pending tasks".to_owned(),
            oldest_seconds,
        };
        let ended = [OutcomeCount {
            outcome: Outcome::Failed,
            tasks: 1,
            last_at: at("02:58:00"),
            run_p95_seconds: None,
        }];
        let evidence = Evidence {
            waiting: vec![waiting("etl", true, 60.0), waiting("mail", false, 600.0)],
            ended: &ended,
            ..evidence()
        };
        let unserved = "queue mail is served by no live worker, with 3 pending tasks".to_owned();
        assert_eq!(
            told(&evidence),
            [
                (unserved, About::Unserved("mail".to_owned())),
                ("1 task failed in the last hour".to_owned(), About::Ended(Outcome::Failed)),
                (
                    "queue etl is paused, with 3 pending tasks".to_owned(),
                    About::Paused("etl".to_owned())
                ),
            ]
        );
    }

    #[test]
    fn a_failed_run_is_told_apart_from_many_and_from_one_that_goes_on() {
        let runs = [
            failed(1, false, "02:00:00"),
            failed(3, false, "02:10:00"),
            failed(1, true, "02:20:00"),
        ];
        let evidence = Evidence { runs: &runs, ..evidence() };
        let (one, job) = (About::Run(RunId(12)), About::Runs("nightly".to_owned()));
        assert_eq!(
            told(&evidence),
            [
                (
                    "run 12 of nightly, sunday has failed, with 1 failed task of 5".to_owned(),
                    one.clone()
                ),
                (
                    "3 runs of nightly, sunday have failed within a day, the last is run 12"
                        .to_owned(),
                    job
                ),
                ("run 12 of nightly, sunday goes on, with 1 failed task of 5".to_owned(), one),
            ]
        );
    }

    #[test]
    fn who_blocks_is_a_task_or_a_session_with_its_user() {
        let task = serde_json::json!({"pid": 7, "task": 4, "name": "load", "user": "etl"});
        assert_eq!(who_blocks(&task), "backend 7: task 4 (load)");
        let session =
            serde_json::json!({"pid": 7, "application": "psql", "user": "ann", "state": "idle"});
        assert_eq!(who_blocks(&session), "backend 7: psql, user ann, idle");
        assert_eq!(who_blocks(&serde_json::json!({"pid": 7})), "backend 7");
    }
}
