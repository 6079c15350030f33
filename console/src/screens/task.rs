//! Everything about one task: where it stands and why, its statement, each attempt, who blocks it,
//! what is usual for it, its plan.

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::attempt::{self, Attempt};
use queue::show::{self, Running, Task};
use queue::{QueueError, State, TaskId, cancel};
use serde::{Deserialize, Serialize};

use super::Shown;
use super::attempts::{self, Told};
use super::lately::Usual;
use super::timeline::timeline;
use super::{kept_plan, live};
use crate::app::App;
use crate::highlight;
use crate::page::{Markup, Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::{Act, Visit};
use crate::words;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/tasks/{id}", get(page))
        .route("/tasks/{id}/cancel", post(stop))
        .route("/tasks/{id}/retry", post(again))
        .merge(kept_plan::routes())
        .merge(live::routes())
}

/// What is known of a task but what its name and its plan say.
#[derive(Serialize)]
pub(crate) struct Known {
    pub(crate) task: Task,
    pub(crate) why: Option<String>,
    pub(crate) running: Option<Running>,
    pub(crate) blockers: Vec<Blocker>,
    pub(crate) attempts: Vec<Attempt>,
}

/// All that is known of it.
#[derive(Serialize)]
pub(crate) struct Whole {
    #[serde(flatten)]
    known: Known,
    usual: Option<Usual>,
    plan: Option<kept_plan::Told>,
}

/// Who holds a lock that a task waits for, as `mill.running` tells it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Blocker {
    pid: i32,
    user: Option<String>,
    application: Option<String>,
    state: Option<String>,
    transaction_started_at: Option<Timestamp>,
    /// The task that it runs, if it runs one.
    task: Option<i64>,
    name: Option<String>,
}

/// The part that changes as the task goes on.
#[derive(Template)]
#[template(path = "task_now.html")]
pub(crate) struct Now<'a> {
    base: &'a str,
    now: Timestamp,
    known: &'a Known,
    notices: Vec<String>,
    timeline: Markup,
}

#[derive(Template)]
#[template(path = "task.html")]
struct Screen {
    page: Page,
    happens: Markup,
    task: Task,
    attempts: Vec<Told>,
    statement: Option<Markup>,
    params: Option<String>,
    usual: Option<Usual>,
    plan: Option<kept_plan::Told>,
}

impl Screen {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }

    fn can_cancel(&self) -> bool {
        self.page.viewer.may_act && self.task.state.is_some()
    }

    fn can_retry(&self) -> bool {
        self.page.viewer.may_act && matches!(self.task.state, None | Some(State::Scheduled))
    }

    fn picture(&self) -> Markup {
        let picture = |usual: &Usual| usual.picture(&self.page.base, self.task.id);
        self.usual.as_ref().map_or_else(|| Markup(String::new()), picture)
    }

    /// Asked for again, or sent, until it has ended.
    fn live(&self) -> bool {
        self.task.state.is_some()
    }
}

impl<'a> Now<'a> {
    pub(crate) fn new(known: &'a Known, base: &'a str, now: Timestamp) -> Self {
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

    /// Sessions that hold it up and run no task; a prepared transaction has no backend to end.
    fn outside(&self) -> impl Iterator<Item = &Blocker> {
        self.known.blockers.iter().filter(|it| it.task.is_none() && it.pid > 0)
    }

    /// It has said how far it is, or the server has.
    fn progress(&self) -> Option<&Running> {
        let running = self.known.running.as_ref()?;
        (running.percent.is_some() || running.progress.is_some()).then_some(running)
    }
}

/// What changes as it goes on; `None`: there is no such task.
pub(crate) async fn known(look: &Transaction<'_>, id: TaskId) -> Result<Option<Known>, QueueError> {
    let Some(task) = show::task(&**look, id).await? else { return Ok(None) };
    let running = match task.state {
        Some(State::Running) => show::running(&**look, Some(id)).await?.pop(),
        _ => None,
    };
    let blockers = running.as_ref().and_then(|it| it.blockers.clone());
    let blockers = blockers.and_then(|it| serde_json::from_value(it).ok()).unwrap_or_default();
    let attempts = attempt::attempts(&**look, id).await?;
    let why = show::why(&**look, id).await?;
    Ok(Some(Known { task, why, running, blockers, attempts }))
}

/// All of it.
pub(crate) async fn data(look: &Transaction<'_>, id: TaskId) -> Result<Option<Whole>, QueueError> {
    let Some(known) = known(look, id).await? else { return Ok(None) };
    let usual = Usual::of(look, &known.task.queue, known.task.name.as_deref()).await?;
    // Only what has run has one.
    let plan = if known.attempts.is_empty() { None } else { kept_plan::data(look, id).await? };
    Ok(Some(Whole { known, usual, plan }))
}

async fn page(visit: Visit, Path(id): Path<String>) -> Shown {
    let id = task_id(&id)?;
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let Whole { known, usual, plan } = data(&look, id).await?.ok_or_else(|| no_such_task(id))?;
    let happens = Markup(Now::new(&known, &visit.app.base, viewer.now).render()?);
    let Known { task, attempts, .. } = known;
    let statement = task.statement.as_deref().map(|sql| highlight::statement(sql, None));
    let title = task.name.clone().unwrap_or_else(|| format!("task {id}"));
    answer(&Screen {
        params: task.params.as_ref().map(ToString::to_string),
        attempts: attempts::told(attempts),
        page: visit.page(title, viewer),
        happens,
        statement,
        task,
        usual,
        plan,
    })
}

async fn stop(Path(id): Path<String>, act: Act) -> Result<Response, Trouble> {
    let id = task_id(&id)?;
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    let done = cancel::cancel(&*transaction, id).await?;
    transaction.commit().await?;
    if done == "not found" {
        return Err(no_such_task(id));
    }
    Ok(act.back(&format!("/tasks/{id}")))
}

async fn again(Path(id): Path<String>, act: Act) -> Result<Response, Trouble> {
    let id = task_id(&id)?;
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    let done = cancel::retry(&*transaction, id).await?;
    transaction.commit().await?;
    if done == "not found" {
        return Err(no_such_task(id));
    }
    Ok(act.back(&format!("/tasks/{id}")))
}

pub(crate) fn task_id(text: &str) -> Result<TaskId, Trouble> {
    text.parse().map(TaskId).map_err(|_| Trouble::not_found(format!("\"{text}\" is no task's id")))
}

pub(crate) fn no_such_task(id: TaskId) -> Trouble {
    Trouble::not_found(format!("there is no task {id}"))
        .hint("it may have ended before the history that is kept, or was never submitted")
}
