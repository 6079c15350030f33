//! `pgmill status`: one screen, the oldest problem first.

use std::time::Duration;

use jiff::Timestamp;
use queue::backlog::{self, QueueStatus};
use queue::doctor::{self, Holder};
use queue::history::{self, OutcomeCount};
use queue::insight::trouble::{self, FailedRuns, Missed};
use queue::roster::{self, Worker};
use queue::show::{self, Running};
use queue::{QueueError, exit};
use serde::Serialize;
use serde_json::json;
use terminal::problem::{self, About, Evidence, Waiting};
use terminal::visible;
use tokio_postgres::Client;

use crate::failure::Failure;
use crate::output::{Field, Output, Tone};
use crate::words::{counted, outcome_tone, span};
use crate::{queues, worker};

/// Of this much time the ends of tasks are counted.
pub(crate) const LAST: Duration = Duration::from_secs(60 * 60);

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
    pub(crate) trouble: Trouble,
}

/// What is asked beside the lists of the screen.
#[derive(Default)]
pub(crate) struct Trouble {
    runs: Vec<FailedRuns>,
    missed: Vec<Missed>,
    horizon: Vec<Holder>,
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
            trouble: Trouble {
                runs: trouble::failed_runs(client).await?,
                missed: trouble::missed(client).await?,
                horizon: doctor::horizon(client).await?,
            },
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

/// What somebody should look at, the oldest first, and the command to go on with.
pub(crate) fn problems(scene: &Scene) -> Vec<Problem> {
    let found = problem::problems(&Evidence {
        now: scene.now,
        waiting: scene.queues.iter().filter_map(waiting).collect(),
        workers: &scene.workers,
        running: &scene.running,
        failing: Vec::new(),
        ended: &scene.ended,
        runs: &scene.trouble.runs,
        missed: &scene.trouble.missed,
        horizon: &scene.trouble.horizon,
    });
    let told = |it: problem::Problem| Problem {
        age_seconds: it.age_seconds,
        message: it.message,
        next: next(&it.about),
    };
    found.into_iter().map(told).collect()
}

fn waiting(status: &QueueStatus) -> Option<Waiting<'_>> {
    Some(Waiting {
        queue: &status.queue,
        paused: status.paused,
        pending: counted(status.pending, "pending task"),
        oldest_seconds: status.oldest_pending_seconds?,
    })
}

/// A command that shows more or mends it.
fn next(about: &About) -> String {
    match about {
        About::Paused(queue) => format!("pgmill queue resume {queue}"),
        About::Unserved(_) | About::Worker => "pgmill worker list".to_owned(),
        About::Failing(_) => "pgmill failures".to_owned(),
        About::Ended(outcome) => format!("pgmill task list --outcome {outcome} --since 1h"),
        About::Task(id) => format!("pgmill task show {id}"),
        About::Run(run) => format!("pgmill run show {run}"),
        About::Runs(_) => "pgmill run list --state failed".to_owned(),
        About::Schedule(_) => "pgmill schedule list".to_owned(),
        About::Snapshot => "pgmill doctor".to_owned(),
    }
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
