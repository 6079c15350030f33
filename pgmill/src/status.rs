//! `pgmill status`: one screen, the oldest problem first.

use std::time::Duration;

use jiff::Timestamp;
use queue::backlog::{self, QueueStatus};
use queue::history::{self, OutcomeCount};
use queue::roster::{self, Worker};
use queue::show::{self, Running};
use queue::{Outcome, QueueError, exit};
use serde::Serialize;
use serde_json::{Value, json};
use terminal::visible;
use tokio_postgres::Client;

use crate::failure::Failure;
use crate::output::{Field, Output, Tone};
use crate::show::who_blocks;
use crate::words::{counted, outcome_tone, span};
use crate::{queues, worker};

/// Of this much time the ends of tasks are counted.
pub(crate) const LAST: Duration = Duration::from_secs(60 * 60);

/// A worker sees a request to cancel at its next beat at the latest; this is longer than that.
const CANCEL_PATIENCE_SECONDS: f64 = 60.0;

/// Something that somebody should look at.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Problem {
    /// How long it has lasted.
    pub(crate) age_seconds: f64,
    pub(crate) message: String,
    /// A command that shows more or mends it.
    next: String,
}

/// What the screen is made of.
pub(crate) struct Scene {
    pub(crate) now: Timestamp,
    pub(crate) queues: Vec<QueueStatus>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) running: Vec<Running>,
    /// Within [`LAST`].
    pub(crate) ended: Vec<OutcomeCount>,
}

impl Scene {
    /// Looks at everything but how tasks ended, which takes longest.
    ///
    /// # Errors
    /// Database trouble.
    pub(crate) async fn look(
        client: &Client,
        ended: Vec<OutcomeCount>,
    ) -> Result<Self, QueueError> {
        Ok(Self {
            now: show::now(client).await?,
            queues: backlog::queues(client).await?,
            workers: roster::workers(client).await?,
            running: show::running(client, None).await?,
            ended,
        })
    }
}

/// Prints the screen. What it finds does not change the exit code: `pgmill doctor` is for that.
///
/// # Errors
/// Database trouble.
pub(crate) async fn run(client: &Client, out: &Output) -> Result<u8, Failure> {
    let scene = Scene::look(client, history::outcomes(client, LAST).await?).await?;
    let problems = problems(&scene);
    if out.json {
        out.document(&json!({
            "problems": problems, "queues": scene.queues, "workers": scene.workers,
            "ended_last_hour": scene.ended,
        }))?;
    } else {
        out.text(&screen(out, &scene, &problems))?;
    }
    Ok(exit::OK)
}

/// What somebody should look at, the oldest first.
pub(crate) fn problems(scene: &Scene) -> Vec<Problem> {
    let mut problems: Vec<Problem> = scene
        .queues
        .iter()
        .filter_map(|queue| waiting(queue, &scene.workers))
        .chain(scene.workers.iter().filter_map(silent))
        .chain(scene.running.iter().filter_map(|task| stuck(task, scene.now)))
        .chain(scene.ended.iter().filter_map(|ended| ended_badly(ended, scene.now)))
        .collect();
    problems.sort_by(|a, b| b.age_seconds.total_cmp(&a.age_seconds));
    problems
}

/// Tasks that nobody is going to claim.
fn waiting(queue: &QueueStatus, workers: &[Worker]) -> Option<Problem> {
    let age_seconds = queue.oldest_pending_seconds?;
    let name = &queue.queue;
    let pending = counted(queue.pending, "pending task");
    let serving: Vec<&Worker> = workers.iter().filter(|worker| worker.serves(name)).collect();
    let (why, next) = if queue.paused {
        ("is paused", format!("pgmill queue resume {name}"))
    } else if serving.is_empty() {
        ("is served by no live worker", "pgmill worker list".to_owned())
    } else if serving.iter().all(|worker| worker.draining) {
        ("is served by draining workers only", "pgmill worker list".to_owned())
    } else {
        return None;
    };
    Some(Problem { age_seconds, message: format!("queue {name} {why}, with {pending}"), next })
}

fn silent(worker: &Worker) -> Option<Problem> {
    (!worker.alive).then(|| Problem {
        age_seconds: worker.beat_age_seconds,
        message: format!(
            "worker {} gives no sign of life, with {}",
            worker.place(),
            counted(worker.running, "running task")
        ),
        next: "pgmill worker list".to_owned(),
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
        let blockers = task.blockers.iter().filter_map(Value::as_array).flatten();
        let blockers: Vec<String> = blockers.map(who_blocks).collect();
        let message = format!("task {}{what} is blocked by {}", task.id, blockers.join("; "));
        (age(task.started_at), message)
    };
    Some(Problem { age_seconds, message, next: format!("pgmill task show {}", task.id) })
}

fn ended_badly(ended: &OutcomeCount, now: Timestamp) -> Option<Problem> {
    let word = ended.outcome.as_str();
    let how = match ended.outcome {
        Outcome::Succeeded | Outcome::Cancelled => return None,
        Outcome::Failed => "failed",
        Outcome::TimedOut => "ran into their timeout",
        Outcome::Lost => "were lost with their workers",
        Outcome::Unknown => "ended unseen, and wait for a decision",
    };
    Some(Problem {
        age_seconds: now.duration_since(ended.last_at).as_secs_f64().max(0.0),
        message: format!("{} {how} in the last hour", counted(ended.tasks, "task")),
        next: format!("pgmill task list --outcome {word} --since 1h"),
    })
}

fn screen(out: &Output, scene: &Scene, problems: &[Problem]) -> String {
    let mut parts = Vec::new();
    if problems.is_empty() {
        parts.push(out.paint("no problem", Tone::Good));
    } else {
        let row = |problem: &Problem| {
            vec![
                Field::new(span(problem.age_seconds)),
                Field::new(&problem.message).tone(Tone::Bad),
                Field::new(&problem.next),
            ]
        };
        let rows = problems.iter().map(row).collect();
        parts.push(out.table(&["since", "problem", "next"], rows));
    }
    parts.push(if scene.queues.is_empty() {
        "no live tasks".to_owned()
    } else {
        queues::table(out, &scene.queues)
    });
    parts.push(if scene.workers.is_empty() {
        "no worker is registered".to_owned()
    } else {
        format!("{}\n\n{}", fleet(&scene.workers), worker::table(out, &scene.workers))
    });
    parts.push(ended(out, &scene.ended));
    parts.join("\n\n")
}

/// How many workers there are, and how many of their readers are busy.
pub(crate) fn fleet(workers: &[Worker]) -> String {
    let alive: Vec<&Worker> = workers.iter().filter(|worker| worker.alive).collect();
    let readers: i64 = alive.iter().map(|worker| i64::from(worker.readers)).sum();
    let busy: i64 = alive.iter().map(|worker| worker.running.min(worker.readers.into())).sum();
    format!(
        "{} alive, {busy} of {} busy",
        counted(alive.len() as u64, "worker"),
        counted(readers, "reader")
    )
}

/// How the tasks of the last hour ended.
pub(crate) fn ended(out: &Output, ended: &[OutcomeCount]) -> String {
    if ended.is_empty() {
        return "no task ended in the last hour".to_owned();
    }
    let counts: Vec<String> = ended
        .iter()
        .map(|ended| {
            let word = out.paint(&visible(ended.outcome.as_str()), outcome_tone(ended.outcome));
            let p95 = ended.run_p95_seconds.map(|seconds| format!(" (p95 {})", span(seconds)));
            format!("{} {word}{}", ended.tasks, p95.unwrap_or_default())
        })
        .collect();
    format!("ended in the last hour: {}", counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, paused: bool, oldest: f64) -> QueueStatus {
        QueueStatus {
            queue: name.to_owned(),
            paused,
            pending: 3,
            running: 0,
            scheduled: 0,
            blocked: 0,
            oldest_pending_seconds: Some(oldest),
            longest_running_seconds: None,
            shared_commit_seconds: None,
            max_running: None,
            rate: None,
        }
    }

    #[test]
    fn the_oldest_problem_stands_first() {
        let now: Timestamp = "2026-12-01T03:00:00Z".parse().unwrap();
        let failed = OutcomeCount {
            outcome: Outcome::Failed,
            tasks: 1,
            last_at: "2026-12-01T02:58:00Z".parse().unwrap(),
            run_p95_seconds: None,
        };
        let scene = Scene {
            now,
            queues: vec![queue("etl", true, 60.0), queue("mail", false, 600.0)],
            workers: Vec::new(),
            running: Vec::new(),
            ended: vec![failed],
        };
        let told: Vec<String> = problems(&scene).into_iter().map(|it| it.message).collect();
        assert_eq!(
            told,
            [
                "queue mail is served by no live worker, with 3 pending tasks",
                "1 task failed in the last hour",
                "queue etl is paused, with 3 pending tasks",
            ]
        );
    }
}
