//! What somebody should look at, the oldest first.

use jiff::Timestamp;
use queue::doctor::Holder;
use queue::insight::trouble::Missed;
use queue::roster::Worker;
use queue::show::Running;
use serde::Serialize;

use super::fill::{Fleet, QueueFill};
use crate::words::{counted, encoded, tasks_path};

/// A worker sees a request to cancel at its next beat at the latest; this is longer than that.
const CANCEL_PATIENCE_SECONDS: f64 = 60.0;

/// A snapshot this old keeps dead rows of a busy queue from being removed for long enough to matter.
const OLD_SNAPSHOT_SECONDS: f64 = 15.0 * 60.0;

/// Something that somebody should look at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Problem {
    /// How long it has lasted; of failures: since the last one.
    pub(crate) age_seconds: f64,
    pub(crate) message: String,
    /// Path of a screen that shows more.
    pub(crate) path: String,
}

/// What problems are seen in.
pub(crate) struct Evidence<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) queues: &'a [QueueFill],
    pub(crate) running: &'a [Running],
    pub(crate) missed: &'a [Missed],
    pub(crate) horizon: &'a [Holder],
}

/// All of them.
pub(crate) fn problems(evidence: &Evidence<'_>) -> Vec<Problem> {
    let now = evidence.fleet.now;
    let workers = &evidence.fleet.workers;
    let mut problems: Vec<Problem> = evidence
        .queues
        .iter()
        .filter_map(|queue| waiting(queue, workers))
        .chain(evidence.queues.iter().filter_map(failing))
        .chain(workers.iter().filter_map(silent))
        .chain(evidence.running.iter().filter_map(|task| stuck(task, now)))
        .chain(evidence.missed.iter().map(|missed| missed_fires(missed, now)))
        .chain(evidence.horizon.iter().filter_map(old_snapshot).take(1))
        .collect();
    problems.sort_by(|a, b| b.age_seconds.total_cmp(&a.age_seconds));
    problems
}

/// Tasks that nobody is going to claim.
fn waiting(queue: &QueueFill, workers: &[Worker]) -> Option<Problem> {
    let age_seconds = queue.oldest_seconds?;
    let name = &queue.queue;
    let mut serving = workers.iter().filter(|worker| worker.serves(name)).peekable();
    let why = if queue.set.paused {
        "is paused"
    } else if serving.peek().is_none() {
        "is served by no live worker"
    } else if serving.all(|worker| worker.draining) {
        "is served by draining workers only"
    } else {
        return None;
    };
    let message = format!("queue {name} {why}, with {} pending", queue.pending.shown());
    let filter = format!("queue:\"{name}\" state:pending");
    Some(Problem { age_seconds, message, path: tasks_path("", &filter) })
}

fn failing(queue: &QueueFill) -> Option<Problem> {
    (queue.hour.failed > 0).then(|| Problem {
        age_seconds: 0.0,
        message: format!(
            "queue {}: {} failed in the last hour, {} succeeded",
            queue.queue,
            counted(queue.hour.failed, "attempt"),
            crate::words::count(queue.hour.succeeded, false)
        ),
        path: format!("/failures?queue={}", encoded(&queue.queue)),
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
        path: "/workers".to_owned(),
    })
}

/// A running task that cannot go on, or does not want to end.
fn stuck(task: &Running, now: Timestamp) -> Option<Problem> {
    let age = |time| now.duration_since(time).as_secs_f64();
    let asked = task.cancel_requested_at.map(age).filter(|age| *age > CANCEL_PATIENCE_SECONDS);
    let what = task.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let (age_seconds, message) = if let Some(seconds) = asked {
        (seconds, format!("task {}{what} still runs after somebody cancelled it", task.id))
    } else if task.blocked_by.is_empty() {
        return None;
    } else {
        let pids: Vec<String> = task.blocked_by.iter().map(ToString::to_string).collect();
        let message = format!("task {}{what} is blocked by backend {}", task.id, pids.join(", "));
        (age(task.started_at), message)
    };
    Some(Problem { age_seconds, message, path: format!("/tasks/{}", task.id) })
}

fn missed_fires(missed: &Missed, now: Timestamp) -> Problem {
    Problem {
        age_seconds: now.duration_since(missed.last_at).as_secs_f64(),
        message: format!("schedule {} missed fires: nobody ticked in time", missed.schedule),
        path: format!("/schedules/one?name={}", encoded(&missed.schedule)),
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
        path: "/database".to_owned(),
    })
}
