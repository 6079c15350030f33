//! Problems that need attention, most severe first, each with the screen that shows more.

use health::problems::{self, ProblemSubject, QueueBacklog, QueueFailures, Severity};
use queue::insight::problems::ProblemSources;
use queue::task_queries::Running;

use super::queue_stats::{FleetSnapshot, LastHour, QueueStats};
use crate::filter::term;
use crate::page::format::{tasks_path, url_encode};
use crate::screens::prelude::*;

/// A problem that needs attention.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub(crate) struct Problem {
    pub(crate) severity: Severity,
    /// Age of the problem; for failures, the time since the first failure of the last hour.
    pub(crate) age_seconds: f64,
    pub(crate) message: String,
    /// Path of a screen that shows more.
    pub(crate) path: String,
}

/// Data in which problems are detected.
pub(crate) struct FleetFacts<'a> {
    pub(crate) fleet: &'a FleetSnapshot,
    pub(crate) queues: &'a [QueueStats],
    pub(crate) running: &'a [Running],
    pub(crate) sources: &'a ProblemSources,
}

/// Detects all problems.
pub(crate) fn problems(facts: &FleetFacts<'_>) -> Vec<Problem> {
    let found = problems::find_problems(&problems::FleetFacts {
        now: facts.fleet.now,
        waiting: facts.queues.iter().filter_map(waiting).collect(),
        workers: &facts.fleet.workers,
        running: facts.running,
        failing: facts.queues.iter().map(failing).collect(),
        finished: &[],
        sources: facts.sources,
    });
    let problem = |it: problems::Problem| Problem {
        severity: it.severity,
        age_seconds: it.age_seconds,
        message: it.message,
        path: path(&it.about),
    };
    found.into_iter().map(problem).collect()
}

fn failing(queue: &QueueStats) -> QueueFailures<'_> {
    let LastHour { failed, succeeded, failing_since, .. } = queue.hour;
    QueueFailures { queue: &queue.queue, failed, succeeded, failing_since }
}

/// Returns the backlog of a queue with pending tasks.
fn waiting(queue: &QueueStats) -> Option<QueueBacklog<'_>> {
    let one = queue.pending.count == 1 && !queue.pending.more;
    let pending = format!("{} pending task{}", queue.pending.display(), if one { "" } else { "s" });
    let oldest_seconds = queue.oldest_seconds?;
    Some(QueueBacklog {
        queue: &queue.queue,
        paused: queue.settings.paused,
        held_back: queue.settings.held_back.as_deref(),
        pending,
        oldest_seconds,
    })
}

/// Returns the path of the screen that shows the problem and where it can be fixed.
fn path(about: &ProblemSubject) -> String {
    match about {
        ProblemSubject::Backlog(queue) => tasks_path("", term("queue", queue)),
        // The readers may be busy with tasks of other queues.
        ProblemSubject::BusyReaders(_) => {
            format!("{}&sort=duration", tasks_path("", "state:running"))
        }
        ProblemSubject::HeldBack(queue) | ProblemSubject::Paused(queue) => {
            format!("/queues#queue-{}", url_encode(queue))
        }
        ProblemSubject::Unserved(_) | ProblemSubject::Worker => "/workers".to_owned(),
        ProblemSubject::QueueFailures(queue) => format!("/failures?queue={}", url_encode(queue)),
        ProblemSubject::Finished(outcome) => tasks_path("", format!("state:{outcome} since:1h")),
        ProblemSubject::Task(id) => format!("/tasks/{id}"),
        ProblemSubject::Run(run) => format!("/runs/{run}"),
        ProblemSubject::Runs(job) => format!("/runs?state=failed&job={}", url_encode(job)),
        ProblemSubject::Schedule(name) => format!("/schedules/detail?name={}", url_encode(name)),
        ProblemSubject::Limit(kind) => format!("/limits?kind={kind}&sort=wait"),
        ProblemSubject::Interruptions => {
            tasks_path("", format!("state:{} since:1h", Outcome::Interrupted))
        }
        ProblemSubject::FleetPause => "/queues".to_owned(),
        ProblemSubject::Declarations => "/schedules".to_owned(),
        ProblemSubject::Snapshot | ProblemSubject::Target(_) | ProblemSubject::HeldTarget(_) => {
            "/database".to_owned()
        }
        ProblemSubject::Subscription(_) => "/subscriptions".to_owned(),
    }
}
