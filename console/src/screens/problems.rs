//! What somebody should look at, the oldest first, each with the screen to go on with.

use queue::doctor::Holder;
use queue::insight::trouble::{FailedRuns, Missed};
use queue::show::Running;
use serde::Serialize;
use terminal::problem::{self, About, Failing, Waiting};

use super::fill::{Fleet, QueueFill};
use crate::words::{encoded, tasks_path};

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
    pub(crate) runs: &'a [FailedRuns],
    pub(crate) missed: &'a [Missed],
    pub(crate) horizon: &'a [Holder],
}

/// All of them.
pub(crate) fn problems(evidence: &Evidence<'_>) -> Vec<Problem> {
    let found = problem::problems(&problem::Evidence {
        now: evidence.fleet.now,
        waiting: evidence.queues.iter().filter_map(waiting).collect(),
        workers: &evidence.fleet.workers,
        running: evidence.running,
        failing: evidence.queues.iter().map(failing).collect(),
        ended: &[],
        runs: evidence.runs,
        missed: evidence.missed,
        horizon: evidence.horizon,
    });
    let told = |it: problem::Problem| Problem {
        age_seconds: it.age_seconds,
        message: it.message,
        path: path(&it.about),
    };
    found.into_iter().map(told).collect()
}

fn failing(queue: &QueueFill) -> Failing<'_> {
    let (failed, succeeded) = (queue.hour.failed, queue.hour.succeeded);
    Failing { queue: &queue.queue, failed, succeeded }
}

/// A queue whose next task waits.
fn waiting(queue: &QueueFill) -> Option<Waiting<'_>> {
    let one = queue.pending.count == 1 && !queue.pending.more;
    let pending = format!("{} pending task{}", queue.pending.shown(), if one { "" } else { "s" });
    let oldest_seconds = queue.oldest_seconds?;
    Some(Waiting { queue: &queue.queue, paused: queue.set.paused, pending, oldest_seconds })
}

/// Where it can be seen, and put right.
fn path(about: &About) -> String {
    match about {
        About::Paused(queue) => format!("/queues#queue-{}", encoded(queue)),
        About::Unserved(_) | About::Worker => "/workers".to_owned(),
        About::Failing(queue) => format!("/failures?queue={}", encoded(queue)),
        About::Ended(outcome) => tasks_path("", format!("state:{outcome} since:1h")),
        About::Task(id) => format!("/tasks/{id}"),
        About::Run(run) => format!("/runs/{run}"),
        About::Runs(job) => format!("/runs?state=failed&job={}", encoded(job)),
        About::Schedule(name) => format!("/schedules/one?name={}", encoded(name)),
        About::Snapshot => "/database".to_owned(),
    }
}
