//! Task screen: state and its reason, statement, attempts, blockers, duration history and plan of a
//! task.

use queue::task_queries::Task;

use super::attempts::{self, AttemptView};
use super::duration_history::{BAR, DurationHistory, HEIGHT};
use super::saved_plan;
use super::status::{TaskStatus, TaskStatusPanel, read_status, task_id};
use crate::options::flags::TRACE_ID;
use crate::screens::prelude::*;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/tasks/{id}", get(show))
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
    fn can_cancel(&self) -> bool {
        self.page.viewer.may_act && self.task.state.is_some()
    }

    fn can_change(&self) -> bool {
        self.page.viewer.may_act && self.task.state.is_some() && !self.running()
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

    /// Returns whether the page is live: refreshed until the task is finished.
    fn live(&self) -> bool {
        self.task.state.is_some()
    }
}

/// Reads all data of the screen.
pub(crate) async fn data(tx: &Transaction<'_>, id: TaskId) -> Result<TaskDetail, HttpError> {
    let known = read_status(tx, id).await?;
    let duration_history =
        DurationHistory::of(tx, &known.task.queue, known.task.name.as_deref()).await?;
    // Only a task with attempts can have a plan.
    let plan = if known.attempts.is_empty() { None } else { saved_plan::data(tx, id).await? };
    Ok(TaskDetail { known, duration_history, plan })
}

async fn show(mut request: ReadRequest, Path(id): Path<String>) -> HandlerResult {
    let id = task_id(&id)?;
    let read = request.begin().await?;
    let TaskDetail { known, duration_history, plan } = data(&read.tx, id).await?;
    let status_panel = Markup(
        TaskStatusPanel::new(&known, &read.context.app.frame.base, read.viewer.now).render()?,
    );
    let TaskStatus { task, attempts, .. } = known;
    let statement = task.statement.as_deref().map(|sql| highlight::statement(sql, None));
    let trace_url = read.context.app.frame.trace_url.as_deref();
    let trace_link = trace_url
        .zip(task.options.traceparent.as_ref())
        .map(|(url, traceparent)| url.replace(TRACE_ID, traceparent.trace_id()));
    let title = task.name.clone().unwrap_or_else(|| format!("task {id}"));
    render(&TaskPage {
        params: task.params.as_ref().map(ToString::to_string),
        attempts: attempts::attempt_views(attempts),
        page: read.layout(title),
        status_panel,
        statement,
        task,
        duration_history,
        plan,
        trace_link,
    })
}
