//! Task screen: state and its reason, statement, attempts, blockers, duration history and plan of a
//! task.

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::attempt::{self, Attempt};
use queue::task_queries::{self, Running, Task};
use queue::{QueueError, State, TaskId, cancel};
use serde::{Deserialize, Serialize};

use super::attempts::{self, AttemptView};
use super::duration_history::DurationHistory;
use super::timeline::timeline;
use super::{events, saved_plan};
use crate::http::error::HttpError;
use crate::http::request::{FormRequest, RequestContext};
use crate::page::format;
use crate::page::highlight;
use crate::page::layout::{Layout, Markup, render};
use crate::screens::HandlerResult;
use crate::server::App;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/tasks/{id}", get(page))
        .route("/tasks/{id}/cancel", post(cancel_task))
        .route("/tasks/{id}/retry", post(retry_task))
        .merge(saved_plan::routes())
        .merge(events::routes())
}

/// Status of a task, without duration history and plan.
#[derive(Serialize)]
pub(crate) struct TaskStatus {
    pub(crate) task: Task,
    pub(crate) why: Option<String>,
    pub(crate) running: Option<Running>,
    pub(crate) blockers: Vec<Blocker>,
    pub(crate) attempts: Vec<Attempt>,
}

/// Data of the screen.
#[derive(Serialize)]
pub(crate) struct TaskDetail {
    #[serde(flatten)]
    known: TaskStatus,
    duration_history: Option<DurationHistory>,
    plan: Option<saved_plan::SavedPlan>,
}

/// A session that holds a lock that the task waits for, from `mill.running`.
#[derive(Debug, Deserialize, Serialize)]
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
    timeline: Markup,
}

#[derive(Template)]
#[template(path = "task.html")]
struct TaskPage {
    page: Layout,
    status_panel: Markup,
    task: Task,
    attempts: Vec<AttemptView>,
    statement: Option<Markup>,
    params: Option<String>,
    duration_history: Option<DurationHistory>,
    plan: Option<saved_plan::SavedPlan>,
}

impl TaskPage {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }

    fn can_cancel(&self) -> bool {
        self.page.viewer.may_act && self.task.state.is_some()
    }

    fn can_retry(&self) -> bool {
        self.page.viewer.may_act && matches!(self.task.state, None | Some(State::Scheduled))
    }

    fn duration_chart(&self) -> Markup {
        let picture = |history: &DurationHistory| history.chart(&self.page.base, self.task.id);
        self.duration_history.as_ref().map_or_else(|| Markup(String::new()), picture)
    }

    /// Returns whether the page is live: refreshed until the task is finished.
    fn live(&self) -> bool {
        self.task.state.is_some()
    }
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

    /// Returns the blocking sessions that run no task. A prepared transaction has no backend to
    /// terminate.
    fn outside_blockers(&self) -> impl Iterator<Item = &Blocker> {
        self.known.blockers.iter().filter(|it| it.task_id.is_none() && it.pid > 0)
    }

    /// Returns the running attempt if the task or the server has reported progress.
    fn progress(&self) -> Option<&Running> {
        let running = self.known.running.as_ref()?;
        (running.percent.is_some() || running.progress.is_some()).then_some(running)
    }
}

/// Reads the status of a task; `None` if the task does not exist.
pub(crate) async fn read_status(
    tx: &Transaction<'_>,
    id: TaskId,
) -> Result<Option<TaskStatus>, QueueError> {
    let Some(task) = task_queries::task(&**tx, id).await? else { return Ok(None) };
    let running = match task.state {
        Some(State::Running) => task_queries::running(&**tx, Some(id)).await?.pop(),
        _ => None,
    };
    let blockers = running.as_ref().and_then(|it| it.blockers.clone());
    let blockers = blockers.and_then(|it| serde_json::from_value(it).ok()).unwrap_or_default();
    let attempts = attempt::attempts(&**tx, id).await?;
    let why = task_queries::why(&**tx, id).await?;
    Ok(Some(TaskStatus { task, why, running, blockers, attempts }))
}

/// Reads all data of the screen; `None` if the task does not exist.
pub(crate) async fn data(
    tx: &Transaction<'_>,
    id: TaskId,
) -> Result<Option<TaskDetail>, QueueError> {
    let Some(known) = read_status(tx, id).await? else { return Ok(None) };
    let duration_history =
        DurationHistory::of(tx, &known.task.queue, known.task.name.as_deref()).await?;
    // Only a task with attempts can have a plan.
    let plan = if known.attempts.is_empty() { None } else { saved_plan::data(tx, id).await? };
    Ok(Some(TaskDetail { known, duration_history, plan }))
}

async fn page(context: RequestContext, Path(id): Path<String>) -> HandlerResult {
    let id = task_id(&id)?;
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let TaskDetail { known, duration_history, plan } =
        data(&tx, id).await?.ok_or_else(|| no_such_task(id))?;
    let status_panel =
        Markup(TaskStatusPanel::new(&known, &context.app.base, viewer.now).render()?);
    let TaskStatus { task, attempts, .. } = known;
    let statement = task.statement.as_deref().map(|sql| highlight::statement(sql, None));
    let title = task.name.clone().unwrap_or_else(|| format!("task {id}"));
    render(&TaskPage {
        params: task.params.as_ref().map(ToString::to_string),
        attempts: attempts::attempt_views(attempts),
        page: context.layout(title, viewer),
        status_panel,
        statement,
        task,
        duration_history,
        plan,
    })
}

async fn cancel_task(Path(id): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let id = task_id(&id)?;
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let done = cancel::cancel(&*tx, id).await?;
    tx.commit().await?;
    if done == "not found" {
        return Err(no_such_task(id));
    }
    Ok(form.redirect_back(&format!("/tasks/{id}")))
}

async fn retry_task(Path(id): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let id = task_id(&id)?;
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let done = cancel::retry(&*tx, id).await?;
    tx.commit().await?;
    if done == "not found" {
        return Err(no_such_task(id));
    }
    Ok(form.redirect_back(&format!("/tasks/{id}")))
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
