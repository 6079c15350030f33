//! Status of a task: state and its reason, attempts and blockers, and the panel that shows them.

use queue::attempt::{self, Attempt};
use queue::task_queries::{self, Running, Task};

use super::timeline::{Timeline, timeline};
use crate::screens::prelude::*;

/// Status of a task, without duration history and plan.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct TaskStatus {
    pub(crate) task: Task,
    pub(crate) why: Option<String>,
    pub(crate) running: Option<Running>,
    pub(crate) blockers: Vec<Blocker>,
    pub(crate) attempts: Vec<Attempt>,
}

/// A session that holds a lock that the task waits for, from `mill.running`.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub(crate) struct Blocker {
    pid: i32,
    user: Option<String>,
    application: Option<String>,
    state: Option<String>,
    transaction_started_at: Option<Timestamp>,
    /// The task that the session runs, if any.
    task_id: Option<i64>,
    name: Option<String>,
}

/// The part of the page that changes while the task is live.
#[derive(Template)]
#[template(path = "task_status.html")]
pub(crate) struct TaskStatusPanel<'a> {
    base: &'a str,
    now: Timestamp,
    known: &'a TaskStatus,
    notices: Vec<String>,
    timeline: Timeline,
}

impl<'a> TaskStatusPanel<'a> {
    pub(crate) fn new(known: &'a TaskStatus, base: &'a str, now: Timestamp) -> Self {
        let running = known.running.as_ref();
        let since = running.map(|it| it.started_at);
        let notices = running.and_then(|it| it.notices.as_ref());
        Self {
            base,
            now,
            notices: notices.map(terminal::notices).unwrap_or_default(),
            timeline: timeline(known.task.enqueued_at, &known.attempts, since, now),
            known,
        }
    }

    /// Returns the blocking sessions that run no task. Prepared transactions are left out: they
    /// have no backend to terminate.
    fn outside_blockers(&self) -> impl Iterator<Item = &Blocker> {
        self.known.blockers.iter().filter(|it| it.task_id.is_none() && it.pid > 0)
    }

    /// Returns the running attempt if the task or the server has reported progress.
    fn progress(&self) -> Option<&Running> {
        let running = self.known.running.as_ref()?;
        (running.percent.is_some() || running.progress.is_some()).then_some(running)
    }
}

/// Reads the status of a task.
pub(crate) async fn read_status(tx: &Transaction<'_>, id: TaskId) -> Result<TaskStatus, HttpError> {
    let task = task_queries::task(tx, id).await?.ok_or_else(|| no_such_task(id))?;
    let running = match task.state {
        Some(State::Running) => task_queries::running(tx, Some(id)).await?.pop(),
        _ => None,
    };
    let blockers = running.as_ref().and_then(|it| it.blockers.clone());
    let blockers = blockers.and_then(|it| serde_json::from_value(it).ok()).unwrap_or_default();
    let attempts = attempt::attempts(tx, id).await?;
    let why = task_queries::why(tx, id).await?;
    Ok(TaskStatus { task, why, running, blockers, attempts })
}

pub(crate) fn task_id(text: &str) -> Result<TaskId, HttpError> {
    text.parse()
        .map(TaskId)
        .map_err(|_| HttpError::not_found(format!("invalid task id \"{text}\"")))
}

pub(crate) fn no_such_task(id: TaskId) -> HttpError {
    HttpError::not_found(format!("there is no task {id}"))
        .hint("the task may be older than the retained history, or was never enqueued")
}
