//! Task screen: state and its reason, statement, attempts, blockers, duration history and plan of a
//! task.

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use queue::task_queries::Task;
use queue::{Outcome, QueueError, RunId, State, TaskId, cancel};
use serde::Serialize;

use super::attempts::{self, AttemptView};
use super::duration_history::DurationHistory;
use super::saved_plan;
use super::status::{TaskStatus, TaskStatusPanel, no_such_task, read_status, task_id};
use crate::escape::Markup;
use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::{FormRequest, RequestContext};
use crate::options::flags::TRACE_ID;
use crate::page::format;
use crate::page::highlight;
use crate::page::layout::{Layout, render};

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/tasks/{id}", get(page))
        .route("/tasks/{id}/cancel", post(cancel_task))
        .route("/tasks/{id}/retry", post(retry_task))
}

/// Data of the screen.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct TaskDetail {
    #[serde(flatten)]
    known: TaskStatus,
    duration_history: Option<DurationHistory>,
    plan: Option<saved_plan::SavedPlan>,
}

#[derive(Template)]
#[template(path = "task.html")]
struct TaskPage {
    page: Layout,
    zone: TimeZone,
    status_panel: Markup,
    task: Task,
    attempts: Vec<AttemptView>,
    statement: Option<Markup>,
    params: Option<String>,
    duration_history: Option<DurationHistory>,
    plan: Option<saved_plan::SavedPlan>,
    /// Link to the trace of the task.
    trace_link: Option<String>,
}

impl TaskPage {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }

    fn can_cancel(&self) -> bool {
        self.page.viewer.may_act && self.task.state.is_some()
    }

    fn can_change(&self) -> bool {
        self.page.viewer.may_act && self.task.state.is_some() && !self.running()
    }

    /// Returns the name of the time zone in which the form expects the due time.
    fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// Formats the number of the attempt, which counts every attempt, and the number of failed
    /// attempts, which alone are limited.
    fn attempt(&self) -> String {
        let Task { attempt, failures, max_attempts, .. } = &self.task;
        match failures {
            Some(failures) => {
                format!("{attempt}; {failures} of {max_attempts} failed attempts used")
            }
            None => format!("{attempt}; at most {max_attempts} failed attempts"),
        }
    }

    /// Returns the run of a task that has succeeded in it. Such a task runs again with the tasks
    /// after it.
    fn can_rerun(&self) -> Option<RunId> {
        let succeeded = self.task.outcome == Some(Outcome::Succeeded);
        let may_rerun = self.page.viewer.may_act && succeeded && self.task.node.is_some();
        self.task.run_id.filter(|_| may_rerun)
    }

    fn can_retry(&self) -> bool {
        self.page.viewer.may_act && matches!(self.task.state, None | Some(State::Scheduled))
    }

    fn running(&self) -> bool {
        self.task.state == Some(State::Running)
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
        Markup(TaskStatusPanel::new(&known, &context.app.frame.base, viewer.now).render()?);
    let TaskStatus { task, attempts, .. } = known;
    let statement = task.statement.as_deref().map(|sql| highlight::statement(sql, None));
    let traceparent = task.options.traceparent.as_ref();
    let trace_link = context
        .app
        .frame
        .trace_url
        .as_deref()
        .zip(traceparent)
        .map(|(url, traceparent)| url.replace(TRACE_ID, traceparent.trace_id()));
    let title = task.name.clone().unwrap_or_else(|| format!("task {id}"));
    render(&TaskPage {
        params: task.params.as_ref().map(ToString::to_string),
        attempts: attempts::attempt_views(attempts),
        page: Layout::new(&context, title, viewer),
        zone: context.zone,
        status_panel,
        statement,
        task,
        duration_history,
        plan,
        trace_link,
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
