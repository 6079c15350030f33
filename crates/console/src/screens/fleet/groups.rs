//! Groups screen: concurrency per run, priority, and active period (the time of day in which tasks
//! may start).

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::group::{self, ActivePeriod, Group, GroupChange};
use queue::insight::groups;
use queue::insight::lanes::COUNT_LIMIT;
use queue::{LimitKind, Priority, QueueError, limit};

use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::{FormRequest, RequestContext};
use crate::page::format;
use crate::page::layout::{Layout, render};

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/groups", get(show))
        .route("/groups/create", post(make))
        .route("/groups/{group}/concurrency", post(set))
        .route("/groups/{group}/active-period", post(activate))
        .route("/groups/{group}/remove", post(remove))
}

#[derive(Template)]
#[template(path = "groups.html")]
struct GroupsPage {
    page: Layout,
    groups: Vec<Group>,
}

impl GroupsPage {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }

    fn priorities(&self) -> &'static [Priority] {
        Priority::ALL
    }

    fn count(&self, number: &i64) -> String {
        format::count(*number, *number >= COUNT_LIMIT)
    }
}

/// Reads all groups.
pub(crate) async fn data(tx: &Transaction<'_>) -> Result<Vec<Group>, QueueError> {
    groups::groups(&**tx).await
}

async fn show(context: RequestContext) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let groups = data(&tx).await?;
    render(&GroupsPage { page: Layout::new(&context, "Groups", viewer), groups })
}

/// Reads a form that creates or changes a group; an empty field leaves the setting
/// unchanged, except that an empty `max_running` removes the limit.
fn change(form: &FormRequest) -> Result<GroupChange, HttpError> {
    let description = Some(form.field("description")).filter(|it| !it.is_empty());
    Ok(GroupChange {
        description: description.map(str::to_owned),
        priority: form.optional("priority")?,
        max_running: form.optional("max_running")?,
    })
}

async fn make(form: FormRequest) -> Result<Response, HttpError> {
    let (name, change) = (form.field("name").to_owned(), change(&form)?);
    if name.is_empty() {
        return Err(HttpError::bad_request("a group needs a name"));
    }
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if groups::groups(&*tx).await?.iter().any(|known| known.name == name) {
        return Err(HttpError::bad_request(format!("group {name} already exists")));
    }
    group::set_group(&*tx, &name, &change).await?;
    tx.commit().await?;
    Ok(form.redirect_back("/groups"))
}

async fn set(Path(group): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let change = change(&form)?;
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    // set_group creates a missing group; a mistyped URL must not.
    if !groups::groups(&*tx).await?.iter().any(|known| known.name == group) {
        return Err(none());
    }
    group::set_group(&*tx, &group, &change).await?;
    if change.max_running.is_none() {
        limit::set_max_running(&*tx, LimitKind::Group, &group, None).await?;
    }
    tx.commit().await?;
    Ok(form.redirect_back("/groups"))
}

/// Sets the active period; two empty fields remove it.
async fn activate(Path(group): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let period = match (form.optional("opens")?, form.optional("closes")?) {
        (None, None) => None,
        (Some(opens), Some(closes)) => {
            let zone = Some(form.field("zone")).filter(|zone| !zone.is_empty()).unwrap_or("UTC");
            Some(ActivePeriod { opens, closes, zone: zone.to_owned() })
        }
        _ => return Err(HttpError::bad_request("an active period needs a start and an end")),
    };
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    group::set_active_period(&*tx, &group, period.as_ref()).await?;
    tx.commit().await?;
    Ok(form.redirect_back("/groups"))
}

/// Removes a group. The database refuses while the group has live tasks.
async fn remove(Path(group): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if !group::drop_group(&*tx, &group).await? {
        return Err(none());
    }
    tx.commit().await?;
    Ok(form.redirect_back("/groups"))
}

fn none() -> HttpError {
    HttpError::not_found("group not found")
}
